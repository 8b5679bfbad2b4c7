"""What each operation of an expression does to columns.

numpy's arithmetic where it is the scalar form's, an interval for every integer result, and a mark
on every point without a value. A `VectorPart` is what every step takes and returns; what
cannot be shown to have the scalar form's result raises `UnprovenError`, and the scalar form
computes it instead.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from msgspec import Struct

from tilusbuild.expr.tree import INT64_MAX, INT64_MIN

EXACT = 2**53  # integers up to here are the same number as a double
BOOL, INT, REAL, TEXT = "bool", "int", "float", "str"
BITWISE = {"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}
KINDS = {"b": BOOL, "i": INT, "u": INT, "f": REAL, "U": TEXT}


class UnprovenError(Exception):
    """The scalar form has to answer."""


class VectorPart(Struct):
    """A value per point, or one for all; `low`..`high` bound it if it is a bool or an integer;
    `bad` marks the points without a value (None: there is none)."""

    kind: str
    data: Any
    low: int = 0
    high: int = 1
    bad: Any = None
    mixed: bool = False
    """Whether some of these integers stand for bools: arithmetic does not care, a result does."""


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


def constant(value: Any) -> VectorPart:
    """Return one value as a column for all points."""
    if isinstance(value, bool):
        return VectorPart(BOOL, np.bool_(value), int(value), int(value))
    if isinstance(value, int):
        if not fits(value, value):
            raise UnprovenError
        return VectorPart(INT, np.int64(value), value, value)
    if isinstance(value, str):
        return VectorPart(TEXT, _text(value))
    if not isinstance(value, float) or not np.isfinite(value):
        raise UnprovenError
    return VectorPart(REAL, np.float64(value))


def _text(value: str) -> str:
    if value.endswith("\0"):  # numpy takes it for padding
        raise UnprovenError
    return value


def column_of_objects(column: Any) -> VectorPart:
    """Return a column of Python's own values."""
    values = column.ravel().tolist()
    kinds = {type(value) for value in values}
    if kinds == {str} and not any(value.endswith("\0") for value in values):
        return VectorPart(TEXT, np.array(values).reshape(column.shape))
    if kinds == {bool}:
        return VectorPart(BOOL, np.array(values, dtype=bool).reshape(column.shape))
    if kinds <= {bool, int} and all(fits(value, value) for value in values):
        low, high = min(values, default=0), max(values, default=0)
        data = np.array(values, dtype=np.int64).reshape(column.shape)
        return VectorPart(INT, data, int(low), int(high), mixed=bool in kinds)
    raise UnprovenError


def integer(part: VectorPart) -> VectorPart:
    """Return the part as integers, a boolean as 0 and 1."""
    if part.kind == INT:
        return part
    if part.kind == BOOL:
        data = part.data.astype(np.int64)
        return VectorPart(INT, data, part.low, part.high, part.bad, mixed=True)
    raise UnprovenError


def real(part: VectorPart) -> Any:
    """Return the part as doubles, if they are the same numbers."""
    if part.kind == REAL:
        return part.data
    if part.kind == TEXT or part.low < -EXACT or part.high > EXACT:
        raise UnprovenError
    return part.data.astype(np.float64)


def truth(part: VectorPart) -> Any:
    """Return the part as conditions."""
    if part.kind == BOOL:
        return part.data
    if part.kind == TEXT:
        raise UnprovenError
    return part.data != 0


def integers(low: int, high: int, compute: Any, bad: Any, estimate: Any = None) -> VectorPart:
    """Return the integers that `compute` gives, if what they lie in fits 64 bits.

    Where the intervals are too wide to show it, `estimate`, the same in doubles, may: it is off by
    less than a part in 2^40 and 4096.
    """
    if not fits(low, high):
        if estimate is None:
            raise UnprovenError
        most = float(np.max(np.abs(estimate()), initial=0.0))
        if not most < 2.0**62:
            raise UnprovenError
        high = int(most * (1 + 2.0**-40)) + 4096
        low = 0 if low >= 0 else -high
    return VectorPart(INT, compute(), low, high, bad)


