"""Defines each operation of an expression on Python values. All forms of expressions agree with it.

Integers are exact; a float is always finite; a bool counts as 0 or 1; a string can only be
compared. An operation without a value raises `NoValueError`, to which the caller adds the position.

A deployment has an expression as a tree in JSON, which `build_function` turns into a function once.
A number, a boolean or a string stands for itself. Every other node is an array, whose first item is
its kind:

    ["name", "m"]                            a size, a constant
    ["unary", "-", x]                        - + ~ not
    ["binary", "//", x, y]                   + - * / // % ** << >> & | ^
    ["compare", x, "<", y, "<=", z]          a chain
    ["in", x, [y, z], false]                 true: not in
    ["and", x, y], ["or", x, y]
    ["if", test, yes, no]
    ["call", "cdiv", x, y]
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from tilusbuild.runtime.errors import check_types

Value: TypeAlias = bool | int | float | str

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
MAX_BITS = 16384
"""Of an integer power: an intermediate result may exceed 64 bits."""

Number = bool | int | float


class NoValueError(Exception):
    """An operation has no value; the text says why."""


def to_python_number(value: Any) -> Any:
    """Return Python's own number for a scalar of NumPy or an array without dimensions, and any
    other value as it is."""
    is_array = hasattr(value, "item") and hasattr(value, "dtype")
    # torch's scalars (`data_ptr`) may be on a GPU: reading one would wait for it.
    if is_array and not hasattr(value, "data_ptr") and value.shape == ():
        return value.item()
    return value


def check_constants(params: Mapping[str, Any]) -> dict[str, Value]:
    """Return constants by name, with Python's own numbers for NumPy's. Raises `TypeError` for
    a value that no constant has."""
    values = {name: to_python_number(value) for name, value in params.items()}
    check_types(**{name: (value, bool, int, float, str) for name, value in values.items()})
    return values


def check_finite(result: Number) -> Number:
    """Return the result. Raises `NoValueError` for an infinite float and for NaN."""
    if type(result) is float and not math.isfinite(result):
        raise NoValueError("overflow")
    return result


def to_number(value: Value) -> Number:
    """Return the value as an operand of arithmetic. Raises `NoValueError` for a string."""
    if isinstance(value, str):
        raise NoValueError(f"needs numbers, not the string {value!r:.60}")
    return value


def to_integer(value: Value) -> int:
    """Return the value as an operand of integer arithmetic. Raises `NoValueError` for a float or a
    string."""
    if isinstance(value, int):
        return int(value)
    raise NoValueError(f"needs integers, not {value!r:.60}")


def to_truth(value: Value) -> bool:
    """Return the value as a condition: a number is true unless zero. Raises `NoValueError`."""
    return to_number(value) != 0


def check_result(value: Value) -> Value:
    """Return the value of a whole expression. Raises `NoValueError` for one beyond 64 bits."""
    if type(value) is int and not INT64_MIN <= value <= INT64_MAX:
        raise NoValueError("overflow: the value does not fit 64 bits")
    return value


def _wrap_operator(
    function: Callable[..., Number], convert: Callable[[Value], Number]
) -> Callable[[Value, Value], Number]:
    """Return an operation on two values that are converted by `convert`, with Python's errors as
    `NoValueError`."""

    def apply_function(left: Value, right: Value) -> Number:
        try:
            return check_finite(function(convert(left), convert(right)))
        except OverflowError:
            raise NoValueError("overflow") from None
        except ZeroDivisionError:
            raise NoValueError("division by zero") from None

    return apply_function


def _check_integer(value: Value) -> int:
    # A bool is not converted: & | ^ of two bools make a bool, as in Python.
    return value if isinstance(value, int) else to_integer(value)


def raise_to_power(base: Value, exponent: Value) -> Number:
    """Return `base ** exponent`, exponent 0..62."""
    # Squared and multiplied in a fixed order: the C library's pow rounds differently from machine
    # to machine, and generated C does the same steps.
    if isinstance(base, int):
        # A power of a power would take all time and memory; products are as long as their text.
        if base.bit_length() * to_integer(exponent) > MAX_BITS:
            raise NoValueError("overflow")
        integer_power: int = int(base) ** to_integer(exponent)
        return integer_power
    square, remaining, result = to_number(base), to_integer(exponent), 1.0
    while remaining:
        if remaining & 1:
            result *= square
        remaining >>= 1
        if remaining:
            square *= square
    return check_finite(result)


def _shift_right(left: int, right: int) -> int:
    if right < 0:
        raise NoValueError("the right side of >> is negative")
    return left >> right


def _wrap_order(function: Callable[..., bool]) -> Callable[[Value, Value], bool]:
    """Return a comparison that raises `NoValueError` for a string beside a number."""

    def apply_order(left: Value, right: Value) -> bool:
        if isinstance(left, str) != isinstance(right, str):
            raise NoValueError(f"compares {left!r:.60} with {right!r:.60}")
        return function(left, right)

    return apply_order


BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "+": _wrap_operator(operator.add, to_number),
    "-": _wrap_operator(operator.sub, to_number),
    "*": _wrap_operator(operator.mul, to_number),
    "/": _wrap_operator(operator.truediv, to_number),
    "//": _wrap_operator(operator.floordiv, to_number),
    "%": _wrap_operator(operator.mod, to_number),
    "**": raise_to_power,
    "<<": _wrap_operator(operator.lshift, _check_integer),
    ">>": _wrap_operator(_shift_right, _check_integer),
    "&": _wrap_operator(operator.and_, _check_integer),
    "|": _wrap_operator(operator.or_, _check_integer),
    "^": _wrap_operator(operator.xor, _check_integer),
}
COMPARE: dict[str, Callable[[Value, Value], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": _wrap_order(operator.lt),
    "<=": _wrap_order(operator.le),
    ">": _wrap_order(operator.gt),
    ">=": _wrap_order(operator.ge),
}
UNARY: dict[str, Callable[[Value], Value]] = {
    "-": lambda value: -to_number(value),
    "+": lambda value: +to_number(value),
    "~": lambda value: -1 - to_integer(value),
    "not": lambda value: not to_truth(value),
}


def _wrap_extreme(choose: Callable[..., Number]) -> Callable[..., Number]:
    """Return `min` or `max` of numbers. The result is a float when one of the numbers is. It raises
    `NoValueError` for a string, and for an integer beyond the floats."""

    def apply_extreme(*values: Value) -> Number:
        numbers = [to_number(value) for value in values]
        chosen = choose(numbers)
        if any(isinstance(value, float) for value in numbers):
            try:
                return float(chosen)
            except OverflowError:
                raise NoValueError("overflow") from None
        return chosen

    return apply_extreme


divide_rounding_up = _wrap_operator(lambda left, right: -(-left // right), to_integer)


def align_up(value: Value, step: Value) -> Number:
    """Return the value, rounded up to a multiple of `step`, which is positive."""
    if to_integer(step) <= 0:
        raise NoValueError(f"the alignment {step} is not positive")
    return divide_rounding_up(value, step) * to_integer(step)


def power_of_two(exponent: Value) -> int:
    """Return 2 to the exponent, 0..62."""
    if not 0 <= to_integer(exponent) <= 62:
        raise NoValueError(f"the exponent {exponent} is not from 0 to 62")
    return 1 << to_integer(exponent)


def floor_log2(value: Value) -> int:
    """Return the logarithm of a positive integer to base 2, rounded down."""
    if to_integer(value) <= 0:
        raise NoValueError(f"the logarithm of {value}, which is not positive")
    return to_integer(value).bit_length() - 1


CALLS: dict[str, Callable[..., Value]] = {
    "min": _wrap_extreme(min),
    "max": _wrap_extreme(max),
    "abs": lambda value: abs(to_number(value)),
    "cdiv": divide_rounding_up,
    "align": align_up,
    "pow2": power_of_two,
    "log2": floor_log2,
    "divides": _wrap_operator(lambda divisor, value: value % divisor == 0, to_integer),
    "gcd": _wrap_operator(math.gcd, to_integer),
}


MAX_ALIGNMENT = 256
"""The largest value of `align(x)`: that of an address without a tensor, too."""


def name_alignment(tensor: str) -> str:
    """Return the name that `align(x)`, the alignment of a tensor's address, has in expressions."""
    return f"align({tensor})"


