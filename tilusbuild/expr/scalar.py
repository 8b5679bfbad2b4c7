"""A tree as a Python function of one point, and partial evaluation.

`function_of` makes closures over the operations of `semantics`, with a column for each error: what
an expression means.

`fold` replaces names by constants and computes what then has a value. It never changes what an
expression means: an operation that has no value, or whose value does not fit 64 bits, stays as it
is and fails, or is guarded, where the expression is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilusbuild.expr import tree as t
from tilusbuild.expr.parser import checked_number
from tilusbuild.expr.tree import (
    ExprError,
    Node,
    Value,
    canonical,
    children,
    is_boolean,
    mapped,
)
from tilusbuild.runtime import semantics
from tilusbuild.runtime.semantics import NoValueError, result_of, truth

Scalar = Callable[[Mapping[str, Any]], Value]


def function_of(node: Node) -> Scalar:
    """Return a function of a mapping from names to values. It raises `ExprError`.

    A name whose value is an `ExprError` raises it when, and only when, the name is needed.
    """
    match node:
        case t.Const(value=value):
            return lambda env: value
        case t.Name():
            return _name(node)
        case t.Unary():
            apply, operand = semantics.UNARY[node.op], function_of(node.operand)
            return _located(node, lambda env: apply(operand(env)))
        case t.Binary():
            operation, left, right = (
                semantics.BINARY[node.op],
                function_of(node.left),
                function_of(node.right),
            )
            return _located(node, lambda env: operation(left(env), right(env)))
        case t.Compare():
            rest = [(semantics.COMPARE[op], function_of(right)) for op, right in node.rest]
            return _located(node, semantics.chain(function_of(node.first), rest))
        case t.Member():
            choices = [function_of(choice) for choice in node.choices]
            return semantics.member(function_of(node.item), choices, negated=node.negated)
        case t.Logic():
            items = [function_of(item) for item in node.items]
            return _located(node, semantics.logic(items, node.op == "or"))
        case t.Select():
            test, yes, no = function_of(node.test), function_of(node.yes), function_of(node.no)
            truth = _located(node.test, lambda env: semantics.truth(test(env)))
            return lambda env: yes(env) if truth(env) else no(env)
        case t.Call():
            call, arguments = (
                semantics.CALLS[node.function],
                [function_of(a) for a in node.arguments],
            )
            return _located(node, lambda env: call(*[argument(env) for argument in arguments]))


def _located(node: Node, function: Scalar) -> Scalar:
    def apply(env: Mapping[str, Any]) -> Value:
        try:
            return function(env)
        except NoValueError as error:
            column = node.right.column if isinstance(node, t.Binary) else node.column
            raise ExprError(f"{error} in {canonical(node):.200}", column) from None

    return apply


def _name(node: t.Name) -> Scalar:
    def value_of(env: Mapping[str, Any]) -> Value:
        value = env[node.name]
        if isinstance(value, bool | int | float):
            return checked_number(value, node.column)
        if isinstance(value, str):
            return value
        if isinstance(value, ExprError):
            raise value
        raise ExprError(
            f"{node.name} is not a bool, int, float or str but {type(value).__name__}", node.column
        )

    return value_of


def fold(node: Node, env: Mapping[str, Value]) -> Node:
    """`node` with the names of `env` replaced and everything constant computed."""
    match node:
        case t.Name():
            return t.Const(env[node.name], column=node.column) if node.name in env else node
        case t.Logic():
            return _folded_logic(node, env)
    parts = mapped(node, lambda child: fold(child, env))
    if isinstance(node, t.Select) and isinstance(parts[0], t.Const):
        test, yes, no = parts
        if not isinstance(test.value, str):
            chosen: Node = yes if truth(test.value) else no
            return chosen
    made = type(node)(*parts, column=node.column)
    return made if isinstance(node, t.Select) else _computed(made)


def _computed(node: Node) -> Node:
    if all(isinstance(child, t.Const) for child in children(node)):
        try:
            return t.Const(result_of(function_of(node)({})), column=node.column)
        except (ExprError, NoValueError):
            return node
    return node


def _folded_logic(node: t.Logic, env: Mapping[str, Value]) -> Node:
    """Drop the items that are known, up to the one that decides."""
    stop = node.op == "or"
    kept: list[Node] = []
    for item in node.items:
        folded = fold(item, env)
        if isinstance(folded, t.Const) and not isinstance(folded.value, str):
            if truth(folded.value) != stop:
                continue
            if not kept:
                return t.Const(stop, column=node.column)
            kept.append(t.Const(stop, column=folded.column))
            break
        kept.append(folded)
    if not kept:
        return t.Const(not stop, column=node.column)
    if len(kept) == 1 and is_boolean(kept[0]):
        return kept[0]
    if (
        len(kept) == 1
    ):  # one item alone is not an `and`: keep a neighbour, so that the value is a bool
        kept.append(t.Const(not stop, column=node.column))
    return t.Logic(node.op, tuple(kept), column=node.column)
