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


def node_of(tree: Tree) -> Node:
    """The expression that a tree in `script.json` says: the way back from `tree_of`.

    The tree is one that the runtime has read, so its form is right.
    """
    if not isinstance(tree, list):
        return Const(tree)
    kind, *parts = tree
    match kind:
        case "name":
            return Name(str(parts[0]))
        case "unary":
            return Unary(str(parts[0]), node_of(parts[1]))
        case "binary":
            return Binary(str(parts[0]), node_of(parts[1]), node_of(parts[2]))
        case "compare":
            rest = zip(parts[1::2], parts[2::2], strict=True)
            return Compare(node_of(parts[0]), tuple((str(op), node_of(side)) for op, side in rest))
        case "in":
            choices = parts[1] if isinstance(parts[1], list) else []
            return Member(node_of(parts[0]), tuple(map(node_of, choices)), parts[2] is True)
        case "and" | "or":
            return Logic(str(kind), tuple(map(node_of, parts)))
        case "if":
            return Select(node_of(parts[0]), node_of(parts[1]), node_of(parts[2]))
        case "call":
            return Call(str(parts[0]), tuple(map(node_of, parts[1:])))
    raise ValueError(f"no such kind of expression: {kind!r}")
