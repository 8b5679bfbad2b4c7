"""The table of element types, with their names in DLPack, C, CUDA, `struct` and array frameworks.

Generated C has the types in this order, and so have the hashes of programs: a new type goes to the
end.
"""

from __future__ import annotations

from typing import NamedTuple


class DataType(NamedTuple):
    """An element type. `code` and `bits` are DLPack's (dlpack.h, DLDataTypeCode, version 1.1)."""

    name: str
    kind: str
    """ "bool", "int", "uint" or "float"."""
    code: int
    bits: int
    c: str
    """The C type of a scalar of this type and of elements; "void" where C has none."""
    cuda: str
    """The CUDA C++ type; <cuda_fp16.h>, <cuda_bf16.h>, <cuda_fp8.h> and <cuda_fp4.h> define the
    narrow ones."""
    numpy: str
    """The name in NumPy, `ml_dtypes`, torch, CuPy and JAX, if they have the type."""
    struct: str
    """The format character of `struct` and `memoryview.cast`; "" where they have none."""
    lanes: int = 1
    """DLPack's number of values in an element. Values of less than a byte come in pairs."""

    @property
    def bytes(self) -> int:
        """Return the size of an element."""
        return self.bits * self.lanes // 8

    @property
    def limits(self) -> tuple[int, int] | None:
        """Return the least and the greatest value of an integer type; None for any other."""
        if self.kind == "uint":
            return 0, (1 << self.bits) - 1
        if self.kind == "int":
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        return None


DTYPES = {
    row[0]: DataType(*row)
    for row in (
        ("bool", "bool", 6, 8, "_Bool", "bool", "bool", "?"),
        ("i8", "int", 0, 8, "int8_t", "signed char", "int8", "b"),
        ("i16", "int", 0, 16, "int16_t", "short", "int16", "h"),
        ("i32", "int", 0, 32, "int32_t", "int", "int32", "i"),
        ("i64", "int", 0, 64, "int64_t", "long long", "int64", "q"),
        ("u8", "uint", 1, 8, "uint8_t", "unsigned char", "uint8", "B"),
        ("u16", "uint", 1, 16, "uint16_t", "unsigned short", "uint16", "H"),
        ("u32", "uint", 1, 32, "uint32_t", "unsigned int", "uint32", "I"),
        ("u64", "uint", 1, 64, "uint64_t", "unsigned long long", "uint64", "Q"),
        ("f16", "float", 2, 16, "void", "__half", "float16", "e"),
        ("bf16", "float", 4, 16, "void", "__nv_bfloat16", "bfloat16", ""),
        ("f32", "float", 2, 32, "float", "float", "float32", "f"),
        ("f64", "float", 2, 64, "double", "double", "float64", "d"),
        ("f8e4m3", "float", 10, 8, "void", "__nv_fp8_e4m3", "float8_e4m3fn", ""),
        ("f8e5m2", "float", 12, 8, "void", "__nv_fp8_e5m2", "float8_e5m2", ""),
        ("f8e8m0", "float", 14, 8, "void", "__nv_fp8_e8m0", "float8_e8m0fnu", ""),
        ("f4e2m1x2", "float", 17, 4, "void", "__nv_fp4x2_e2m1", "float4_e2m1fn_x2", "", 2),
    )
}
"""Every element type, by its name in a manifest."""

TENSOR_MAP = "CUtensorMap"
"""The type of a tensor map, which has no value in a call."""
TENSOR_MAP_TYPES = ("u8", "u16", "u32", "i32", "u64", "i64", "f16", "f32", "f64", "bf16")
"""The types of a tensor map's elements, by CUtensorMapDataType of cuda.h."""
POINTER = "void*"
"""The type of an opaque pointer: a scalar whose value is an address, or None for null."""
_POINTER = DataType(POINTER, "pointer", 3, 64, "void *", "void *", "", "P")


def get_scalar_type(dtype: str) -> DataType:
    """Return the type of a scalar by its name: an element type, or the opaque pointer. Raise
    `KeyError` for any other name, that of a struct included."""
    return _POINTER if dtype == POINTER else DTYPES[dtype]


WHOLE = frozenset(name for name, dtype in DTYPES.items() if dtype.kind != "float")
"""The types of integers, bool included. Dispatch keys and rules read arguments of these types."""

FLOATS = frozenset(DTYPES) - WHOLE
"""The types that are compared within a tolerance."""


def get_integer_limits(dtype: str) -> tuple[int, int] | None:
    """Return the least and the greatest value of an integer type; None for any other name."""
    data_type = DTYPES.get(dtype)
    return data_type.limits if data_type is not None else None
