"""Arrays of element types that NumPy lacks, passed on as what they are through DLPack.

A bf16 or fp8 array is kept as the unsigned integers that hold its bits. `Typed` exports those bytes
under their true DLPack type. The layout of the structures is dlpack.h's, version 0.8 (unversioned
`DLManagedTensor`, capsule name "dltensor"). Ownership: the exported structure keeps the array alive
until the consumer calls its deleter; a capsule that nobody consumed is freed with the capsule.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tilusbuild.signature import DTYPES

_CPU = 1


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    """`DLManagedTensor`."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_exported: dict[int, tuple[Any, ...]] = {}


def _forget(managed: Any) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)


_delete = _Deleter(_forget)


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_NAME = b"dltensor"


def _forget_capsule(capsule: int) -> None:
    if _is_valid(capsule, _NAME):
        _exported.pop(_pointer(capsule, _NAME), None)


_free_capsule = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_forget_capsule)


class Typed:
    """A C-contiguous NumPy array whose bits are elements of `dtype` (a name of `DTYPES`)."""

    def __init__(self, array: np.ndarray[Any, Any], dtype: str) -> None:
        if array.itemsize != DTYPES[dtype].bytes:
            raise ValueError(f"{array.dtype} does not hold {dtype}")
        self.array = np.ascontiguousarray(array).reshape(array.shape)
        self.dtype = dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0

    def __dlpack__(self, **_: object) -> Any:
        kind = DTYPES[self.dtype]
        shape = (ctypes.c_int64 * self.array.ndim)(*self.array.shape)
        tensor = _Tensor(
            self.array.ctypes.data,
            _Device(_CPU, 0),
            self.array.ndim,
            _DataType(kind.code, kind.bits, 1),
            shape,
            None,
            0,
        )
        managed = Managed(tensor, None, _delete)
        address = ctypes.addressof(managed)
        _exported[address] = (managed, shape, self.array)
        return _new_capsule(address, _NAME, ctypes.cast(_free_capsule, ctypes.c_void_p))


def pointer_of(capsule: Any) -> int:
    """The address of the `DLManagedTensor` in a capsule that nobody has consumed. Raises
    `ValueError` for any other object."""
    address: int = _pointer_of(capsule, _NAME)
    return address
