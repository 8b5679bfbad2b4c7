"""Decide by intervals whether a rule is false whatever values the remaining parameters get.

An interval of doubles stands for a parameter without a value so far. If the intervals of the two
sides of a comparison are apart, the join drops the partial point before it crosses it with the
other parameters. There are bounds only for expressions whose every operation has a value, so that a
dropped point never hides an error. A comparison is decided with a margin far above rounding errors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from tilusbuild.expr.tree import Binary, Call, Compare, Const, Logic, Name, Node, Unary

Interval = tuple[Any, Any]  # lowest and highest value: arrays that broadcast, or numbers
MARGIN = 1e-9  # of the operands' magnitude; a double's rounding error is 1.1e-16 an operation
MAX_BOUND = 2.0**62  # a quarter of the 64-bit range, for rounding errors of the bound itself


class NoBoundsError(Exception):
    """There are no bounds for an expression's value."""


def find_impossible(node: Node, interval_of: Callable[[str], Interval]) -> Any:
    """Return a mask of the points at which the rule `node` is surely false for all values of its
    names.

    `interval_of` returns the interval of a name. Raises `NoBoundsError` if nothing is known.
    """
    match node:
        case Compare():
            impossible: Any = np.False_
            left = bound_node(node.first, interval_of)
            for op, side in node.rest:
                right = bound_node(side, interval_of)
                # A chain is false if one of its pairs is.
                impossible = impossible | _mask_never_true(op, left, right)
                left = right
            return impossible
        case Logic(op="or"):
            # An `or` is false only if all of its items are.
            impossible = np.True_
            for item in node.items:
                impossible = impossible & find_impossible(item, interval_of)
            return impossible
        case _:
            raise NoBoundsError


def bound_node(node: Node, interval_of: Callable[[str], Interval]) -> Interval:
    """Return a finite interval that contains the value of `node`. Raises `NoBoundsError`."""
    # Infinities and NaNs are looked for below, in the result.
    with np.errstate(all="ignore"):
        low, high = _bound_unchecked(node, interval_of)
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        raise NoBoundsError
    return low, high


def bound_value(node: Node, interval_of: Callable[[str], Interval]) -> Interval:
    """Return an interval like `bound_node`, of a whole expression, whose value must fit 64 bits.

    Raises `NoBoundsError` also if the value might not fit: then it would be an error.
    """
    low, high = bound_node(node, interval_of)
    if not (np.all(np.abs(low) < MAX_BOUND) and np.all(np.abs(high) < MAX_BOUND)):
        raise NoBoundsError
    return low, high


def _bound_unchecked(node: Node, interval_of: Callable[[str], Interval]) -> Interval:
    """Return an interval that contains the value of `node`; its ends may be infinite or NaN.

    Raises `NoBoundsError` for an operation that may have no value, or whose bounds are not known.
    """
    match node:
        case Const(value=bool() | int() | float() as value):
            return float(value), float(value)
        case Name():
            return interval_of(node.name)
        case Unary(op="-"):
            low, high = bound_node(node.operand, interval_of)
            # The sign swaps the ends.
            return -high, -low
        case Binary():
            left = bound_node(node.left, interval_of)
            return _bound_binary(node.op, left, bound_node(node.right, interval_of))
        case Call(function="min" | "max" as name):
            choose = np.minimum if name == "min" else np.maximum
            intervals = [bound_node(argument, interval_of) for argument in node.arguments]
            lows, highs = zip(*intervals, strict=True)
            return reduce(choose, lows), reduce(choose, highs)
        case Call(function="cdiv"):
            first, second = (bound_node(argument, interval_of) for argument in node.arguments)
            # `cdiv` rounds up, which adds less than 1.
            low, high = _bound_quotient(first, second)
            return low, high + 1
        case _:
            raise NoBoundsError


def _bound_binary(op: str, left: Interval, right: Interval) -> Interval:
    """Return an interval that contains `left op right`. Raises `NoBoundsError` for a divisor that
    may be 0 or less, and for other operations than `+ - * << / // %`."""
    match op:
        case "+":
            return left[0] + right[0], left[1] + right[1]
        case "-":
            return left[0] - right[1], left[1] - right[0]
        case "*":
            return _bound_by_corners(np.multiply, left, right)
        case "<<":
            # The right side is a literal, so its interval is one number.
            return left[0] * 2.0 ** right[0], left[1] * 2.0 ** right[0]
        case "/":
            return _bound_quotient(left, right)
        case "//":
            low, high = _bound_quotient(left, right)
            # Rounding down takes less than 1 away.
            return low - 1, high
        case "%" if np.all(right[0] > 0):
            # As in Python, the remainder has the divisor's sign and is smaller than it.
            return 0.0, right[1]
        case _:
            raise NoBoundsError


def _bound_quotient(left: Interval, right: Interval) -> Interval:
    """Return the interval of `left / right`. Raises `NoBoundsError` if `right` may be 0 or less."""
    if not np.all(right[0] > 0):
        raise NoBoundsError
    return _bound_by_corners(np.divide, left, right)


def _bound_by_corners(
    function: Callable[[Any, Any], Any], left: Interval, right: Interval
) -> Interval:
    """Return the interval of a function that is monotonic in both operands."""
    # A product, and a quotient by positive numbers, is monotonic in each operand: the extremes are
    # at the corners.
    corners = [function(x, y) for x in left for y in right]
    return reduce(np.minimum, corners), reduce(np.maximum, corners)


def _mask_never_true(op: str, left: Interval, right: Interval) -> Any:
    """Return a mask of the points where `left op right` surely holds for no values of the two
    intervals; for `!=` none."""
    if op in ("<", "<="):
        return _mask_above(left, right)
    if op in (">", ">="):
        return _mask_above(right, left)
    if op == "==":
        return _mask_above(left, right) | _mask_above(right, left)
    return np.False_


def _mask_above(left: Interval, right: Interval) -> Any:
    """Return a mask of the points where each value on the left is surely greater than each one on
    the right: the ends are apart by the margin."""
    low, high = left[0], right[1]
    # A point that is masked wrongly is lost, so ends that are nearly equal are not apart.
    return low - high > MARGIN * (np.abs(low) + np.abs(high))
