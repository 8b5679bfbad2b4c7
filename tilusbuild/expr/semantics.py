"""What each operation means, on Python values: the definition is the runtime's."""

from __future__ import annotations

from tilusbuild.runtime.semantics import (
    BINARY,
    CALLS,
    COMPARE,
    UNARY,
    NoValueError,
    Number,
    align,
    cdiv,
    divides,
    finite,
    integer,
    log2,
    number,
    pow2,
    power,
    result_of,
    truth,
)

__all__ = [
    "BINARY",
    "CALLS",
    "COMPARE",
    "UNARY",
    "NoValueError",
    "Number",
    "align",
    "cdiv",
    "divides",
    "finite",
    "integer",
    "log2",
    "number",
    "pow2",
    "power",
    "result_of",
    "truth",
]
