"""A tree over columns of points with numpy, with the answers of the scalar form and nothing else.

Every integer part carries the interval that it lies in, from the columns' own extremes. While all
intervals fit 64 bits, numpy's arithmetic is exact; where that cannot be shown, or where types mix
in a way that numpy would answer differently, the points go through the scalar form one by one.
A point without a value is marked, never raised in the middle: whether the mark counts is for the
`and`, `or` and `if` around it to say, as they do for one point.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilusbuild.expr.errors import ExprError
from tilusbuild.expr.tree import (
    INT64_MAX,
    INT64_MIN,
    Binary,
    Call,
    Compare,
    Const,
    Logic,
    Member,
    Name,
    Node,
    Select,
    Unary,
    Value,
)

if TYPE_CHECKING:
    from tilusbuild.expr.expression import Expr

_EXACT = 2**53  # integers up to here are the same number as a double
_BOOL, _INT, _REAL, _TEXT = "bool", "int", "float", "str"
_KINDS = {"b": _BOOL, "i": _INT, "u": _INT, "f": _REAL, "U": _TEXT}


class _UnprovenError(Exception):
    """The scalar form has to answer."""


@dataclass(slots=True)
class _Part:
    """A value per point, or one for all; `low`..`high` bound it if it is a bool or an integer;
    `bad` marks the points without a value (None: there is none)."""

    kind: str
    data: Any
    low: int = 0
    high: int = 1
    bad: Any = None


def evaluate_all(expr: Expr, columns: Mapping[str, Any]) -> Any:
    """The values at all points. Raises the `ExprError` of the first point that has none."""
    values, bad = evaluate_marked(expr, columns)
    if bad is not None:
        row, shape = int(np.argmax(bad)), _shape(columns)
        expr.evaluate({name: _at(columns[name], shape, row) for name in expr.names})
    return values


def evaluate_marked(
    expr: Expr,
    columns: Mapping[str, Any],
    bad: Mapping[str, Any] | None = None,
    bounds: Mapping[str, tuple[int, int]] | None = None,
) -> tuple[Any, Any]:
    """The values at all points and a mask of the points that have none (None if all have one).

    The columns may have any shapes that broadcast: what depends on one axis is computed once.
    `bad` marks, for a name, the points where its value must not be used. `bounds` are intervals
    that the caller knows integer columns to lie in; they save looking for the extremes.
    """
    shape = _shape(columns)
    try:
        with np.errstate(all="ignore"):
            part = _Walk(columns, bad or {}, bounds or {}).value(expr.tree)
            if part.kind in (_INT, _BOOL) and not _fits(part.low, part.high):
                raise _UnprovenError
            values = np.broadcast_to(np.asarray(part.data), shape)
            if part.bad is None:
                return values, None
            marks = np.broadcast_to(part.bad, shape)
            return values, marks if marks.any() else None
    except _UnprovenError:
        return _one_by_one(expr, columns, bad or {}, shape)


def _shape(columns: Mapping[str, Any]) -> tuple[int, ...]:
    arrays = [column.shape for column in columns.values() if isinstance(column, np.ndarray)]
    return np.broadcast_shapes(*arrays)


def _at(column: Any, shape: tuple[int, ...], row: int) -> Any:
    if isinstance(column, np.ndarray):
        return np.broadcast_to(column, shape).ravel()[row : row + 1].tolist()[0]
    return column


def _one_by_one(
    expr: Expr, columns: Mapping[str, Any], bad: Mapping[str, Any], shape: tuple[int, ...]
) -> tuple[Any, Any]:
    count = int(np.prod(shape, dtype=np.int64))
    lists: dict[str, list[Any]] = {}
    for name in expr.names:
        column = columns[name]
        if isinstance(column, np.ndarray):
            lists[name] = np.broadcast_to(column, shape).ravel().tolist()
        else:
            lists[name] = [column] * count
        if bad.get(name) is not None:
            unusable = ExprError(f"{name} has no value here")
            for row in np.flatnonzero(np.broadcast_to(bad[name], shape)):
                lists[name][row] = unusable
    points = [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
    values = [_or_none(expr, point) for point in (points if lists else [{}] * count)]
    marks = np.array([value is None for value in values], dtype=bool)
    array = _array([0 if value is None else value for value in values])
    return array.reshape(shape), (marks.reshape(shape) if marks.any() else None)


def _or_none(expr: Expr, env: Mapping[str, Any]) -> Value | None:
    try:
        return expr.evaluate_carefully(env)
    except ExprError:
        return None


def _array(values: list[Value]) -> Any:
    kinds = {type(value) for value in values}
    if kinds <= {bool}:
        return np.array(values, dtype=bool)
    if kinds <= {bool, int}:
        return np.array(values, dtype=np.int64)
    if kinds == {float} or kinds == {str}:
        return np.array(values)
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _fits(low: int, high: int) -> bool:
    return low >= INT64_MIN and high <= INT64_MAX


def _or(*marks: Any) -> Any:
    result = None
    for mark in marks:
        if mark is not None:
            result = mark if result is None else result | mark
    return result


class _Walk:
    """One evaluation of a tree over columns."""

    def __init__(
        self,
        columns: Mapping[str, Any],
        bad: Mapping[str, Any],
        bounds: Mapping[str, tuple[int, int]],
    ) -> None:
        self._columns = columns
        self._bad = bad
        self._bounds = bounds

    def value(self, node: Node) -> _Part:
        match node:
            case Const():
                return _constant(node.value)
            case Name():
                return self._name(node.name)
            case Unary():
                return self._unary(node)
            case Binary():
                return self._binary(node)
            case Compare():
                return self._compare(node)
            case Member():
                return self._member(node)
            case Logic():
                return self._logic(node)
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)

    def _name(self, name: str) -> _Part:
        column = self._columns[name]
        if not isinstance(column, np.ndarray):
            part = _constant(column)
        elif column.dtype.kind not in _KINDS or column.size == 0:
            part = _column_of_objects(column)
        else:
            part = _Part(_KINDS[column.dtype.kind], column)
            if part.kind == _INT:
                bounds = self._bounds.get(name)
                part.low, part.high = bounds or (int(column.min()), int(column.max()))
                part.data = column.astype(np.int64, copy=False)
                if not _fits(part.low, part.high):
                    raise _UnprovenError
            elif part.kind == _REAL:
                part.data = column.astype(np.float64, copy=False)
                if column.dtype != np.float64 or not np.isfinite(column).all():
                    raise _UnprovenError
        part.bad = self._bad.get(name)
        return part

    def _unary(self, node: Unary) -> _Part:
        operand = self.value(node.operand)
        if node.op == "not":
            return _Part(_BOOL, np.logical_not(_truth(operand)), bad=operand.bad)
        if operand.kind == _REAL and node.op in "+-":
            data = -operand.data if node.op == "-" else operand.data
            return _Part(_REAL, data, bad=operand.bad)
        part = _integer(operand)
        if node.op == "+":
            return part
        shift = 0 if node.op == "-" else 1
        low, high = -part.high - shift, -part.low - shift
        return _integers(low, high, lambda: np.subtract(-shift, part.data), part.bad)

    def _binary(self, node: Binary) -> _Part:
        left, right = self.value(node.left), self.value(node.right)
        op = node.op
        bad = _or(left.bad, right.bad)
        if _TEXT in (left.kind, right.kind):
            raise _UnprovenError
        if op == "**":
            return _power(left, int(right.data))
        if op == "/" or (op in ("+", "-", "*", "//", "%") and _REAL in (left.kind, right.kind)):
            return _real_arithmetic(op, left, right, bad)
        return _integer_arithmetic(op, _integer(left), _integer(right), bad)

    def _compare(self, node: Compare) -> _Part:
        left = self.value(node.first)
        holds, bad = None, left.bad
        for op, side in node.rest:
            right = self.value(side)
            here = _compared(op, left, right)
            if holds is None:
                holds, bad = here, _or(bad, right.bad)
            else:
                bad = _or(bad, None if right.bad is None else right.bad & holds)
                holds = holds & here
            left = right
        return _Part(_BOOL, holds, bad=bad)

    def _member(self, node: Member) -> _Part:
        item = self.value(node.item)
        found, bad = np.False_, item.bad
        for choice in node.choices:
            part = self.value(choice)
            if part.bad is not None:
                bad = _or(bad, part.bad & ~found)
            found = found | _compared("==", item, part)
        return _Part(_BOOL, ~found if node.negated else found, bad=bad)

    def _logic(self, node: Logic) -> _Part:
        """`open_` are the points that no item has decided yet."""
        stop = node.op == "or"
        open_, bad = np.True_, None
        for item in node.items:
            part = self.value(item)
            if part.bad is not None:
                bad = _or(bad, part.bad & open_)
            truth = _truth(part)
            open_ = open_ & (~truth if stop else truth)
        return _Part(_BOOL, ~open_ if stop else open_, bad=bad)

    def _select(self, node: Select) -> _Part:
        test = self.value(node.test)
        truth = _truth(test)
        if not isinstance(truth, np.ndarray) or truth.ndim == 0:
            chosen = self.value(node.yes if truth else node.no)
            chosen.bad = _or(chosen.bad, test.bad)
            return chosen
        yes, no = self.value(node.yes), self.value(node.no)
        bad = _or(
            test.bad,
            None if yes.bad is None else yes.bad & truth,
            None if no.bad is None else no.bad & ~truth,
        )
        if {yes.kind, no.kind} == {_INT, _BOOL}:
            yes, no = _integer(yes), _integer(no)
        if yes.kind != no.kind:
            raise _UnprovenError
        data = np.where(truth, yes.data, no.data)
        return _Part(yes.kind, data, min(yes.low, no.low), max(yes.high, no.high), bad)

    def _call(self, node: Call) -> _Part:
        parts = [self.value(argument) for argument in node.arguments]
        if any(part.kind == _TEXT for part in parts):
            raise _UnprovenError
        bad = _or(*(part.bad for part in parts))
        if node.function in ("min", "max"):
            return _extreme(node.function, parts, bad)
        if node.function == "abs":
            return _absolute(parts[0])
        return _integer_call(node.function, [_integer(part) for part in parts], bad)


def _constant(value: Any) -> _Part:
    if isinstance(value, bool):
        return _Part(_BOOL, np.bool_(value), int(value), int(value))
    if isinstance(value, int):
        if not _fits(value, value):
            raise _UnprovenError
        return _Part(_INT, np.int64(value), value, value)
    if isinstance(value, str):
        return _Part(_TEXT, _text(value))
    if not isinstance(value, float) or not np.isfinite(value):
        raise _UnprovenError
    return _Part(_REAL, np.float64(value))


def _text(value: str) -> str:
    if value.endswith("\0"):  # numpy cannot tell it from padding
        raise _UnprovenError
    return value


def _column_of_objects(column: Any) -> _Part:
    values = column.ravel().tolist()
    kinds = {type(value) for value in values}
    if kinds == {str} and not any(value.endswith("\0") for value in values):
        return _Part(_TEXT, np.array(values).reshape(column.shape))
    if kinds <= {bool, int} and all(_fits(value, value) for value in values):
        low, high = min(values, default=0), max(values, default=0)
        data = np.array(values, dtype=np.int64).reshape(column.shape)
        return _Part(_INT, data, int(low), int(high))
    raise _UnprovenError


def _integer(part: _Part) -> _Part:
    if part.kind == _INT:
        return part
    if part.kind == _BOOL:
        return _Part(_INT, part.data.astype(np.int64), part.low, part.high, part.bad)
    raise _UnprovenError


def _real(part: _Part) -> Any:
    """The part as doubles, if they are the same numbers."""
    if part.kind == _REAL:
        return part.data
    if part.kind == _TEXT or part.low < -_EXACT or part.high > _EXACT:
        raise _UnprovenError
    return part.data.astype(np.float64)


def _truth(part: _Part) -> Any:
    if part.kind == _BOOL:
        return part.data
    if part.kind == _TEXT:
        raise _UnprovenError
    return part.data != 0


def _integers(low: int, high: int, compute: Any, bad: Any, estimate: Any = None) -> _Part:
    """The integers that `compute` gives, if what they lie in fits 64 bits.

    Where the intervals are too wide to show it, `estimate`, the same in doubles, may: it is off by
    less than a part in 2^40 and 4096.
    """
    if not _fits(low, high):
        if estimate is None:
            raise _UnprovenError
        most = float(np.max(np.abs(estimate()), initial=0.0))
        if not most < 2.0**62:
            raise _UnprovenError
        high = int(most * (1 + 2.0**-40)) + 4096
        low = 0 if low >= 0 else -high
    return _Part(_INT, compute(), low, high, bad)


def _reals(data: Any, bad: Any) -> _Part:
    beyond = ~np.isfinite(data)
    if beyond.any():
        return _Part(_REAL, np.where(beyond, 0.0, data), bad=_or(bad, beyond))
    return _Part(_REAL, data, bad=bad)


def _nonzero(divisor: Any, bad: Any) -> tuple[Any, Any]:
    """The divisor with 1 for 0, and the marks with those points added."""
    zero = divisor == 0
    if not zero.any():
        return divisor, bad
    return np.where(zero, divisor.dtype.type(1), divisor), _or(bad, zero)


def _real_arithmetic(op: str, left: _Part, right: _Part, bad: Any) -> _Part:
    a, b = _real(left), _real(right)
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
    return _reals(function(a, b), bad)


def _integer_arithmetic(op: str, left: _Part, right: _Part, bad: Any) -> _Part:
    a, b = left.data, right.data
    match op:
        case "+" | "-" | "*":
            function = {"+": operator.add, "-": operator.sub, "*": operator.mul}[op]
            ends = [function(x, y) for x in (left.low, left.high) for y in (right.low, right.high)]
            estimate = lambda: function(a.astype(np.float64), b.astype(np.float64))  # noqa: E731
            return _integers(min(ends), max(ends), lambda: function(a, b), bad, estimate)
        case "<<":
            n = int(b)
            return _integers(left.low << n, left.high << n, lambda: a * np.int64(1 << n), bad)
        case ">>":
            negative = b < 0
            bad = _or(bad, negative) if negative.any() else bad
            low, high = min(left.low, 0), max(left.high, 0)
            return _integers(low, high, lambda: np.right_shift(a, np.clip(b, 0, 63)), bad)
        case "//":
            return _floor_division(left, right, bad)
        case "%":
            b, bad = _nonzero(b, bad) if right.low <= 0 <= right.high else (b, bad)
            low, high = min(right.low + 1, 0), max(right.high - 1, 0)
            return _integers(low, high, lambda: np.remainder(a, b), bad)
        case _:
            bitwise = {"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}[op]
            sides = (left.low, left.high, right.low, right.high)
            most = 1 << max(max(end, ~end).bit_length() for end in sides)
            low = 0 if min(sides) >= 0 else -most
            return _integers(low, most - 1, lambda: bitwise(a, b), bad)


def _floor_division(left: _Part, right: _Part, bad: Any) -> _Part:
    divisor = right.data
    if right.low <= 0 <= right.high:
        divisor, bad = _nonzero(divisor, bad)
    if left.low >= 0 and right.low >= 0:
        low, high = 0, left.high // max(right.low, 1)
    else:
        high = max(abs(left.low), abs(left.high))
        low = -high
    return _integers(low, high, lambda: np.floor_divide(left.data, divisor), bad)


def _power(base: _Part, exponent: int) -> _Part:
    if base.kind == _REAL:
        result, square, left = np.float64(1.0), base.data, exponent
        while left:
            if left & 1:
                result = result * square
            left >>= 1
            if left:
                square = square * square
        return _reals(result, base.bad)
    part = _integer(base)
    corners = [part.low**exponent, part.high**exponent]
    if part.low <= 0 <= part.high:
        corners.append(0**exponent)
    return _integers(
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


def _compared(op: str, left: _Part, right: _Part) -> Any:
    if (left.kind == _TEXT) != (right.kind == _TEXT):
        if op not in ("==", "!="):
            raise _UnprovenError
        return np.bool_(op == "!=")
    if left.kind == _TEXT:
        return _COMPARISONS[op](np.asarray(left.data), np.asarray(right.data))
    if _REAL in (left.kind, right.kind):
        return _COMPARISONS[op](_real(left), _real(right))
    if left.kind == right.kind == _BOOL:
        return _COMPARISONS[op](left.data, right.data)
    return _COMPARISONS[op](_integer(left).data, _integer(right).data)


def _extreme(name: str, parts: list[_Part], bad: Any) -> _Part:
    function, bound = (np.minimum, min) if name == "min" else (np.maximum, max)
    if any(part.kind == _REAL for part in parts):
        data = _real(parts[0])
        for part in parts[1:]:
            data = function(data, _real(part))
        return _Part(_REAL, data, bad=bad)
    whole = [_integer(part) for part in parts]
    data = whole[0].data
    for part in whole[1:]:
        data = function(data, part.data)
    return _Part(_INT, data, bound(p.low for p in whole), bound(p.high for p in whole), bad)


def _absolute(part: _Part) -> _Part:
    if part.kind == _REAL:
        return _Part(_REAL, np.abs(part.data), bad=part.bad)
    whole = _integer(part)
    high = max(abs(whole.low), abs(whole.high))
    return _integers(0, high, lambda: np.abs(whole.data), whole.bad)


def _integer_call(name: str, parts: list[_Part], bad: Any) -> _Part:
    first, last = parts[0], parts[-1]
    most = max(abs(end) for part in parts for end in (part.low, part.high))
    match name:
        case "cdiv":
            divisor, bad = _nonzero(last.data, bad)
            return _integers(-most, most, lambda: -np.floor_divide(-first.data, divisor), bad)
        case "align":
            step, bad = _within(last.data, 1, INT64_MAX, bad)
            low, high = first.low - max(last.high, 1), first.high + max(last.high, 1)
            compute = lambda: -np.floor_divide(-first.data, step) * step  # noqa: E731
            return _integers(min(low, -most), high, compute, bad)
        case "divides":
            divisor, bad = _nonzero(first.data, bad)
            return _Part(_BOOL, np.remainder(last.data, divisor) == 0, bad=bad)
        case "pow2":
            exponent, bad = _within(first.data, 0, 62, bad)
            high = 1 << min(max(first.high, 0), 62)
            return _integers(0, high, lambda: np.left_shift(np.int64(1), exponent), bad)
        case "log2":
            number, bad = _within(first.data, 1, INT64_MAX, bad)
            return _integers(0, 62, lambda: _floor_log2(number), bad)
        case _:
            return _integers(-most, most, lambda: np.gcd(first.data, last.data), bad)


def _within(data: Any, low: int, high: int, bad: Any) -> tuple[Any, Any]:
    outside = (data < low) | (data > high)
    if not outside.any():
        return data, bad
    return np.where(outside, np.int64(low), data), _or(bad, outside)


def _floor_log2(number: Any) -> Any:
    """The double nearest to a large integer may lie in the next octave: look, and step back."""
    exponent = np.minimum(np.frexp(number.astype(np.float64))[1].astype(np.int64) - 1, 62)
    return exponent - (np.left_shift(np.int64(1), exponent) > number)
