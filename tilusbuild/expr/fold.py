"""Partial evaluation: names become constants, and what then has a value becomes that value.

Folding never changes what an expression means: an operation that has no value, or whose value does
not fit 64 bits, stays as it is and goes wrong, or is guarded, where the expression is evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilusbuild.expr.errors import ExprError
from tilusbuild.expr.scalar import careful
from tilusbuild.expr.semantics import NoValueError, result_of, truth
from tilusbuild.expr.tree import (
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
    children,
    is_boolean,
)


def fold(node: Node, env: Mapping[str, Value]) -> Node:
    """`node` with the names of `env` replaced and everything constant computed."""
    match node:
        case Name():
            return Const(env[node.name], node.column) if node.name in env else node
        case Unary():
            return _computed(Unary(node.op, fold(node.operand, env), node.column))
        case Binary():
            left, right = fold(node.left, env), fold(node.right, env)
            return _computed(Binary(node.op, left, right, node.column))
        case Compare():
            rest = tuple((op, fold(right, env)) for op, right in node.rest)
            return _computed(Compare(fold(node.first, env), rest, node.column))
        case Member():
            choices = tuple(fold(choice, env) for choice in node.choices)
            item = fold(node.item, env)
            return _computed(Member(item, choices, node.negated, node.column))
        case Logic():
            return _logic(node, env)
        case Select():
            test, yes, no = fold(node.test, env), fold(node.yes, env), fold(node.no, env)
            if isinstance(test, Const) and not isinstance(test.value, str):
                return yes if truth(test.value) else no
            return Select(test, yes, no, node.column)
        case Call():
            arguments = tuple(fold(argument, env) for argument in node.arguments)
            return _computed(Call(node.function, arguments, node.column))
        case _:
            return node


def _computed(node: Node) -> Node:
    if all(isinstance(child, Const) for child in children(node)):
        try:
            return Const(result_of(careful(node)({})), node.column)
        except (ExprError, NoValueError):
            return node
    return node


def _logic(node: Logic, env: Mapping[str, Value]) -> Node:
    """Drop the items that are known, up to the one that decides."""
    stop = node.op == "or"
    kept: list[Node] = []
    for item in node.items:
        folded = fold(item, env)
        if isinstance(folded, Const) and not isinstance(folded.value, str):
            if truth(folded.value) != stop:
                continue
            if not kept:
                return Const(stop, node.column)
            kept.append(Const(stop, folded.column))
            break
        kept.append(folded)
    if not kept:
        return Const(not stop, node.column)
    if len(kept) == 1 and is_boolean(kept[0]):
        return kept[0]
    if len(kept) == 1:  # one item alone is no `and`: keep a neighbour, so that the value is a bool
        kept.append(Const(not stop, node.column))
    return Logic(node.op, tuple(kept), node.column)