def is_alignment(name: str) -> bool:
    """Return whether a name of an expression is one of `name_alignment`."""
    return name.endswith(")")


Function: TypeAlias = Callable[[Mapping[str, Any]], Value]
"""An expression, or a part of one, as a function of the values of its names."""


def chain_comparisons(
    first: Function, rest: Sequence[tuple[Callable[[Value, Value], bool], Function]]
) -> Function:
    """Return the function of a chain such as `a < b <= c`. `rest` has each comparison and its right
    side. After the first comparison that is false no further side is evaluated."""

    def evaluate_chain(env: Mapping[str, Any]) -> Value:
        left = first(env)
        for compare, evaluate_right in rest:
            right = evaluate_right(env)
            if not compare(left, right):
                return False
            left = right
        return True

    return evaluate_chain


def make_membership(item: Function, choices: Sequence[Function], *, negated: bool) -> Function:
    """Return the function of `item in [choices]`; of `not in` with `negated`."""

    def evaluate_membership(env: Mapping[str, Any]) -> Value:
        value = item(env)
        return any(value == choice(env) for choice in choices) != negated

    return evaluate_membership


def combine_conditions(items: Sequence[Function], stop: bool) -> Function:
    """Return the function of `and` (`stop` is False) or `or` (`stop` is True). After the first item
    whose truth equals `stop` no further item is evaluated."""

    def evaluate_conditions(env: Mapping[str, Any]) -> Value:
        was_stopped = any(to_truth(item(env)) == stop for item in items)
        # `or` is true if an item was true, and `and` is false if an item was false: in both cases
        # the result is `stop`, and else its opposite.
        return was_stopped == stop

    return evaluate_conditions


