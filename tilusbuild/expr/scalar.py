"""A tree as Python functions of one point, and partial evaluation.

There are two functions. `careful` is the definition: closures over the operations of `semantics`,
with a column for each error. `quick` is for the common case that everything is an integer: one
compiled lambda over the same operations of Python itself, without names, attributes or builtins
beyond those it was given. Where `quick` raises anything, `careful` says what it means.

`fold` replaces names by constants and computes what then has a value. It never changes what an
expression means: an operation that has no value, or whose value does not fit 64 bits, stays as it
is and fails, or is guarded, where the expression is evaluated.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilusbuild.expr import tree as t
from tilusbuild.expr.tree import (
    INT64_MAX,
    INT64_MIN,
    ExprError,
    Node,
    Value,
    canonical,
    children,
    is_boolean,
    walk,
)
from tilusbuild.runtime import semantics
from tilusbuild.runtime.semantics import NoValueError, result_of, truth

Careful = Callable[[Mapping[str, Any]], Value]


def careful(node: Node) -> Careful:
    """Return a function of a mapping from names to values. It raises `ExprError`.

    A name whose value is an `ExprError` raises it when, and only when, the name is needed.
    """
    match node:
        case t.Const(value=value):
            return lambda env: value
        case t.Name():
            return _name(node)
        case t.Unary():
            apply, operand = semantics.UNARY[node.op], careful(node.operand)
            return _located(node, lambda env: apply(operand(env)))
        case t.Binary():
            operation, left, right = (
                semantics.BINARY[node.op],
                careful(node.left),
                careful(node.right),
            )
            return _located(node, lambda env: operation(left(env), right(env)))
        case t.Compare():
            rest = [(semantics.COMPARE[op], careful(right)) for op, right in node.rest]
            return _located(node, semantics.chain(careful(node.first), rest))
        case t.Member():
            choices = [careful(choice) for choice in node.choices]
            return semantics.member(careful(node.item), choices, negated=node.negated)
        case t.Logic():
            items = [careful(item) for item in node.items]
            return _located(node, semantics.logic(items, node.op == "or"))
        case t.Select():
            test, yes, no = careful(node.test), careful(node.yes), careful(node.no)
            truth = _located(node.test, lambda env: semantics.truth(test(env)))
            return lambda env: yes(env) if truth(env) else no(env)
        case t.Call():
            call, arguments = semantics.CALLS[node.function], [careful(a) for a in node.arguments]
            return _located(node, lambda env: call(*[argument(env) for argument in arguments]))


def _located(node: Node, function: Careful) -> Careful:
    def apply(env: Mapping[str, Any]) -> Value:
        try:
            return function(env)
        except NoValueError as error:
            column = node.right.column if isinstance(node, t.Binary) else node.column
            raise ExprError(f"{error} in {canonical(node):.200}", column) from None

    return apply


def _name(node: t.Name) -> Careful:
    def value_of(env: Mapping[str, Any]) -> Value:
        value = env[node.name]
        if isinstance(value, int):
            if INT64_MIN <= value <= INT64_MAX:
                return value
            raise ExprError(f"overflow: {node.name} does not fit 64 bits", column=node.column)
        if isinstance(value, float):
            if math.isfinite(value):
                return value
            raise ExprError(f"{node.name} is not finite", column=node.column)
        if isinstance(value, str):
            return value
        if isinstance(value, ExprError):
            raise value
        raise ExprError(
            f"{node.name} is not a bool, int, float or str but {type(value).__name__}", node.column
        )

    return value_of


def quick(node: Node, names: Sequence[str]) -> Callable[..., Value] | None:
    """Return a function of integers, one for each of `names`; None for a tree that is not of
    integers.

    It may raise anything where `careful` has an error, and only there or where a choice of `in`
    that is not needed has none.
    """
    for part in walk(node):
        if isinstance(part, t.Const) and not isinstance(part.value, int):
            return None
        if isinstance(part, t.Binary) and part.op == "/":
            return None
    letters = {name: f"v{position}" for position, name in enumerate(names)}
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(arg=letter) for letter in letters.values()],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    tree = ast.Expression(ast.Lambda(args=arguments, body=_python(node, letters)))
    code = compile(ast.fix_missing_locations(tree), "<expression>", "eval")
    # The tree was built here, node by node, from a checked one: no text of the user's is run.
    function: Callable[..., Value] = eval(code, {"__builtins__": {}, **_QUICK})  # noqa: S307
    return function


_QUICK: dict[str, Any] = {
    "min": min,
    "max": max,
    "abs": abs,
    "cdiv": lambda left, right: -(-left // right),
    "align": semantics.align,
    "pow2": semantics.pow2,
    "log2": semantics.log2,
    "divides": lambda divisor, value: value % divisor == 0,
    "gcd": math.gcd,
}
_OPERATORS: dict[str, ast.operator] = {
    "+": ast.Add(),
    "-": ast.Sub(),
    "*": ast.Mult(),
    "//": ast.FloorDiv(),
    "%": ast.Mod(),
    "**": ast.Pow(),
    "<<": ast.LShift(),
    ">>": ast.RShift(),
    "&": ast.BitAnd(),
    "|": ast.BitOr(),
    "^": ast.BitXor(),
}
_SIGNS: dict[str, ast.unaryop] = {"-": ast.USub(), "+": ast.UAdd(), "not": ast.Not()}
_COMPARISONS: dict[str, ast.cmpop] = {
    "==": ast.Eq(),
    "!=": ast.NotEq(),
    "<": ast.Lt(),
    "<=": ast.LtE(),
    ">": ast.Gt(),
    ">=": ast.GtE(),
}


def _python(node: Node, letters: Mapping[str, str]) -> ast.expr:
    def below(child: Node) -> ast.expr:
        return _python(child, letters)

    match node:
        case t.Const():
            return ast.Constant(node.value)
        case t.Name():
            return ast.Name(letters[node.name], ast.Load())
        case t.Unary():
            if node.op == "~":  # as a difference: ~True is deprecated in Python
                return ast.BinOp(ast.Constant(-1), ast.Sub(), below(node.operand))
            return ast.UnaryOp(_SIGNS[node.op], below(node.operand))
        case t.Binary():
            return ast.BinOp(below(node.left), _OPERATORS[node.op], below(node.right))
        case t.Compare():
            operators = [_COMPARISONS[op] for op, _ in node.rest]
            return ast.Compare(below(node.first), operators, [below(r) for _, r in node.rest])
        case t.Member():
            choices = ast.Tuple([below(choice) for choice in node.choices], ast.Load())
            contains = ast.NotIn() if node.negated else ast.In()
            return ast.Compare(below(node.item), [contains], [choices])
        case t.Logic():
            return _decision(node, letters)
        case t.Select():
            return ast.IfExp(below(node.test), below(node.yes), below(node.no))
        case t.Call():
            function = ast.Name(node.function, ast.Load())
            return ast.Call(function, [below(argument) for argument in node.arguments], [])


def _decision(node: t.Logic, letters: Mapping[str, str]) -> ast.expr:
    items = [_condition(item, letters) for item in node.items]
    if len(items) == 1:  # Python's `and` has two sides at least
        return items[0]
    return ast.BoolOp(ast.And() if node.op == "and" else ast.Or(), items)


def _condition(node: Node, letters: Mapping[str, str]) -> ast.expr:
    """`node` as a bool, so that `and` and `or` give one."""
    value = _python(node, letters)
    if is_boolean(node):
        return value
    return ast.Compare(value, [ast.NotEq()], [ast.Constant(0)])


def fold(node: Node, env: Mapping[str, Value]) -> Node:
    """`node` with the names of `env` replaced and everything constant computed."""
    match node:
        case t.Name():
            return t.Const(env[node.name], column=node.column) if node.name in env else node
        case t.Unary():
            return _computed(t.Unary(node.op, fold(node.operand, env), column=node.column))
        case t.Binary():
            left, right = fold(node.left, env), fold(node.right, env)
            return _computed(t.Binary(node.op, left, right, column=node.column))
        case t.Compare():
            rest = tuple((op, fold(right, env)) for op, right in node.rest)
            return _computed(t.Compare(fold(node.first, env), rest, column=node.column))
        case t.Member():
            choices = tuple(fold(choice, env) for choice in node.choices)
            item = fold(node.item, env)
            return _computed(t.Member(item, choices, node.negated, column=node.column))
        case t.Logic():
            return _folded_logic(node, env)
        case t.Select():
            test, yes, no = fold(node.test, env), fold(node.yes, env), fold(node.no, env)
            if isinstance(test, t.Const) and not isinstance(test.value, str):
                return yes if truth(test.value) else no
            return t.Select(test, yes, no, column=node.column)
        case t.Call():
            arguments = tuple(fold(argument, env) for argument in node.arguments)
            return _computed(t.Call(node.function, arguments, column=node.column))
        case _:
            return node


def _computed(node: Node) -> Node:
    if all(isinstance(child, t.Const) for child in children(node)):
        try:
            return t.Const(result_of(careful(node)({})), column=node.column)
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