def reals(data: Any, bad: Any) -> VectorPart:
    """Doubles, with a mark on those that are beyond the finite ones."""
    beyond = ~np.isfinite(data)
    if beyond.any():
        return VectorPart(REAL, np.where(beyond, 0.0, data), bad=either(bad, beyond))
    return VectorPart(REAL, data, bad=bad)


def _nonzero(divisor: Any, bad: Any) -> tuple[Any, Any]:
    """Return the divisor with 1 for 0, and the marks with those points added."""
    zero = divisor == 0
    if not zero.any():
        return divisor, bad
    return np.where(zero, divisor.dtype.type(1), divisor), either(bad, zero)


def real_arithmetic(op: str, left: VectorPart, right: VectorPart, bad: Any) -> VectorPart:
    """`+ - * / // %` of doubles."""
    a, b = real(left), real(right)
    if op in ("/", "//", "%"):
        b, bad = _nonzero(b, bad)
    function = {
        "+": np.add,
        "-": np.subtract,
        "*": np.multiply,
        "/": np.divide,
        "//": np.floor_divide,
        "%": np.remainder,
    }[op]
    return reals(function(a, b), bad)


def integer_arithmetic(op: str, left: VectorPart, right: VectorPart, bad: Any) -> VectorPart:
    """Return every binary operator but `/` and `**`, of integers."""
    a, b = left.data, right.data
    match op:
        case "+" | "-" | "*":
            function = {"+": operator.add, "-": operator.sub, "*": operator.mul}[op]
            ends = [function(x, y) for x in (left.low, left.high) for y in (right.low, right.high)]
            estimate = lambda: function(a.astype(np.float64), b.astype(np.float64))  # noqa: E731
            return integers(min(ends), max(ends), lambda: function(a, b), bad, estimate)
        case "<<":
            n = int(b)
            return integers(left.low << n, left.high << n, lambda: a * np.int64(1 << n), bad)
        case ">>":
            negative = b < 0
            bad = either(bad, negative) if negative.any() else bad
            low, high = min(left.low, 0), max(left.high, 0)
            return integers(low, high, lambda: np.right_shift(a, np.clip(b, 0, 63)), bad)
        case "//":
            return _floor_division(left, right, bad)
        case "%":
            b, bad = _nonzero(b, bad) if right.low <= 0 <= right.high else (b, bad)
            low, high = min(right.low + 1, 0), max(right.high - 1, 0)
            return integers(low, high, lambda: np.remainder(a, b), bad)
        case _:
            bitwise = BITWISE[op]
            sides = (left.low, left.high, right.low, right.high)
            most = 1 << max(max(end, ~end).bit_length() for end in sides)
            low = 0 if min(sides) >= 0 else -most
            part = integers(low, most - 1, lambda: bitwise(a, b), bad)
            part.mixed = left.mixed and right.mixed
            return part


def _floor_division(left: VectorPart, right: VectorPart, bad: Any) -> VectorPart:
    divisor = right.data
    if right.low <= 0 <= right.high:
        divisor, bad = _nonzero(divisor, bad)
    if left.low >= 0 and right.low >= 0:
        low, high = 0, left.high // max(right.low, 1)
    else:
        high = max(abs(left.low), abs(left.high))
        low = -high
    return integers(low, high, lambda: np.floor_divide(left.data, divisor), bad)


def power(base: VectorPart, exponent: int) -> VectorPart:
    """`base ** exponent`; of doubles by squaring, in the scalar form's order."""
    if base.kind == REAL:
        result, square, left = np.float64(1.0), base.data, exponent
        while left:
            if left & 1:
                result = result * square
            left >>= 1
            if left:
                square = square * square
        return reals(result, base.bad)
    part = integer(base)
    corners = [part.low**exponent, part.high**exponent]
    if part.low <= 0 <= part.high:
        corners.append(0**exponent)
    return integers(
        min(corners), max(corners), lambda: np.power(part.data, np.int64(exponent)), part.bad
    )


_COMPARISONS = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