_MAX_DEPTH = 100


def build_function(tree: object, known: Collection[str]) -> Function:
    """Return the tree as a function of the values of the names in `known`.

    Raises `ValueError` for a malformed tree, and for other names. The function raises
    `NoValueError` when the expression has no value.
    """
    evaluate = _build_node(tree, _MAX_DEPTH)
    # Sorted, so that the error is the same on every run.
    for name in sorted(collect_names(tree)):
        if name not in known:
            raise ValueError(f"nothing in the expression can be called {name!r:.80}")
    return lambda env: check_result(evaluate(env))


def collect_names(tree: object) -> frozenset[str]:
    """Return the names in a tree that `build_function` takes."""
    if not isinstance(tree, list):
        return frozenset()
    kind, *parts = tree
    if kind == "name":
        return frozenset(parts)
    if kind == "in":
        # The choices, the second part, are a list of trees, and not a tree.
        parts = [parts[0], *parts[1]]
    return frozenset().union(*map(collect_names, parts))


def _build_node(tree: object, depth: int) -> Function:
    """Return a tree as a function of names. Raises `ValueError` if the tree is malformed, or has
    more than `depth` levels."""
    if isinstance(tree, bool | int | float | str):
        return lambda _: tree
    # A package's expression could be nested more deeply than Python's stack.
    if not isinstance(tree, list) or not tree or depth == 0:
        raise ValueError("no expression, or one nested too deeply")
    kind, *parts = tree
    try:
        return _build_operation(kind, parts, depth - 1)
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"malformed expression of kind {kind!r:.80}: {error}") from None


def _build_operation(kind: object, parts: list[Any], depth: int) -> Function:
    """Return an operation as a function. Raises `ValueError`, and for a wrong number or kind of
    `parts` also `IndexError`, `KeyError` or `TypeError`."""
    build = partial(_build_node, depth=depth)
    match kind, parts:
        case "name", [str() as name]:
            return lambda env: env[name]
        case "unary", [operator_name, operand]:
            function, inner = UNARY[operator_name], build(operand)
            return lambda env: function(inner(env))
        case "binary", [operator_name, left, right]:
            # A huge power would take all memory of a deployment, which evaluates the expression.
            if operator_name in ("**", "<<") and not (type(right) is int and 0 <= right <= 62):
                raise TypeError("the right side of ** and << is a number from 0 to 62")
            combine, first_side, second_side = BINARY[operator_name], build(left), build(right)
            return lambda env: combine(first_side(env), second_side(env))
        case "compare", [first, *rest] if len(rest) % 2 == 0:
            pairs = zip(rest[::2], rest[1::2], strict=True)
            return chain_comparisons(build(first), [(COMPARE[op], build(x)) for op, x in pairs])
        case "in", [item, choices, negated]:
            return make_membership(build(item), [*map(build, choices)], negated=negated is True)
        case "and" | "or", [_, *_]:
            return combine_conditions([*map(build, parts)], stop=kind == "or")
        case "if", [condition, if_true, if_false]:
            test, yes, no = build(condition), build(if_true), build(if_false)
            return lambda env: yes(env) if to_truth(test(env)) else no(env)
        case "call", [name, _, *_]:
            return _build_call(CALLS[name], [*map(build, parts[1:])])
    raise TypeError("no such kind, or not its parts")


def _build_call(function: Callable[..., Value], arguments: Sequence[Function]) -> Function:
    """Return the call of `function` as a function of names. The result raises `NoValueError` for a
    wrong number of arguments."""

    def evaluate_call(env: Mapping[str, Any]) -> Value:
        values = [argument(env) for argument in arguments]
        try:
            return function(*values)
        except TypeError as error:
            # The number of arguments is not checked when a tree is read.
            raise NoValueError(str(error)) from None

    return evaluate_call
