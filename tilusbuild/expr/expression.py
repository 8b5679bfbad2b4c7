"""`Expr`: a parsed expression with its four forms. Two are equal when their canonical texts are.

The forms are made at their first use. An `Expr` never changes in any way that can be seen.

The scalar form is closures over the operations of `semantics`, with a column for each error: what
an expression means. `fold` replaces names by constants and computes what then has a value. It never
changes what an expression means: an operation that has no value, or whose value does not fit 64
bits, stays as it is and fails, or is guarded, where the expression is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilusbuild.errors import did_you_mean
from tilusbuild.expr import tree as t
from tilusbuild.expr.parser import checked_number, parse_text, parse_value
from tilusbuild.expr.tree import (
    Const,
    ExprError,
    Name,
    Node,
    Value,
    canonical,
    children,
    is_boolean,
    mapped,
    walk,
)
from tilusbuild.runtime import semantics
from tilusbuild.runtime.semantics import NoValueError, result_of, truth

Scalar = Callable[[Mapping[str, Any]], Value]


class Expr:
    """A parsed expression. `names` are its free names; those of arch and facts are dotted."""

    __slots__ = ("_function", "_order", "canonical", "names", "source", "tree")

    def __init__(self, source: str, tree: Node) -> None:
        self.source = source
        self.tree = tree
        self.names = frozenset(part.name for part in walk(tree) if isinstance(part, Name))
        self.canonical = canonical(tree)
        self._order = tuple(sorted(self.names))
        self._function: Scalar | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self.canonical == other.canonical

    def __hash__(self) -> int:
        return hash(self.canonical)

    def __repr__(self) -> str:
        return f"Expr({self.source!r})"

    @property
    def constant(self) -> Value | None:
        """The value, when the expression is a literal."""
        return self.tree.value if isinstance(self.tree, Const) else None

    def evaluate(self, env: Mapping[str, Value]) -> Value:
        """Return the value at one point; an integer fits 64 bits and a float is finite.

        Raises `ExprError`: a name that is not in `env`, a division by zero, an overflow, a
        wrong type.
        """
        for name in self._order:
            if name not in env:
                raise self._unknown(name, env)
        return self.evaluate_lazily(env)

    def evaluate_lazily(self, env: Mapping[str, Any]) -> Value:
        """`evaluate`, where those names that the value does not depend on may be missing, or be an
        `ExprError`, which is raised when the name is needed."""
        if self._function is None:
            self._function = function_of(self.tree)
        try:
            return result_of(self._function(env))
        except NoValueError as error:
            raise ExprError(str(error), 1) from None

    def _unknown(self, name: str, known: Mapping[str, Any]) -> ExprError:
        hint = did_you_mean(name, known)
        message = f'unknown name "{name}"' + (f"; {hint}" if hint else "")
        return ExprError(message, self.column_of(name))

    def column_of(self, name: str) -> int | None:
        """Return the column (from 1) where `name` stands first."""
        columns = [p.column for p in walk(self.tree) if isinstance(p, Name) and p.name == name]
        return min((c for c in columns if c is not None), default=None)

    def check_names(self, known: Mapping[str, Any] | frozenset[str] | set[str]) -> None:
        """Raise `ExprError` with a suggestion if a free name is not in `known`."""
        for name in self._order:
            if name not in known:
                raise self._unknown(name, dict.fromkeys(known))

    def substitute(self, env: Mapping[str, Value]) -> Expr:
        """Return the expression with the names of `env` replaced by their values, and folded.

        Names that are not in `env` stay. An operation without a value stays too.
        """
        replaced = {name: value for name, value in env.items() if name in self.names}
        for name, value in replaced.items():
            if not isinstance(value, str):
                try:
                    parse_value(value)
                except ExprError as error:
                    raise ExprError(f"{name}: {error.message}", self.column_of(name)) from None
        tree = fold(self.tree, replaced)
        return self if tree == self.tree else Expr(canonical(tree), tree)

    def c(self, names: Mapping[str, str], types: Mapping[str, str] | None = None) -> str:
        """Return the expression in C11 (and C++), over the helpers of `c_prelude()`.

        `names` gives the C text of every free name, `types` their types where they are not
        integers: "int" (int64_t), "float" (double) or "bool". Raises `ExprError` for what C cannot
        say: a name without a C text, a string.
        """
        from tilusbuild.expr.c import CWriter

        return CWriter(names, types).write(self.tree)[0]

    def c_type(self, types: Mapping[str, str] | None = None) -> str:
        """Return the type that `c` gives its value: "int", "float" or "bool". Raises as `c`."""
        from tilusbuild.expr.c import CWriter

        return CWriter(dict.fromkeys(self.names, "x"), types).write(self.tree)[1]


def parse(source: str | int | float | bool) -> Expr:
    """Return the expression that `source` says, or the literal that it is. Raises `ExprError`."""
    if isinstance(source, str):
        return Expr(source, parse_text(source))
    if isinstance(source, bool | int | float):
        return Expr(repr(source), parse_value(source))
    raise ExprError(f"an expression is a string or a number, not {type(source).__name__}")


def c_prelude() -> str:
    """C source of the helpers that `Expr.c` calls; it includes nothing but <stdint.h>.

    An expression without a value sets the thread-local `int tb_expr_error` to 1 (division by zero),
    2 (overflow) or 3 (an argument outside a function's domain), and gives any number. To report it
    in another way, define `TB_EXPR_FAIL(code)` before the prelude.
    """
    from tilusbuild.expr.c import PRELUDE

    return PRELUDE


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