def compared(op: str, left: VectorPart, right: VectorPart) -> Any:
    """Return a comparison, as booleans."""
    if (left.kind == TEXT) != (right.kind == TEXT):
        if op not in ("==", "!="):
            raise UnprovenError
        return np.bool_(op == "!=")
    if left.kind == TEXT:
        return _COMPARISONS[op](np.asarray(left.data), np.asarray(right.data))
    if REAL in (left.kind, right.kind):
        return _COMPARISONS[op](real(left), real(right))
    if left.kind == right.kind == BOOL:
        return _COMPARISONS[op](left.data, right.data)
    return _COMPARISONS[op](integer(left).data, integer(right).data)


def extreme(name: str, parts: list[VectorPart], bad: Any) -> VectorPart:
    """`min` or `max`."""
    beyond, bound = (np.less, min) if name == "min" else (np.greater, max)
    kinds = {part.kind for part in parts}
    if REAL in kinds:
        columns = [real(part) for part in parts]
    elif kinds == {BOOL}:
        columns = [part.data for part in parts]
    else:
        columns = [integer(part).data for part in parts]
    data = columns[0]
    for column in columns[1:]:  # of equal ones the first: numpy's own may give the other zero
        data = np.where(beyond(column, data), column, data)
    if REAL in kinds:
        return VectorPart(REAL, data, bad=bad)
    low, high = bound(part.low for part in parts), bound(part.high for part in parts)
    if kinds == {BOOL}:
        return VectorPart(BOOL, data, low, high, bad)
    return VectorPart(
        INT, data, low, high, bad, mixed=any(part.mixed or part.kind == BOOL for part in parts)
    )


def absolute(part: VectorPart) -> VectorPart:
    """`abs`."""
    if part.kind == REAL:
        return VectorPart(REAL, np.abs(part.data), bad=part.bad)
    whole = integer(part)
    high = max(abs(whole.low), abs(whole.high))
    return integers(0, high, lambda: np.abs(whole.data), whole.bad)


def integer_call(name: str, parts: list[VectorPart], bad: Any) -> VectorPart:
    """Return the functions that take integers: `cdiv align divides pow2 log2 gcd`."""
    first, last = parts[0], parts[-1]
    most = max(abs(end) for part in parts for end in (part.low, part.high))
    match name:
        case "cdiv":
            divisor, bad = _nonzero(last.data, bad)
            return integers(-most, most, lambda: -np.floor_divide(-first.data, divisor), bad)
        case "align":
            step, bad = _within(last.data, 1, INT64_MAX, bad)
            low, high = first.low - max(last.high, 1), first.high + max(last.high, 1)
            compute = lambda: -np.floor_divide(-first.data, step) * step  # noqa: E731
            return integers(min(low, -most), high, compute, bad)
        case "divides":
            divisor, bad = _nonzero(first.data, bad)
            return VectorPart(BOOL, np.remainder(last.data, divisor) == 0, bad=bad)
        case "pow2":
            exponent, bad = _within(first.data, 0, 62, bad)
            high = 1 << min(max(first.high, 0), 62)
            return integers(0, high, lambda: np.left_shift(np.int64(1), exponent), bad)
        case "log2":
            number, bad = _within(first.data, 1, INT64_MAX, bad)
            return integers(0, 62, lambda: _floor_log2(number), bad)
        case _:
            return integers(-most, most, lambda: np.gcd(first.data, last.data), bad)


def _within(data: Any, low: int, high: int, bad: Any) -> tuple[Any, Any]:
    outside = (data < low) | (data > high)
    if not outside.any():
        return data, bad
    return np.where(outside, np.int64(low), data), either(bad, outside)


def _floor_log2(number: Any) -> Any:
    """Return the logarithm to base 2, rounded down, of positive integers."""
    # The double nearest to a large integer may lie in the next octave: compare, and step back.
    exponent = np.minimum(np.frexp(number.astype(np.float64))[1].astype(np.int64) - 1, 62)
    return exponent - (np.left_shift(np.int64(1), exponent) > number)
