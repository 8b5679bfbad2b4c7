"""Columns as the vector form computes with them: a kind, the values, an interval, and marks.

`Part` is what every step takes and gives. What cannot be shown to have the scalar form's answer
raises `UnprovenError`, and the scalar form answers instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilusbuild.expr.tree import INT64_MAX, INT64_MIN

EXACT = 2**53  # integers up to here are the same number as a double
BOOL, INT, REAL, TEXT = "bool", "int", "float", "str"
KINDS = {"b": BOOL, "i": INT, "u": INT, "f": REAL, "U": TEXT}


class UnprovenError(Exception):
    """The scalar form has to answer."""


@dataclass(slots=True)
class Part:
    """A value per point, or one for all; `low`..`high` bound it if it is a bool or an integer;
    `bad` marks the points without a value (None: there is none)."""

    kind: str
    data: Any
    low: int = 0
    high: int = 1
    bad: Any = None


def fits(low: int, high: int) -> bool:
    """Return whether an interval is one of 64-bit integers."""
    return low >= INT64_MIN and high <= INT64_MAX


def either(*marks: Any) -> Any:
    """Marks where any of these has one."""
    result = None
    for mark in marks:
        if mark is not None:
            result = mark if result is None else result | mark
    return result


def constant(value: Any) -> Part:
    """One value for all points."""
    if isinstance(value, bool):
        return Part(BOOL, np.bool_(value), int(value), int(value))
    if isinstance(value, int):
        if not fits(value, value):
            raise UnprovenError
        return Part(INT, np.int64(value), value, value)
    if isinstance(value, str):
        return Part(TEXT, _text(value))
    if not isinstance(value, float) or not np.isfinite(value):
        raise UnprovenError
    return Part(REAL, np.float64(value))


def _text(value: str) -> str:
    if value.endswith("\0"):  # numpy cannot tell it from padding
        raise UnprovenError
    return value


def column_of_objects(column: Any) -> Part:
    """Return a column of Python's own values."""
    values = column.ravel().tolist()
    kinds = {type(value) for value in values}
    if kinds == {str} and not any(value.endswith("\0") for value in values):
        return Part(TEXT, np.array(values).reshape(column.shape))
    if kinds <= {bool, int} and all(fits(value, value) for value in values):
        low, high = min(values, default=0), max(values, default=0)
        data = np.array(values, dtype=np.int64).reshape(column.shape)
        return Part(INT, data, int(low), int(high))
    raise UnprovenError


def integer(part: Part) -> Part:
    """Return the part as integers, a boolean as 0 and 1."""
    if part.kind == INT:
        return part
    if part.kind == BOOL:
        return Part(INT, part.data.astype(np.int64), part.low, part.high, part.bad)
    raise UnprovenError


def real(part: Part) -> Any:
    """Return the part as doubles, if they are the same numbers."""
    if part.kind == REAL:
        return part.data
    if part.kind == TEXT or part.low < -EXACT or part.high > EXACT:
        raise UnprovenError
    return part.data.astype(np.float64)


def truth(part: Part) -> Any:
    """Return the part as conditions."""
    if part.kind == BOOL:
        return part.data
    if part.kind == TEXT:
        raise UnprovenError
    return part.data != 0
