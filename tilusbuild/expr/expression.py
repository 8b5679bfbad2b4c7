"""`Expr`: a parsed expression with its four forms. Two are equal when their canonical texts are.

Each form is made at its first use. An `Expr` is immutable to its users.

The scalar form defines the meaning of an expression: closures over the operations of `semantics`,
each with a column for errors. `fold_constants` replaces names by values and computes constant
operations. It keeps the meaning: an operation without a value, or with a value beyond 64 bits,
stays in the tree, and fails only if an evaluation reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilusbuild.errors import did_you_mean
from tilusbuild.expr import tree as t
from tilusbuild.expr.parser import check_number, parse_text, parse_value
from tilusbuild.expr.tree import (
    Const,
    ExprError,
    Name,
    Node,
    Value,
    format_canonical,
    is_boolean,
    list_children,
    map_children,
    walk_tree,
)
from tilusbuild.runtime import semantics
from tilusbuild.runtime.semantics import NoValueError, check_result, to_truth

Scalar = Callable[[Mapping[str, Any]], Value]


class Expr:
    """A parsed expression. `names` are its free names; names of arch and facts contain a dot."""

    __slots__ = ("_function", "_order", "canonical", "names", "source", "tree")

    def __init__(self, source: str, tree: Node) -> None:
        self.source = source
        self.tree = tree
        self.names = frozenset(part.name for part in walk_tree(tree) if isinstance(part, Name))
        self.canonical = format_canonical(tree)
        # Sorted: of several unknown names the same one is reported in every process.
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
        """The value if the expression is a literal, else None."""
        return self.tree.value if isinstance(self.tree, Const) else None

    def evaluate(self, env: Mapping[str, Value]) -> Value:
        """Return the value for these values of the names. Integers fit 64 bits, floats are finite.

        Raises `ExprError` for a name that is missing in `env`, a division by zero, an overflow and
        a wrong type.
        """
        for name in self._order:
            if name not in env:
                raise self._make_unknown_name_error(name, env)
        return self.evaluate_lazily(env)

    def evaluate_lazily(self, env: Mapping[str, Any]) -> Value:
        """Return the value like `evaluate`, but look a name up only when the evaluation reaches it.

        A name that is not reached may be missing. A name whose value is an `ExprError` raises this
        error when it is reached.
        """
        # The function is made at the first use: many expressions are only folded, or written as C.
        if self._function is None:
            self._function = compile_scalar(self.tree)
        try:
            return check_result(self._function(env))
        except NoValueError as error:
            # `check_result` looks at the whole expression, which begins at column 1.
            raise ExprError(str(error), 1) from None

    def _make_unknown_name_error(self, name: str, known: Mapping[str, Any]) -> ExprError:
        hint = did_you_mean(name, known)
        message = f'unknown name "{name}"' + (f"; {hint}" if hint else "")
        return ExprError(message, self.find_column(name))

    def find_column(self, name: str) -> int | None:
        """Return the column (from 1) of the first use of `name`, or None if it is not known."""
        uses = (
            node for node in walk_tree(self.tree) if isinstance(node, Name) and node.name == name
        )
        columns = (node.column for node in uses if node.column is not None)
        return min(columns, default=None)

    def check_names(self, known: Mapping[str, Any] | frozenset[str] | set[str]) -> None:
        """Raise `ExprError`, with a suggestion, for the first free name that is not in `known`."""
        for name in self._order:
            if name not in known:
                raise self._make_unknown_name_error(name, dict.fromkeys(known))

    def substitute(self, env: Mapping[str, Value]) -> Expr:
        """Return the expression with the names of `env` replaced by their values and folded.

        Names that are missing in `env` stay, as do operations without a value. Raises `ExprError`
        for a number that is not finite or beyond 64 bits.
        """
        values = {name: value for name, value in env.items() if name in self.names}
        # A value becomes a literal of the tree, and has the same limits.
        for name, value in values.items():
            if not isinstance(value, str):
                try:
                    parse_value(value)
                except ExprError as error:
                    raise ExprError(f"{name}: {error.message}", self.find_column(name)) from None
        tree = fold_constants(self.tree, values)
        return self if tree == self.tree else Expr(format_canonical(tree), tree)

    def to_c(self, names: Mapping[str, str], types: Mapping[str, str] | None = None) -> str:
        """Return the expression as C11 (and C++) that calls the helpers of `write_c_prelude()`.

        `names` gives the C text of every free name. `types` gives the type of each name that is not
        an integer: "int" (int64_t), "float" (double) or "bool". Raises `ExprError` for a name
        without a C text, and for a string.
        """
        from tilusbuild.expr.c import CWriter

        return CWriter(names, types).write_node(self.tree)[0]

    def find_c_type(self, types: Mapping[str, str] | None = None) -> str:
        """Return the type of the expression in C: "int", "float" or "bool". Raises as `to_c`."""
        from tilusbuild.expr.c import CWriter

        return CWriter(dict.fromkeys(self.names, "x"), types).write_node(self.tree)[1]


def parse_expression(source: str | int | float | bool) -> Expr:
    """Parse a text, or wrap a number or bool as a literal. Raises `ExprError`."""
    if isinstance(source, str):
        return Expr(source, parse_text(source))
    if isinstance(source, bool | int | float):
        return Expr(repr(source), parse_value(source))
    raise ExprError(f"an expression is a string or a number, not {type(source).__name__}")


def write_c_prelude() -> str:
    """Return the C source of the helpers that `Expr.to_c` calls. It includes only <stdint.h>.

    An expression without a value sets the thread-local `int tb_expr_error` to 1 (division by zero),
    2 (overflow) or 3 (an argument outside of a function's domain); the number that it gives then is
    meaningless. To report errors in another way, define `TB_EXPR_FAIL(code)` before the prelude.
    """
    from tilusbuild.expr.c import PRELUDE

    return PRELUDE


def compile_scalar(node: Node) -> Scalar:
    """Return a function that computes the value of `node` from a mapping of names to values.

    The function raises `ExprError`. A name whose value is an `ExprError` raises this error, and
    only if the evaluation reaches the name.
    """
    match node:
        case t.Const(value=value):
            return lambda env: value
        case t.Name():
            return _read_variable(node)
        case t.Unary():
            apply, operand = semantics.UNARY[node.op], compile_scalar(node.operand)
            return _locate_errors(node, lambda env: apply(operand(env)))
        case t.Binary():
            operation = semantics.BINARY[node.op]
            left, right = compile_scalar(node.left), compile_scalar(node.right)
            return _locate_errors(node, lambda env: operation(left(env), right(env)))
        case t.Compare():
            rest = [(semantics.COMPARE[op], compile_scalar(right)) for op, right in node.rest]
            return _locate_errors(
                node, semantics.chain_comparisons(compile_scalar(node.first), rest)
            )
        case t.Member():
            choices = [compile_scalar(choice) for choice in node.choices]
            return semantics.make_membership(
                compile_scalar(node.item), choices, negated=node.negated
            )
        case t.Logic():
            items = [compile_scalar(item) for item in node.items]
            return _locate_errors(node, semantics.combine_conditions(items, node.op == "or"))
        case t.Select():
            test = compile_scalar(node.test)
            yes, no = compile_scalar(node.yes), compile_scalar(node.no)
            # If the test has no truth value (a string), the error has the column of the test.
            truth = _locate_errors(node.test, lambda env: semantics.to_truth(test(env)))
            return lambda env: yes(env) if truth(env) else no(env)
        case t.Call():
            call = semantics.CALLS[node.function]
            arguments = [compile_scalar(argument) for argument in node.arguments]
            return _locate_errors(
                node, lambda env: call(*[argument(env) for argument in arguments])
            )


def _locate_errors(node: Node, function: Scalar) -> Scalar:
    """Return `function` with its `NoValueError` raised as `ExprError` at the column of `node`."""

    def evaluate_located(env: Mapping[str, Any]) -> Value:
        """Return the value of `function`. Raises `ExprError` with the column and the text."""
        try:
            return function(env)
        except NoValueError as error:
            # In a binary operation the right side is at fault: a divisor, or a shift's distance.
            column = node.right.column if isinstance(node, t.Binary) else node.column
            raise ExprError(f"{error} in {format_canonical(node):.200}", column) from None

    return evaluate_located


def _read_variable(node: t.Name) -> Scalar:
    """Return a function that looks the name up and checks its value, as a literal is checked. It
    raises `ExprError`, and the value itself if that is an `ExprError`."""

    def read_value(env: Mapping[str, Any]) -> Value:
        """Return the name's value in `env`. Raises `ExprError`."""
        value = env[node.name]
        if isinstance(value, bool | int | float):
            return check_number(value, node.column)
        if isinstance(value, str):
            return value
        if isinstance(value, ExprError):
            raise value
        raise ExprError(
            f"{node.name} is not a bool, int, float or str but {type(value).__name__}", node.column
        )

    return read_value


def fold_constants(node: Node, env: Mapping[str, Value]) -> Node:
    """Return `node` with the names of `env` replaced by values, and constants computed. An `if`
    with a constant test becomes the side that the test selects."""
    match node:
        case t.Name():
            return t.Const(env[node.name], column=node.column) if node.name in env else node
        case t.Logic():
            return _fold_logic(node, env)
    folded_fields = map_children(node, lambda child: fold_constants(child, env))
    folded_node = type(node)(*folded_fields, column=node.column)
    if not isinstance(folded_node, t.Select):
        return _compute_constant(folded_node)
    test = folded_node.test
    if isinstance(test, t.Const) and not isinstance(test.value, str):
        # The other side may have no value for these constants, as in `m // k if k else 0`.
        return folded_node.yes if to_truth(test.value) else folded_node.no
    return folded_node


def _compute_constant(node: Node) -> Node:
    """Return `node` as a Const if all its children are constant and it has a value, else `node`."""
    if all(isinstance(child, t.Const) for child in list_children(node)):
        try:
            return t.Const(check_result(compile_scalar(node)({})), column=node.column)
        # The operation stays, so that it is an error only if an evaluation reaches it.
        except (ExprError, NoValueError):
            return node
    return node


def _fold_logic(node: t.Logic, env: Mapping[str, Value]) -> Node:
    """Return `node` without its constant items, cut after the first that decides the value."""
    # A true item decides an `or`, and a false one an `and`.
    deciding = node.op == "or"
    undecided: list[Node] = []
    for item in node.items:
        folded = fold_constants(item, env)
        if isinstance(folded, t.Const) and not isinstance(folded.value, str):
            if to_truth(folded.value) != deciding:
                continue
            if not undecided:
                return t.Const(deciding, column=node.column)
            # The items before it may have no value, which is an error: they stay in front of it.
            undecided.append(t.Const(deciding, column=folded.column))
            break
        undecided.append(folded)
    if not undecided:
        return t.Const(not deciding, column=node.column)
    if len(undecided) == 1 and is_boolean(undecided[0]):
        return undecided[0]
    # The value of the only item may be a number, and that of the whole must stay a bool: a second
    # item that decides nothing keeps the `and` or `or`.
    if len(undecided) == 1:
        undecided.append(t.Const(not deciding, column=node.column))
    return t.Logic(node.op, tuple(undecided), column=node.column)
