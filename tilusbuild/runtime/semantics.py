"""What each operation of an expression means, on Python values: what all its forms agree with.

Integers are exact; a float is always finite; a bool counts as 0 or 1; a string can only be
compared. An operation without a value raises `NoValueError`; the caller knows where it stands.

A deployment has an expression as a tree in JSON, which `function_of` turns into a function once. A
number, a boolean or a string stands for itself. Everything else is an array whose first item says
what it is:

    ["name", "m"]                            a size, a constant
    ["unary", "-", x]                        - + ~ not
    ["binary", "//", x, y]                   + - * / // % ** << >> & | ^
    ["compare", x, "<", y, "<=", z]          a chain
    ["in", x, [y, z], false]                 true: not in
    ["and", x, y], ["or", x, y]
    ["if", test, yes, no]
    ["call", "cdiv", x, y]

Depth is limited, so that a hostile tree is an error.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

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


Function: TypeAlias = Callable[[Mapping[str, Any]], Value]
"""An expression, or a part of one, as a function of the values of its names."""


def chain(
    first: Function, rest: Sequence[tuple[Callable[[Value, Value], bool], Function]]
) -> Function:
    """Return `a < b <= c`, which reads no more sides than it must."""

    def holds(env: Mapping[str, Any]) -> Value:
        left = first(env)
        for compare, right_of in rest:
            right = right_of(env)
            if not compare(left, right):
                return False
            left = right
        return True

    return holds


def member(item: Function, choices: Sequence[Function], *, negated: bool) -> Function:
    """Return `item in [choices]`, or `not in`."""

    def contains(env: Mapping[str, Any]) -> Value:
        value = item(env)
        return any(value == choice(env) for choice in choices) != negated

    return contains


def logic(items: Sequence[Function], stop: bool) -> Function:
    """Return `and`, which stops at the first that is false, or `or`, at the first that is true."""
    return lambda env: any(truth(item(env)) == stop for item in items) == stop


_DEPTH = 100


def function_of(tree: object, known: Collection[str]) -> Function:
    """Return the tree as a function of the values of the names in `known`.

    Raises `ValueError` for what is not a tree, or has other names. The function raises
    `NoValueError` where the expression has no value.
    """
    inner = _made(tree, _DEPTH)
    for name in sorted(names_in(tree)):
        if name not in known:
            raise ValueError(f"nothing in the expression can be called {name!r:.80}")
    return lambda env: result_of(inner(env))


def names_in(tree: object) -> frozenset[str]:
    """Return the names in a tree that `function_of` takes."""
    return frozenset(_names(tree))


def _names(tree: object) -> Iterator[str]:
    """Of a tree that `_made` has read."""
    if not isinstance(tree, list):
        return
    kind, *parts = tree
    if kind == "name":
        yield parts[0]
        return
    if kind == "in":
        parts = [parts[0], *parts[1]]
    for part in parts:
        yield from _names(part)


def _made(tree: object, depth: int) -> Function:
    if isinstance(tree, bool | int | float | str):
        return lambda _: tree
    if not isinstance(tree, list) or not tree or depth == 0:
        raise ValueError("no expression, or one nested too deeply")
    kind, *parts = tree
    make = _MAKERS.get(kind) if isinstance(kind, str) else None
    if make is None:
        raise ValueError(f"no such kind of expression: {kind!r:.80}")
    try:
        return make(parts, depth - 1)
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"malformed expression of kind {kind}: {error}") from None


def _name(parts: list[Any], depth: int) -> Function:
    (name,) = parts if len(parts) == 1 else (None,)
    if not isinstance(name, str):
        raise TypeError("a name is one string")
    return lambda env: env[name]


def _unary(parts: list[Any], depth: int) -> Function:
    apply, operand = UNARY[parts[0]], _made(parts[1], depth)
    return lambda env: apply(operand(env))


def _binary(parts: list[Any], depth: int) -> Function:
    apply, left, right = BINARY[parts[0]], _made(parts[1], depth), _made(parts[2], depth)
    if parts[0] in ("**", "<<") and not (type(parts[2]) is int and 0 <= parts[2] <= 62):
        raise TypeError("the right side of ** and << is a number from 0 to 62")
    return lambda env: apply(left(env), right(env))


def _compare(parts: list[Any], depth: int) -> Function:
    first = _made(parts[0], depth)
    if len(parts) % 2 == 0:
        raise TypeError("a side is missing")
    rest = [
        (COMPARE[op], _made(right, depth))
        for op, right in zip(parts[1::2], parts[2::2], strict=True)
    ]
    return chain(first, rest)


def _member(parts: list[Any], depth: int) -> Function:
    item, choices = _made(parts[0], depth), [_made(choice, depth) for choice in parts[1]]
    return member(item, choices, negated=parts[2] is True)


def _logic(parts: list[Any], depth: int, stop: bool) -> Function:
    if not parts:
        raise TypeError("there is nothing to decide")
    return logic([_made(part, depth) for part in parts], stop)


def _select(parts: list[Any], depth: int) -> Function:
    test, yes, no = (_made(part, depth) for part in (parts[0], parts[1], parts[2]))
    return lambda env: yes(env) if truth(test(env)) else no(env)


def _call(parts: list[Any], depth: int) -> Function:
    apply = CALLS[parts[0]]
    arguments = [_made(part, depth) for part in parts[1:]]
    if not arguments:
        raise TypeError("a call has arguments")

    def call(env: Mapping[str, Value]) -> Value:
        values = [argument(env) for argument in arguments]
        try:
            return apply(*values)
        except TypeError as error:
            raise NoValueError(str(error)) from None

    return call


_MAKERS: dict[str, Callable[[list[Any], int], Function]] = {
    "name": _name,
    "unary": _unary,
    "binary": _binary,
    "compare": _compare,
    "in": _member,
    "and": partial(_logic, stop=False),
    "or": partial(_logic, stop=True),
    "if": _select,
    "call": _call,
}
