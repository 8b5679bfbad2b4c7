"""Evaluate an expression for many points at once with numpy, with the results of the scalar form.

Every integer column carries an interval that contains its values. As long as all intervals fit 64
bits, numpy's arithmetic is exact. Otherwise, and where numpy would treat mixed types differently,
and for operations that rules rarely use (`**`, bits, logarithms), `UnprovenError` sends the points
through the scalar form one by one. A point without a value raises nothing: it is marked. An `and`,
an `or` or an `if` around it drops the mark where the scalar form would not evaluate that operand.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct

from tilusbuild.expr import tree as t
from tilusbuild.expr.expression import Expr
from tilusbuild.expr.tree import INT64_MAX, INT64_MIN, ExprError, Node, Value

EXACT = 2**53  # a double represents every integer up to this magnitude
BOOL, INT, REAL, TEXT = "bool", "int", "float", "str"
KINDS = {"b": BOOL, "i": INT, "u": INT, "f": REAL, "U": TEXT}


class UnprovenError(Exception):
    """Numpy's result is not proven to equal the scalar form's, which must compute it instead."""


class Column(Struct):
    """One value for each point, or a single value for all points.

    `low` and `high` bound the values of a bool or an integer, inclusively. `invalid` marks the
    points without a value; None: all points have one.
    """

    kind: str
    data: Any
    low: int = 0
    high: int = 1
    invalid: Any = None


def evaluate_columns(
    expr: Expr,
    columns: Mapping[str, Any],
    invalid: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Any, Any]:
    """Return the values at all points, and a mask of the points without a value or None.

    `columns` are arrays of any shapes that broadcast, or values: an operation over one axis is
    computed once. `invalid` marks, for a name, the points at which it has no value.
    """
    columns = {name: np.asarray(column) for name, column in columns.items()}
    shape = np.broadcast_shapes(*(column.shape for column in columns.values()))
    try:
        # Marked points may divide by zero or overflow: their results are dropped.
        with np.errstate(all="ignore"):
            result = _ColumnEvaluator(columns, invalid).evaluate_node(expr.tree)
            values = np.broadcast_to(np.asarray(result.data), shape)
            if result.invalid is None:
                return values, None
            marks = np.broadcast_to(result.invalid, shape)
            return values, marks if marks.any() else None
    except UnprovenError:
        return _evaluate_points(expr, columns, invalid, shape)


def _evaluate_points(
    expr: Expr, columns: Mapping[str, Any], invalid: Mapping[str, Any], shape: tuple[int, ...]
) -> tuple[Any, Any]:
    """Return the same as `evaluate_columns`, by the scalar form at each point."""
    lists: dict[str, list[Any]] = {}
    for name in expr.names:
        lists[name] = np.broadcast_to(columns[name], shape).ravel().tolist()
        if invalid.get(name) is not None:
            # An `ExprError` as a value is raised only if the evaluation of the point reaches the
            # name.
            missing_value = ExprError(f"{name} has no value here")
            for row in np.flatnonzero(np.broadcast_to(invalid[name], shape)):
                lists[name][row] = missing_value
    rows = zip(*lists.values(), strict=True) if lists else [()] * math.prod(shape)
    values = [_evaluate_or_none(expr, dict(zip(lists, row, strict=True))) for row in rows]
    marks = np.array([value is None for value in values], dtype=bool)
    # Marked points get a value of the others' type: with None the array would be one of objects.
    filler = next((value for value in values if value is not None), 0)
    array = pack_values([filler if value is None else value for value in values])
    return array.reshape(shape), (marks.reshape(shape) if marks.any() else None)


def _evaluate_or_none(expr: Expr, env: Mapping[str, Any]) -> Value | None:
    try:
        return expr.evaluate_lazily(env)
    except ExprError:
        return None


def pack_values(values: Sequence[Value]) -> Any:
    """Return an array whose `tolist` gives the same values with the same types; one of objects if
    the types differ."""
    kinds = {type(value) for value in values}
    if kinds == {int}:
        return np.array(values, dtype=np.int64)
    # NumPy would drop NULs at the end of a text.
    ends_in_nul = kinds == {str} and any(str(value).endswith("\0") for value in values)
    if len(kinds) == 1 and not ends_in_nul:
        return np.array(values)
    # NumPy would make one type of several: 1 and "a" become texts, 1 and True integers.
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


class _ColumnEvaluator:
    """Evaluates nodes of one tree over the columns of its names.

    Every method returns a column of the node's values. It raises `UnprovenError` where NumPy's
    result may differ from the scalar form's. Its marks are at the points without a value.
    """

    def __init__(self, columns: Mapping[str, Any], invalid: Mapping[str, Any]) -> None:
        self._columns = columns
        self._invalid = invalid

    def evaluate_node(self, node: Node) -> Column:
        """Return the values of `node`, one a point or one for all. Raises `UnprovenError`."""
        match node:
            case t.Const():
                return make_constant_column(node.value)
            case t.Name():
                return self._evaluate_name(node.name)
            case t.Unary():
                return self._evaluate_unary(node)
            case t.Binary():
                return self._evaluate_binary(node)
            case t.Compare():
                return self._evaluate_comparison(node)
            case t.Member():
                return self._evaluate_membership(node)
            case t.Logic():
                return self._evaluate_logic(node)
            case t.Select():
                return self._evaluate_selection(node)
            case t.Call():
                return self._evaluate_call(node)

    def _evaluate_name(self, name: str) -> Column:
        """Return the values of a name; integers as int64, with their extremes as interval."""
        array, invalid = self._columns[name], self._invalid.get(name)
        # Values of several types are objects, which NumPy computes differently. An empty array has
        # no extremes.
        if array.dtype.kind not in KINDS or array.size == 0:
            raise UnprovenError
        kind = KINDS[array.dtype.kind]
        if kind != INT:
            return Column(kind, array, invalid=invalid)
        data = array.astype(np.int64, copy=False)
        return Column(INT, data, int(data.min()), int(data.max()), invalid)

    def _evaluate_unary(self, node: t.Unary) -> Column:
        """Return the values of `- + not`; `~` is unproven."""
        operand = self.evaluate_node(node.operand)
        if node.op == "not":
            return Column(BOOL, np.logical_not(to_booleans(operand)), invalid=operand.invalid)
        if node.op == "~":
            raise UnprovenError
        number = operand if operand.kind == REAL else to_integer_column(operand)
        if node.op == "+":
            return number
        if number.kind == REAL:
            return Column(REAL, -number.data, invalid=number.invalid)
        # The sign swaps the ends of the interval.
        return make_bounded_integers(-number.data, -number.high, -number.low, number.invalid)

    def _evaluate_binary(self, node: t.Binary) -> Column:
        """Return the values of `+ - * / // %`; other operations are unproven."""
        left, right = self.evaluate_node(node.left), self.evaluate_node(node.right)
        if node.op not in _ARITHMETIC or TEXT in (left.kind, right.kind):
            raise UnprovenError
        invalid = union_marks(left.invalid, right.invalid)
        # `/` of two integers is a true division, as in Python.
        if node.op == "/" or REAL in (left.kind, right.kind):
            return compute_doubles(node.op, left, right, invalid)
        return compute_integers(node.op, to_integer_column(left), to_integer_column(right), invalid)

    def _evaluate_comparison(self, node: t.Compare) -> Column:
        """Return the booleans of a chain of comparisons."""
        left = self.evaluate_node(node.first)
        holds, invalid = None, left.invalid
        for op, side in node.rest:
            right = self.evaluate_node(side)
            result = compare_columns(op, left, right)
            if holds is None:
                holds, invalid = result, union_marks(invalid, right.invalid)
            else:
                # Where an earlier pair is false, the scalar form does not evaluate this side.
                if right.invalid is not None:
                    invalid = union_marks(invalid, right.invalid & holds)
                holds = holds & result
            left = right
        return Column(BOOL, holds, invalid=invalid)

    def _evaluate_membership(self, node: t.Member) -> Column:
        """Return the booleans of `in` or `not in`."""
        item = self.evaluate_node(node.item)
        is_member, invalid = np.False_, item.invalid
        for choice in node.choices:
            column = self.evaluate_node(choice)
            if column.invalid is not None:
                # Where an earlier choice is equal, the scalar form does not evaluate this one.
                invalid = union_marks(invalid, column.invalid & ~is_member)
            is_member = is_member | compare_columns("==", item, column)
        return Column(BOOL, ~is_member if node.negated else is_member, invalid=invalid)

    def _evaluate_logic(self, node: t.Logic) -> Column:
        """Return the booleans of an `and` or an `or`."""
        is_or = node.op == "or"
        # Points that no item has decided so far: only there the scalar form evaluates the next one.
        undecided, invalid = np.True_, None
        for item in node.items:
            column = self.evaluate_node(item)
            if column.invalid is not None:
                invalid = union_marks(invalid, column.invalid & undecided)
            holds = to_booleans(column)
            undecided = undecided & (~holds if is_or else holds)
        # An `or` that no item decides is false, and such an `and` is true.
        return Column(BOOL, ~undecided if is_or else undecided, invalid=invalid)

    def _evaluate_selection(self, node: t.Select) -> Column:
        """Return at each point the value of the side that the test selects."""
        test = self.evaluate_node(node.test)
        holds = to_booleans(test)
        # If the test is the same for all points, the other side is not evaluated, and may have
        # another type.
        if not isinstance(holds, np.ndarray) or holds.ndim == 0:
            selected = self.evaluate_node(node.yes if holds else node.no)
            selected.invalid = union_marks(selected.invalid, test.invalid)
            return selected
        yes, no = self.evaluate_node(node.yes), self.evaluate_node(node.no)
        invalid = union_marks(
            test.invalid,
            None if yes.invalid is None else yes.invalid & holds,
            None if no.invalid is None else no.invalid & ~holds,
        )
        # NumPy would convert both sides to one type, and each point must keep the type of its side.
        if yes.kind != no.kind:
            raise UnprovenError
        data = np.where(holds, yes.data, no.data)
        low, high = min(yes.low, no.low), max(yes.high, no.high)
        return Column(yes.kind, data, low, high, invalid)

    def _evaluate_call(self, node: t.Call) -> Column:
        """Return the values of `min`, `max`, `cdiv`, `align` or `divides`; others are unproven."""
        columns = [self.evaluate_node(argument) for argument in node.arguments]
        if any(column.kind == TEXT for column in columns):
            raise UnprovenError
        invalid = union_marks(*(column.invalid for column in columns))
        if node.function in ("min", "max"):
            return compute_extreme(node.function, columns, invalid)
        return call_integer_function(
            node.function, [to_integer_column(column) for column in columns], invalid
        )


def union_marks(*marks: Any) -> Any:
    """Return a mask of the points that any of `marks` has; None if all of them are None."""
    masks = [mask for mask in marks if mask is not None]
    return reduce(operator.or_, masks) if masks else None


def make_constant_column(value: Value) -> Column:
    """Return a column with the same value for all points. Raises `UnprovenError` for a text that
    ends in NUL."""
    data = pack_values((value,)).reshape(())
    if data.dtype.kind not in KINDS:
        raise UnprovenError
    low, high = (int(value), int(value)) if isinstance(value, int) else (0, 1)
    return Column(KINDS[data.dtype.kind], data, low, high)


def to_integer_column(column: Column) -> Column:
    """Return an integer column as it is, and booleans as 0 and 1. Raises `UnprovenError`."""
    if column.kind == INT:
        return column
    if column.kind == BOOL:
        return Column(INT, column.data.astype(np.int64), column.low, column.high, column.invalid)
    raise UnprovenError


def to_doubles(column: Column) -> Any:
    """Return the values as doubles. Raises `UnprovenError` where a conversion could round."""
    if column.kind == REAL:
        return column.data
    if column.kind == TEXT or column.low < -EXACT or column.high > EXACT:
        raise UnprovenError
    return column.data.astype(np.float64)


def to_booleans(column: Column) -> Any:
    """Return the values as conditions: a number is true unless it is zero."""
    if column.kind == BOOL:
        return column.data
    if column.kind == TEXT:
        raise UnprovenError
    return column.data != 0


def make_bounded_integers(data: Any, low: int, high: int, invalid: Any) -> Column:
    """Return an integer column. Raises `UnprovenError` if the interval does not fit 64 bits."""
    if low < INT64_MIN or high > INT64_MAX:
        raise UnprovenError
    return Column(INT, data, low, high, invalid)


def make_finite_doubles(data: Any, invalid: Any) -> Column:
    """Return a column of doubles in which infinities and NaNs are marked, and replaced by 0."""
    beyond = ~np.isfinite(data)
    if beyond.any():
        return Column(REAL, np.where(beyond, 0.0, data), invalid=union_marks(invalid, beyond))
    return Column(REAL, data, invalid=invalid)


def _replace_divisors(divisor: Any, excluded: Any, invalid: Any) -> tuple[Any, Any]:
    """Return the divisor with 1 at the `excluded` points, and the marks with these points added."""
    if not excluded.any():
        return divisor, invalid
    return np.where(excluded, divisor.dtype.type(1), divisor), union_marks(invalid, excluded)


_ARITHMETIC = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": np.floor_divide,
    "%": np.remainder,
}


def compute_doubles(op: str, left: Column, right: Column, invalid: Any) -> Column:
    """Return `left op right` in doubles, for `+ - * / // %`. Divisions by zero and results that are
    not finite are marked."""
    a, b = to_doubles(left), to_doubles(right)
    if op in ("/", "//", "%"):
        b, invalid = _replace_divisors(b, b == 0, invalid)
    return make_finite_doubles(_ARITHMETIC[op](a, b), invalid)


def compute_integers(op: str, left: Column, right: Column, invalid: Any) -> Column:
    """Return `left op right` in integers, for `+ - * // %`, with the interval of the result.
    Divisions by zero are marked. Raises `UnprovenError` if the interval does not fit 64 bits."""
    divisor = right.data
    if op in ("//", "%") and right.low <= 0 <= right.high:
        divisor, invalid = _replace_divisors(divisor, divisor == 0, invalid)
    # The result of % has the sign of the divisor and a smaller magnitude, as in Python.
    if op == "%":
        low, high = min(right.low + 1, 0), max(right.high - 1, 0)
    elif op != "//":
        # These are monotonic in each operand: the extremes are at the ends of the intervals.
        function = {"+": operator.add, "-": operator.sub, "*": operator.mul}[op]
        corners = [function(x, y) for x in (left.low, left.high) for y in (right.low, right.high)]
        low, high = min(corners), max(corners)
    elif left.low >= 0 and right.low >= 0:
        low, high = 0, left.high // max(right.low, 1)
    else:
        # The divisor is at least 1 in magnitude, so the quotient is not larger than the dividend.
        high = max(abs(left.low), abs(left.high))
        low = -high
    return make_bounded_integers(_ARITHMETIC[op](left.data, divisor), low, high, invalid)


_COMPARISONS = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


def compare_columns(op: str, left: Column, right: Column) -> Any:
    """Return the comparison of each point, as booleans. A text differs from every number."""
    if (left.kind == TEXT) != (right.kind == TEXT):
        # An order between a text and a number is an error at each point: the scalar form says so.
        if op not in ("==", "!="):
            raise UnprovenError
        return np.bool_(op == "!=")
    if left.kind == TEXT:
        return _COMPARISONS[op](np.asarray(left.data), np.asarray(right.data))
    if REAL in (left.kind, right.kind):
        return _COMPARISONS[op](to_doubles(left), to_doubles(right))
    if left.kind == right.kind == BOOL:
        return _COMPARISONS[op](left.data, right.data)
    return _COMPARISONS[op](to_integer_column(left).data, to_integer_column(right).data)


def compute_extreme(name: str, columns: list[Column], invalid: Any) -> Column:
    """Return the `min` or `max` (`name`) of the columns at each point. Raises `UnprovenError` for
    integers with booleans."""
    is_beyond, extreme = (np.less, min) if name == "min" else (np.greater, max)
    kinds = {column.kind for column in columns}
    # Each point must have the type of the operand that is chosen there, and an array has one type.
    if kinds == {INT, BOOL}:
        raise UnprovenError
    arrays = [to_doubles(column) if REAL in kinds else column.data for column in columns]
    data = arrays[0]
    # Of equal values the first one counts, as in Python: NumPy's own `minimum` may give -0.0 for
    # 0.0.
    for array in arrays[1:]:
        data = np.where(is_beyond(array, data), array, data)
    low = extreme(column.low for column in columns)
    high = extreme(column.high for column in columns)
    return Column(REAL if REAL in kinds else columns[0].kind, data, low, high, invalid)


def call_integer_function(name: str, columns: list[Column], invalid: Any) -> Column:
    """Return `cdiv`, `align` or `divides` (`name`) of integer columns, marked where the divisor or
    step is not allowed. Raises `UnprovenError` for other functions."""
    first, last = columns[0], columns[-1]
    largest = max(abs(end) for column in columns for end in (column.low, column.high))
    if name == "cdiv":
        divisor, invalid = _replace_divisors(last.data, last.data == 0, invalid)
        # -(-a // b) rounds up, since // rounds down.
        return make_bounded_integers(
            -np.floor_divide(-first.data, divisor), -largest, largest, invalid
        )
    if name == "align":
        # Rounding up adds less than one step.
        largest_step = max(last.high, 1)
        step, invalid = _replace_divisors(last.data, last.data < 1, invalid)
        data = -np.floor_divide(-first.data, step) * step
        low, high = min(first.low - largest_step, -largest), first.high + largest_step
        return make_bounded_integers(data, low, high, invalid)
    if name == "divides":
        divisor, invalid = _replace_divisors(first.data, first.data == 0, invalid)
        return Column(BOOL, np.remainder(last.data, divisor) == 0, invalid=invalid)
    raise UnprovenError
