"""Expressions as a deployment has them: a tree in JSON, turned into a function once.

A number, a boolean or a string stands for itself. Everything else is an array whose first item says
what it is:

    ["name", "m"]                            a size, a constant
    ["unary", "-", x]                        - + ~ not
    ["binary", "//", x, y]                   + - * / // % ** << >> & | ^
    ["compare", x, "<", y, "<=", z]          a chain
    ["in", x, [y, z], false]                 true: not in
    ["and", x, y], ["or", x, y]
    ["if", test, yes, no]
    ["call", "cdiv", x, y]

The values are those of `semantics`. Depth is limited, so that a hostile tree is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias

from tilusbuild.runtime.semantics import (
    BINARY,
    CALLS,
    COMPARE,
    UNARY,
    NoValueError,
    Value,
    result_of,
    truth,
)

Function: TypeAlias = Callable[[Mapping[str, Value]], Value]

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
    (name,) = _strings(parts)
    return lambda env: env[name]


def _strings(parts: list[Any]) -> list[str]:
    if len(parts) != 1 or not isinstance(parts[0], str):
        raise TypeError("a name is one string")
    return parts


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

    def compare(env: Mapping[str, Value]) -> Value:
        left = first(env)
        for holds, other in rest:
            right = other(env)
            if not holds(left, right):
                return False
            left = right
        return True

    return compare


def _member(parts: list[Any], depth: int) -> Function:
    item, negated = _made(parts[0], depth), parts[2] is True
    choices = [_made(choice, depth) for choice in parts[1]]
    equal = COMPARE["=="]

    def member(env: Mapping[str, Value]) -> Value:
        value = item(env)
        return any(equal(value, choice(env)) for choice in choices) is not negated

    return member


def _all_of(parts: list[Any], depth: int) -> Function:
    items = _items(parts, depth)
    return lambda env: all(truth(item(env)) for item in items)


def _items(parts: list[Any], depth: int) -> list[Function]:
    if not parts:
        raise TypeError("there is nothing to decide")
    return [_made(part, depth) for part in parts]


def _any_of(parts: list[Any], depth: int) -> Function:
    items = _items(parts, depth)
    return lambda env: any(truth(item(env)) for item in items)


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
    "and": _all_of,
    "or": _any_of,
    "if": _select,
    "call": _call,
}
