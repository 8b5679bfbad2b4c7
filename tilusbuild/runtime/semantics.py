"""What each operation of an expression means, on Python values: what all its forms agree with.

Integers are exact; a float is always finite; a bool counts as 0 or 1; a string can only be
compared. An operation without a value raises `NoValueError`; the caller knows where it stands.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TypeAlias

Value: TypeAlias = bool | int | float | str

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

Number = bool | int | float


class NoValueError(Exception):
    """An operation has no value; the text says why."""


def finite(result: Number) -> Number:
    """`result`, unless it is a float beyond the finite ones."""
    if type(result) is float and not math.isfinite(result):
        raise NoValueError("overflow")
    return result


def number(value: Value) -> Number:
    """`value` as an operand of arithmetic."""
    if isinstance(value, str):
        raise NoValueError(f"needs numbers, not the string {value!r:.60}")
    return value


def integer(value: Value) -> int:
    """`value` as an operand of integer arithmetic."""
    if isinstance(value, int):
        return int(value)
    raise NoValueError(f"needs integers, not {value!r:.60}")


def truth(value: Value) -> bool:
    """`value` as a condition: a number is true unless it is zero."""
    return number(value) != 0


def result_of(value: Value) -> Value:
    """`value` as the value of a whole expression: an integer fits 64 bits."""
    if type(value) is int and not INT64_MIN <= value <= INT64_MAX:
        raise NoValueError("overflow: the value does not fit 64 bits")
    return value


def _checked(function: Callable[[Number, Number], Number]) -> Callable[[Value, Value], Number]:
    def apply(left: Value, right: Value) -> Number:
        try:
            return finite(function(number(left), number(right)))
        except OverflowError:
            raise NoValueError("overflow") from None

    return apply


def _divide(function: Callable[[Number, Number], Number]) -> Callable[[Value, Value], Number]:
    checked = _checked(function)

    def apply(left: Value, right: Value) -> Number:
        if number(right) == 0:
            raise NoValueError("division by zero")
        return checked(left, right)

    return apply


def _bitwise(function: Callable[[int, int], int]) -> Callable[[Value, Value], Number]:
    def apply(left: Value, right: Value) -> Number:
        if isinstance(left, int) and isinstance(right, int):
            return function(left, right)  # of two bools & | ^ make a bool, as Python's do
        return function(integer(left), integer(right))

    return apply


def power(base: Value, exponent: Value) -> Number:
    """`base ** exponent`, exponent 0..62. A float is squared and multiplied, in a fixed order:
    the C library's pow rounds differently from machine to machine."""
    if isinstance(base, int):
        whole: int = int(base) ** integer(exponent)
        return whole
    square, left, result = number(base), integer(exponent), 1.0
    while left:
        if left & 1:
            result *= square
        left >>= 1
        if left:
            square *= square
    return finite(result)


def _shift_right(left: int, right: int) -> int:
    if right < 0:
        raise NoValueError("the right side of >> is negative")
    return left >> min(right, 1 << 20)


def _order(function: Callable[..., bool]) -> Callable[[Value, Value], bool]:
    def apply(left: Value, right: Value) -> bool:
        if isinstance(left, str) != isinstance(right, str):
            raise NoValueError(f"compares {left!r:.60} with {right!r:.60}")
        return function(left, right)

    return apply


BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "+": _checked(operator.add),
    "-": _checked(operator.sub),
    "*": _checked(operator.mul),
    "/": _divide(operator.truediv),
    "//": _divide(operator.floordiv),
    "%": _divide(operator.mod),
    "**": power,
    "<<": _bitwise(operator.lshift),
    ">>": _bitwise(_shift_right),
    "&": _bitwise(operator.and_),
    "|": _bitwise(operator.or_),
    "^": _bitwise(operator.xor),
}
COMPARE: dict[str, Callable[[Value, Value], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": _order(operator.lt),
    "<=": _order(operator.le),
    ">": _order(operator.gt),
    ">=": _order(operator.ge),
}
UNARY: dict[str, Callable[[Value], Value]] = {
    "-": lambda value: -number(value),
    "+": lambda value: +number(value),
    "~": lambda value: -1 - integer(value),
    "not": lambda value: not truth(value),
}


def _extreme(choose: Callable[..., Number]) -> Callable[..., Number]:
    def apply(*values: Value) -> Number:
        numbers = [number(value) for value in values]
        chosen = choose(numbers)
        if any(isinstance(value, float) for value in numbers):
            try:
                return float(chosen)
            except OverflowError:
                raise NoValueError("overflow") from None
        return chosen

    return apply


def cdiv(left: Value, right: Value) -> int:
    """`left / right`, rounded up."""
    if integer(right) == 0:
        raise NoValueError("division by zero")
    return -(-integer(left) // integer(right))


def align(value: Value, step: Value) -> int:
    """`value` rounded up to a multiple of `step`, which is positive."""
    if integer(step) <= 0:
        raise NoValueError(f"the alignment {step} is not positive")
    return cdiv(value, step) * integer(step)


def pow2(exponent: Value) -> int:
    """2 to the `exponent`, 0..62."""
    if not 0 <= integer(exponent) <= 62:
        raise NoValueError(f"the exponent {exponent} is not from 0 to 62")
    return 1 << integer(exponent)


def log2(value: Value) -> int:
    """Return the logarithm of a positive integer to base 2, rounded down."""
    if integer(value) <= 0:
        raise NoValueError(f"the logarithm of {value}, which is not positive")
    return integer(value).bit_length() - 1


def divides(divisor: Value, value: Value) -> bool:
    """Return whether `value` is a multiple of `divisor`."""
    if integer(divisor) == 0:
        raise NoValueError("division by zero")
    return integer(value) % integer(divisor) == 0


CALLS: dict[str, Callable[..., Value]] = {
    "min": _extreme(min),
    "max": _extreme(max),
    "abs": lambda value: abs(number(value)),
    "cdiv": cdiv,
    "align": align,
    "pow2": pow2,
    "log2": log2,
    "divides": divides,
    "gcd": lambda left, right: math.gcd(integer(left), integer(right)),
}
