"""What C and CUDA call the element types: to read a declaration, and for who writes one as in C."""

from __future__ import annotations

C_TYPES = {
    "float": "f32", "double": "f64", "half": "f16", "__half": "f16", "__nv_bfloat16": "bf16",
    "nv_bfloat16": "bf16", "bool": "bool", "char": "i8", "signed char": "i8", "int8_t": "i8",
    "unsigned char": "u8", "uint8_t": "u8", "short": "i16", "int16_t": "i16",
    "unsigned short": "u16", "uint16_t": "u16", "int": "i32", "int32_t": "i32",
    "unsigned int": "u32", "unsigned": "u32", "uint32_t": "u32", "long": "i64", "long long": "i64",
    "int64_t": "i64", "size_t": "u64", "unsigned long": "u64", "unsigned long long": "u64",
    "uint64_t": "u64",
}  # fmt: skip
"""The dtype of a manifest, by its name in C."""
