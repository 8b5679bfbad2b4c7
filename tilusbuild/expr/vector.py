"""A tree over columns of points with numpy, with the answers of the scalar form and nothing else.

Every integer part carries the interval that it lies in, from the columns' own extremes. While all
intervals fit 64 bits, numpy's arithmetic is exact; where that cannot be shown, where types mix in a
way that numpy would answer differently, and for what rules seldom use (`**`, bits, logarithms), the
points go through the scalar form one by one. A point without a value is marked, never raised in the
middle: whether the mark counts is for the `and`, `or` and `if` around it to say, as they do for one
point.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from tilusbuild.expr import tree as t
from tilusbuild.expr.expression import Expr
from tilusbuild.expr.tree import INT64_MAX, INT64_MIN, ExprError, Node, Value

EXACT = 2**53  # integers up to here are the same number as a double
BOOL, INT, REAL, TEXT = "bool", "int", "float", "str"
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


def evaluate_marked(
    expr: Expr,
    columns: Mapping[str, Any],
    bad: Mapping[str, Any] | None = None,
    bounds: Mapping[str, tuple[int, int]] | None = None,
) -> tuple[Any, Any]:
    """Return the values at all points and a mask of the points that have none (None if all have
    one).

    The columns may have any shapes that broadcast: what depends on one axis is computed once.
    `bad` marks, for a name, the points where its value must not be used. `bounds` are intervals
    that the caller knows integer columns to lie in; they save looking for the extremes.
    """
    shape = _shape(columns)
    try:
        with np.errstate(all="ignore"):
            part = _Walk(columns, bad or {}, bounds or {}).value(expr.tree)
            values = np.broadcast_to(np.asarray(part.data), shape)
            if part.bad is None:
                return values, None
            marks = np.broadcast_to(part.bad, shape)
            return values, marks if marks.any() else None
    except UnprovenError:
        return _one_by_one(expr, columns, bad or {}, shape)


def _shape(columns: Mapping[str, Any]) -> tuple[int, ...]:
    arrays = [column.shape for column in columns.values() if isinstance(column, np.ndarray)]
    return np.broadcast_shapes(*arrays)


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
    filler = next((value for value in values if value is not None), 0)
    array = value_array([filler if value is None else value for value in values])
    return array.reshape(shape), (marks.reshape(shape) if marks.any() else None)


def _or_none(expr: Expr, env: Mapping[str, Any]) -> Value | None:
    try:
        return expr.evaluate_lazily(env)
    except ExprError:
        return None


def value_array(values: Sequence[Value]) -> Any:
    """Return values as an array that gives each back as it is, with its type."""
    kinds = {type(value) for value in values}
    if kinds == {int}:
        return np.array(values, dtype=np.int64)
    if len(kinds) == 1 and not any(isinstance(v, str) and v.endswith("\0") for v in values):
        return np.array(values)
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


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

    def value(self, node: Node) -> VectorPart:
        match node:
            case t.Const():
                return constant(node.value)
            case t.Name():
                return self._name(node.name)
            case t.Unary():
                return self._unary(node)
            case t.Binary():
                return self._binary(node)
            case t.Compare():
                return self._compare(node)
            case t.Member():
                return self._member(node)
            case t.Logic():
                return self._logic(node)
            case t.Select():
                return self._select(node)
            case t.Call():
                return self._call(node)

    def _name(self, name: str) -> VectorPart:
        column = self._columns[name]
        if not isinstance(column, np.ndarray):
            part = constant(column)
        elif column.dtype.kind not in KINDS or column.size == 0:
            part = column_of_objects(column)
        else:
            part = VectorPart(KINDS[column.dtype.kind], column)
            if part.kind == INT:
                bounds = self._bounds.get(name)
                part.low, part.high = bounds or (int(column.min()), int(column.max()))
                part.data = column.astype(np.int64, copy=False)
                if not fits(part.low, part.high):
                    raise UnprovenError
            elif part.kind == REAL:
                part.data = column.astype(np.float64, copy=False)
                if column.dtype != np.float64 or not np.isfinite(column).all():
                    raise UnprovenError
        part.bad = self._bad.get(name)
        return part

    def _unary(self, node: t.Unary) -> VectorPart:
        operand = self.value(node.operand)
        if node.op == "not":
            return VectorPart(BOOL, np.logical_not(truth(operand)), bad=operand.bad)
        if node.op == "~":
            raise UnprovenError
        part = operand if operand.kind == REAL else integer(operand)
        if node.op == "+":
            return part
        if part.kind == REAL:
            return VectorPart(REAL, -part.data, bad=part.bad)
        return integers(-part.data, -part.high, -part.low, part.bad)

    def _binary(self, node: t.Binary) -> VectorPart:
        left, right = self.value(node.left), self.value(node.right)
        if node.op not in _ARITHMETIC or TEXT in (left.kind, right.kind):
            raise UnprovenError
        bad = either(left.bad, right.bad)
        if node.op == "/" or REAL in (left.kind, right.kind):
            return real_arithmetic(node.op, left, right, bad)
        return integer_arithmetic(node.op, integer(left), integer(right), bad)

    def _compare(self, node: t.Compare) -> VectorPart:
        left = self.value(node.first)
        holds, bad = None, left.bad
        for op, side in node.rest:
            right = self.value(side)
            here = compared(op, left, right)
            if holds is None:
                holds, bad = here, either(bad, right.bad)
            else:
                bad = either(bad, None if right.bad is None else right.bad & holds)
                holds = holds & here
            left = right
        return VectorPart(BOOL, holds, bad=bad)

    def _member(self, node: t.Member) -> VectorPart:
        item = self.value(node.item)
        found, bad = np.False_, item.bad
        for choice in node.choices:
            part = self.value(choice)
            if part.bad is not None:
                bad = either(bad, part.bad & ~found)
            found = found | compared("==", item, part)
        return VectorPart(BOOL, ~found if node.negated else found, bad=bad)

    def _logic(self, node: t.Logic) -> VectorPart:
        """`open_` are the points that no item has decided yet."""
        stop = node.op == "or"
        open_, bad = np.True_, None
        for item in node.items:
            part = self.value(item)
            if part.bad is not None:
                bad = either(bad, part.bad & open_)
            holds = truth(part)
            open_ = open_ & (~holds if stop else holds)
        return VectorPart(BOOL, ~open_ if stop else open_, bad=bad)

    def _select(self, node: t.Select) -> VectorPart:
        test = self.value(node.test)
        holds = truth(test)
        if not isinstance(holds, np.ndarray) or holds.ndim == 0:
            chosen = self.value(node.yes if holds else node.no)
            chosen.bad = either(chosen.bad, test.bad)
            return chosen
        yes, no = self.value(node.yes), self.value(node.no)
        bad = either(
            test.bad,
            None if yes.bad is None else yes.bad & holds,
            None if no.bad is None else no.bad & ~holds,
        )
        if yes.kind != no.kind:
            raise UnprovenError
        data = np.where(holds, yes.data, no.data)
        low, high = min(yes.low, no.low), max(yes.high, no.high)
        return VectorPart(yes.kind, data, low, high, bad)

    def _call(self, node: t.Call) -> VectorPart:
        parts = [self.value(argument) for argument in node.arguments]
        if any(part.kind == TEXT for part in parts):
            raise UnprovenError
        bad = either(*(part.bad for part in parts))
        if node.function in ("min", "max"):
            return extreme(node.function, parts, bad)
        return integer_call(node.function, [integer(part) for part in parts], bad)


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
    if kinds <= {int} and all(fits(value, value) for value in values):
        data = np.array(values, dtype=np.int64).reshape(column.shape)
        return VectorPart(INT, data, min(values, default=0), max(values, default=0))
    raise UnprovenError


def integer(part: VectorPart) -> VectorPart:
    """Return the part as integers, a boolean as 0 and 1."""
    if part.kind == INT:
        return part
    if part.kind == BOOL:
        return VectorPart(INT, part.data.astype(np.int64), part.low, part.high, part.bad)
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


def integers(data: Any, low: int, high: int, bad: Any) -> VectorPart:
    """Return integers that were computed, if what they lie in fits 64 bits."""
    if not fits(low, high):
        raise UnprovenError
    return VectorPart(INT, data, low, high, bad)


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


_ARITHMETIC = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": np.floor_divide,
    "%": np.remainder,
}


def real_arithmetic(op: str, left: VectorPart, right: VectorPart, bad: Any) -> VectorPart:
    """`+ - * / // %` of doubles."""
    a, b = real(left), real(right)
    if op in ("/", "//", "%"):
        b, bad = _nonzero(b, bad)
    return reals(_ARITHMETIC[op](a, b), bad)


def integer_arithmetic(op: str, left: VectorPart, right: VectorPart, bad: Any) -> VectorPart:
    """`+ - * // %` of integers."""
    divisor = right.data
    if op in ("//", "%") and right.low <= 0 <= right.high:
        divisor, bad = _nonzero(divisor, bad)
    if op == "%":
        low, high = min(right.low + 1, 0), max(right.high - 1, 0)
    elif op != "//":
        function = {"+": operator.add, "-": operator.sub, "*": operator.mul}[op]
        ends = [function(x, y) for x in (left.low, left.high) for y in (right.low, right.high)]
        low, high = min(ends), max(ends)
    elif left.low >= 0 and right.low >= 0:
        low, high = 0, left.high // max(right.low, 1)
    else:
        high = max(abs(left.low), abs(left.high))
        low = -high
    return integers(_ARITHMETIC[op](left.data, divisor), low, high, bad)


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
    if kinds == {INT, BOOL}:
        raise UnprovenError
    columns = [real(part) if REAL in kinds else part.data for part in parts]
    data = columns[0]
    for column in columns[1:]:  # of equal ones the first: numpy's own may give the other zero
        data = np.where(beyond(column, data), column, data)
    low, high = bound(part.low for part in parts), bound(part.high for part in parts)
    return VectorPart(REAL if REAL in kinds else parts[0].kind, data, low, high, bad)


def integer_call(name: str, parts: list[VectorPart], bad: Any) -> VectorPart:
    """Return those functions of integers that rules use: `cdiv align divides`."""
    first, last = parts[0], parts[-1]
    most = max(abs(end) for part in parts for end in (part.low, part.high))
    if name == "cdiv":
        divisor, bad = _nonzero(last.data, bad)
        return integers(-np.floor_divide(-first.data, divisor), -most, most, bad)
    if name == "align":
        over = max(last.high, 1)
        step, bad = _positive(last.data, bad)
        data = -np.floor_divide(-first.data, step) * step
        return integers(data, min(first.low - over, -most), first.high + over, bad)
    if name == "divides":
        divisor, bad = _nonzero(first.data, bad)
        return VectorPart(BOOL, np.remainder(last.data, divisor) == 0, bad=bad)
    raise UnprovenError


def _positive(step: Any, bad: Any) -> tuple[Any, Any]:
    outside = step < 1
    return (np.where(outside, np.int64(1), step), either(bad, outside))
