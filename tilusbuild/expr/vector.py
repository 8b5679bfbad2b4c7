"""A tree over columns of points with numpy, with the answers of the scalar form and nothing else.

Every integer part carries the interval that it lies in, from the columns' own extremes. While all
intervals fit 64 bits, numpy's arithmetic is exact; where that cannot be shown, or where types mix
in a way that numpy would answer differently, the points go through the scalar form one by one.
A point without a value is marked, never raised in the middle: whether the mark counts is for the
`and`, `or` and `if` around it to say, as they do for one point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilusbuild.expr import tree as t
from tilusbuild.expr.arithmetic import (
    BITWISE,
    BOOL,
    INT,
    KINDS,
    REAL,
    TEXT,
    UnprovenError,
    VectorPart,
    absolute,
    column_of_objects,
    compared,
    constant,
    either,
    extreme,
    fits,
    integer,
    integer_arithmetic,
    integer_call,
    integers,
    power,
    real_arithmetic,
    truth,
)
from tilusbuild.expr.expression import Expr
from tilusbuild.expr.tree import ExprError, Node, Value


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
            if part.mixed or (part.kind in (INT, BOOL) and not fits(part.low, part.high)):
                raise UnprovenError
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
        if operand.kind == REAL and node.op in "+-":
            data = -operand.data if node.op == "-" else operand.data
            return VectorPart(REAL, data, bad=operand.bad)
        part = integer(operand)
        if node.op == "+":
            return VectorPart(INT, part.data, part.low, part.high, part.bad)
        shift = 0 if node.op == "-" else 1
        low, high = -part.high - shift, -part.low - shift
        return integers(low, high, lambda: np.subtract(-shift, part.data), part.bad)

    def _binary(self, node: t.Binary) -> VectorPart:
        left, right = self.value(node.left), self.value(node.right)
        op = node.op
        bad = either(left.bad, right.bad)
        if TEXT in (left.kind, right.kind):
            raise UnprovenError
        if op == "**":
            return power(left, int(right.data))
        if op == "/" or (op in ("+", "-", "*", "//", "%") and REAL in (left.kind, right.kind)):
            return real_arithmetic(op, left, right, bad)
        if left.kind == right.kind == BOOL and op in "&|^":
            return VectorPart(BOOL, BITWISE[op](left.data, right.data), bad=bad)
        return integer_arithmetic(op, integer(left), integer(right), bad)

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
        mixed = yes.mixed or no.mixed
        if {yes.kind, no.kind} == {INT, BOOL}:
            yes, no, mixed = integer(yes), integer(no), True
        if yes.kind != no.kind:
            raise UnprovenError
        data = np.where(holds, yes.data, no.data)
        low, high = min(yes.low, no.low), max(yes.high, no.high)
        return VectorPart(yes.kind, data, low, high, bad, mixed)

    def _call(self, node: t.Call) -> VectorPart:
        parts = [self.value(argument) for argument in node.arguments]
        if any(part.kind == TEXT for part in parts):
            raise UnprovenError
        bad = either(*(part.bad for part in parts))
        if node.function in ("min", "max"):
            return extreme(node.function, parts, bad)
        if node.function == "abs":
            return absolute(parts[0])
        return integer_call(node.function, [integer(part) for part in parts], bad)
