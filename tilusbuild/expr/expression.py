"""`Expr`: a parsed expression with its four forms. Two are equal when their canonical texts are.

The forms are made at their first use. An `Expr` never changes in any way that can be seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilusbuild.errors import did_you_mean
from tilusbuild.expr.parser import parse_text, parse_value
from tilusbuild.expr.scalar import Scalar, fold, function_of
from tilusbuild.expr.tree import (
    Const,
    ExprError,
    Name,
    Node,
    Value,
    canonical,
    walk,
)
from tilusbuild.runtime.semantics import NoValueError, result_of


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
