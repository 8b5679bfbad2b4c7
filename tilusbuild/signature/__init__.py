"""The call signature of a script: arguments in the kernel's order, read from the manifest's texts.

An argument is a tensor (`f16*[m, k]`) or a scalar (`i32`, `f32`). An `i32` or `i64` scalar that a
tensor names as a bare dimension is read off that tensor's shape, so the caller does not pass it.
Dimensions may also be integers, constants of the script, and expressions over both. What leaves
`signature` is consistent: every name in a shape is a dimension, another integer argument, or a
declared constant.
"""

from tilusbuild.signature.model import ANY_SHAPE, Argument, Dim, Signature, SignatureError, Tile
from tilusbuild.signature.parsing import parse_argument, resolve, signature

__all__ = [
    "ANY_SHAPE",
    "Argument",
    "Dim",
    "Signature",
    "SignatureError",
    "Tile",
    "parse_argument",
    "resolve",
    "signature",
]
