"""An expression as the tree in JSON that a deployment reads (`tilusbuild.runtime.expression`)."""

from __future__ import annotations

from typing import TypeAlias

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
)

Tree: TypeAlias = "bool | int | float | str | list[Tree]"


def tree_of(node: Node) -> Tree:
    """The tree of a parsed expression."""
    match node:
        case Const():
            return node.value
        case Name():
            return ["name", node.name]
        case Unary():
            return ["unary", node.op, tree_of(node.operand)]
        case Binary():
            return ["binary", node.op, tree_of(node.left), tree_of(node.right)]
        case Compare():
            rest = [part for op, right in node.rest for part in (op, tree_of(right))]
            return ["compare", tree_of(node.first), *rest]
        case Member():
            choices = [tree_of(choice) for choice in node.choices]
            return ["in", tree_of(node.item), choices, node.negated]
        case Logic():
            return [node.op, *(tree_of(item) for item in node.items)]
        case Select():
            return ["if", tree_of(node.test), tree_of(node.yes), tree_of(node.no)]
        case Call():
            return ["call", node.function, *(tree_of(part) for part in node.arguments)]
