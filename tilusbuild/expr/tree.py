"""The syntax tree of an expression: the parser returns it, and all four forms are made from it.

Nodes are immutable. Two nodes are equal if all their fields but the source column are equal.
`format_canonical` writes a text that parses to the same tree. The text does not depend on the
version of Python, so it may enter a hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from msgspec import Struct


class ExprError(Exception):
    """An expression cannot be parsed, or has no value. `column` counts from 1 in the source."""

    def __init__(self, message: str, column: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.column = column


Value: TypeAlias = bool | int | float | str

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

FUNCTIONS: dict[str, tuple[int, int | None]] = {  # name: fewest and most arguments
    "min": (2, None),
    "max": (2, None),
    "abs": (1, 1),
    "cdiv": (2, 2),
    "align": (2, 2),
    "pow2": (1, 1),
    "log2": (1, 1),
    "divides": (2, 2),
    "gcd": (2, 2),
}


class _Node(Struct, frozen=True, kw_only=True, eq=False):
    column: int | None = None

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.list_fields() == other.list_fields()

    def __hash__(self) -> int:
        return hash(self.list_fields())

    def list_fields(self) -> tuple[Any, ...]:
        # A keyword-only field comes last: `column`, which is not compared.
        return tuple(getattr(self, name) for name in self.__struct_fields__[:-1])


class Const(_Node, frozen=True):
    value: Value


class Name(_Node, frozen=True):
    name: str


class Unary(_Node, frozen=True):
    """`op` is one of - + ~ not."""

    op: str
    operand: Node


class Binary(_Node, frozen=True):
    """`op` is one of + - * / // % ** << >> & | ^. The exponent of ** and << is a Const 0..62."""

    op: str
    left: Node
    right: Node


class Compare(_Node, frozen=True):
    """A chain `first op node op node …`; `op` is one of == != < <= > >=."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


class Member(_Node, frozen=True):
    """`item in (choices)`, or `not in` when `negated`: `item == a or item == b or …`."""

    item: Node
    choices: tuple[Node, ...]
    negated: bool


class Logic(_Node, frozen=True):
    """`op` is `and` or `or`; the value is always a bool."""

    op: str
    items: tuple[Node, ...]


class Select(_Node, frozen=True):
    """`yes if test else no`."""

    test: Node
    yes: Node
    no: Node


class Call(_Node, frozen=True):
    function: str
    arguments: tuple[Node, ...]


Node: TypeAlias = Const | Name | Unary | Binary | Compare | Member | Logic | Select | Call


def list_children(node: Node) -> tuple[Node, ...]:
    """Return the direct children of `node`, in the order of its fields."""
    # `map_children` knows which fields are nodes; its result is not needed here.
    nodes: list[Any] = []
    map_children(node, nodes.append)
    return tuple(nodes)


def map_children(node: Node, function: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return the fields of `node` but its column, each direct child replaced by `function(child)`.

    Children inside of tuples are replaced too.
    """

    def map_field(field: Any) -> Any:
        if isinstance(field, tuple):
            return tuple(map(map_field, field))
        return function(field) if isinstance(field, _Node) else field

    return tuple(map(map_field, node.list_fields()))


def walk_tree(node: Node) -> Iterator[Node]:
    """Yield `node` and all its descendants, in no particular order."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(list_children(current))


def is_boolean(node: Node) -> bool:
    """Return whether the value of `node` is a bool for all values of its names."""
    match node:
        case Const():
            return isinstance(node.value, bool)
        case Unary():
            return node.op == "not"
        case Call():
            return node.function == "divides"
        case _:
            # `&`, `|` and `^` of two bools are bools, too. False for these is safe: it only makes
            # the caller add a conversion.
            return isinstance(node, Compare | Member | Logic)


def is_number(node: Node, is_number_name: Callable[[str], bool]) -> bool:
    """Return whether the value of `node` is a number or a text, and not a bool, for some values of
    its names. `is_number_name` says so of a name."""
    match node:
        case Name():
            return is_number_name(node.name)
        case Select():
            return is_number(node.yes, is_number_name) or is_number(node.no, is_number_name)
        case Binary(op="&" | "|" | "^"):
            return is_number(node.left, is_number_name) or is_number(node.right, is_number_name)
        case Logic():
            # As in C, a name, bits and a remainder may be tested for zero there.
            return any(
                is_number(item, is_number_name)
                for item in node.items
                if not isinstance(item, Name)
                and not (isinstance(item, Binary) and item.op in ("&", "|", "^", "%"))
            )
        case _:
            return not is_boolean(node)


def format_canonical(node: Node) -> str:
    """Return the text of a tree with one space around each operator and all parentheses."""
    match node:
        case Const():
            return _format_constant(node.value)
        case Name():
            return node.name
        case Unary():
            gap = " " if node.op == "not" else ""
            return f"({node.op}{gap}{format_canonical(node.operand)})"
        case Binary():
            return f"({format_canonical(node.left)} {node.op} {format_canonical(node.right)})"
        case Compare():
            chain = "".join(f" {op} {format_canonical(right)}" for op, right in node.rest)
            return f"({format_canonical(node.first)}{chain})"
        case Member():
            word = "not in" if node.negated else "in"
            # The last choice has a comma, too: without it a tuple of one would parse as a number.
            choices = " ".join(f"{format_canonical(choice)}," for choice in node.choices)
            return f"({format_canonical(node.item)} {word} ({choices}))"
        case Logic():
            return "(" + f" {node.op} ".join(format_canonical(item) for item in node.items) + ")"
        case Select():
            test = format_canonical(node.test)
            yes, no = format_canonical(node.yes), format_canonical(node.no)
            return f"({yes} if {test} else {no})"
        case Call():
            arguments = ", ".join(format_canonical(argument) for argument in node.arguments)
            return f"{node.function}({arguments})"


def _format_constant(value: Value) -> str:
    """Return the text of a literal; a negative number is in parentheses."""
    if isinstance(value, str):
        return ascii(value)  # a hash may not depend on which characters this Python prints
    # `repr` of a float is the shortest text that reads as the same float.
    text = repr(value)
    # Without parentheses `-1 ** 2` would be the negation of a power.
    return f"({text})" if text.startswith("-") else text
