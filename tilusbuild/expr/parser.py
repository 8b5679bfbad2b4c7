"""Parse the text of an expression: Python's own parser, then a whitelist of its nodes.

Every text gives a tree within the limits below, or an `ExprError` with a column. Nothing is
evaluated.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Iterable
from typing import Any

from tilusbuild.errors import did_you_mean
from tilusbuild.expr import tree as t
from tilusbuild.expr.tree import FUNCTIONS, INT64_MAX, INT64_MIN, ExprError, Node
from tilusbuild.runtime import semantics

MAX_CHARACTERS = 2000
MAX_DEPTH = 100
MAX_EXPONENT = 62
PREFIXES = ("arch", "facts", "resources")


def _map_operators(template: str, operators: Iterable[str]) -> dict[type[ast.AST], str]:
    """Return the operators by the class of Python's syntax node for them.

    `template` is an expression in which `{}` stands for the operator.
    """
    operator_of_class: dict[type[ast.AST], str] = {}
    for operator in operators:
        node: Any = ast.parse(template.format(operator), mode="eval").body
        # A comparison has a list of operators, and other operations have one.
        python_operator = node.ops[0] if isinstance(node, ast.Compare) else node.op
        operator_of_class[type(python_operator)] = operator
    return operator_of_class


BINARY_OPERATORS = _map_operators("1 {} 1", semantics.BINARY)
UNARY_OPERATORS = _map_operators("{} a", semantics.UNARY)
COMPARE_OPERATORS = _map_operators("1 {} 1", semantics.COMPARE)
_ONE_LINE = dict.fromkeys(map(ord, "\r\n\f\v"), " ")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_NUMBER_THEN_WORD = re.compile(r"[0-9][A-Za-z_]|\\")


def parse_text(source: str) -> Node:
    """Return the syntax tree of `source`. Raises `ExprError`."""
    if len(source) > MAX_CHARACTERS:
        raise ExprError(f"the expression has {len(source)} characters, at most {MAX_CHARACTERS}")
    _check_characters(source)
    lead = len(source) - len(source.lstrip())
    # One line: Python's parser would end the expression at a newline outside parentheses.
    text = source[lead:].translate(_ONE_LINE).rstrip()
    if not text:
        raise ExprError("the expression is empty", 1)
    return _TreeReader(text, lead).read_node(_parse_python(text, lead), depth=1)


def parse_value(value: bool | int | float) -> Node:
    """Return the tree of a literal. Raises `ExprError` if it is not finite or beyond 64 bits."""
    return t.Const(check_number(value, None))


def _parse_python(text: str, lead: int) -> ast.expr:
    """Return Python's tree of a text that begins at the column `lead` + 1. Raises `ExprError`."""
    try:
        if _NUMBER_THEN_WORD.search(text):
            # For Python "1if a else 2" and "\d" are only warnings, and here they are mistakes. The
            # filter of warnings belongs to the whole process, so it is changed only for such texts.
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                return ast.parse(text, mode="eval").body
        return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        # Operators of C are looked for only now, since `!` and `?` may stand in strings of a right
        # expression.
        c_operator = _explain_c_operator(text)
        if c_operator is not None:
            message, position = c_operator
            raise ExprError(message, lead + position) from None
        column = lead + error.offset if error.offset and error.offset > 0 else None
        raise ExprError(f"not an expression: {error.msg}", column) from None
    except (RecursionError, MemoryError):
        raise ExprError("the expression is nested too deeply") from None
    except (ValueError, Warning) as error:
        raise ExprError(f"not an expression: {error}") from None


_OPERATORS_OF_C = (
    (re.compile(r"&&"), '"&&" is written "and"'),
    (re.compile(r"\|\|"), '"||" is written "or"'),
    (re.compile(r"!(?!=)"), '"!" is written "not"'),
    (re.compile(r"\?"), '"c ? a : b" is written "a if c else b"'),
    (re.compile(r"\d\s*[kKMG]i?B"), 'a size is a number of bytes: "48 * 1024"'),
    (re.compile(r"(?<![=!<>])=(?!=)"), '"=" compares when it is written "=="'),
)


def _explain_c_operator(text: str) -> tuple[str, int] | None:
    """Return a message about the first operator of C in `text`, and its column from 1.

    None if the text has no operator of C outside of strings.
    """
    outside = _QUOTED.sub(lambda match: "_" * len(match[0]), text)
    for pattern, message in _OPERATORS_OF_C:
        if match := pattern.search(outside):
            return message, match.start() + 1
    return None


def _check_characters(source: str) -> None:
    """Raise `ExprError` for characters outside of ASCII, comments, and line breaks in strings.

    Inside of strings every other character is allowed. A comment is an error since Python's parser
    would drop the rest of the line.
    """
    for match in _QUOTED.finditer(source):
        if "\n" in match[0] or "\r" in match[0]:
            raise ExprError("a line break inside a string", match.start() + 1)
    outside = _QUOTED.sub(lambda match: "_" * len(match[0]), source)
    for position, character in enumerate(outside, 1):
        if character == "#":
            raise ExprError("a comment inside an expression", position)
        if character == "\0" or not character.isascii():
            raise ExprError(f"unexpected character {character!r}", position)


def check_number(value: bool | int | float, column: int | None) -> bool | int | float:
    """Return `value`. Raises `ExprError` if it is not finite or does not fit 64 bits."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ExprError("the number is not finite", column)
    if not isinstance(value, float) and not INT64_MIN <= value <= INT64_MAX:
        raise ExprError("the integer does not fit 64 bits", column)
    return value


class _TreeReader:
    """Converts Python's syntax tree into ours. Each node is checked against the limits.

    `text` is what Python parsed, and `lead` the number of blanks before it. Every method that reads
    a node raises `ExprError`; `depth` is how deep the node is nested, `column` is its column.
    """

    def __init__(self, text: str, lead: int) -> None:
        # In a text of ASCII a position in bytes is one in characters: the bytes are not needed.
        self._bytes = None if text.isascii() else text.encode()
        self._lead = lead

    def _find_column(self, node: ast.expr) -> int:
        """Return the column of a node, in characters from 1."""
        offset = node.col_offset  # in bytes of UTF-8, where users count characters
        if self._bytes is not None:
            offset = len(self._bytes[:offset].decode())
        return self._lead + offset + 1

    def read_node(self, node: ast.expr, depth: int) -> Node:
        """Return our node for a node of Python's and its children. Raises `ExprError` for syntax
        that is not of the expression language, and for more than `MAX_DEPTH` levels."""
        column = self._find_column(node)
        if depth > MAX_DEPTH:
            raise ExprError(f"the expression is nested more than {MAX_DEPTH} deep", column)
        match node:
            case ast.Constant() | ast.Name() | ast.Attribute():
                return self._read_leaf(node, column)
            case ast.UnaryOp():
                return self._read_unary(node, column, depth)
            case ast.BinOp():
                return self._read_binary(node, column, depth)
            case ast.Compare():
                return self._read_comparison(node, column, depth)
            case ast.BoolOp():
                items = tuple(self.read_node(item, depth + 1) for item in node.values)
                op = "and" if isinstance(node.op, ast.And) else "or"
                return t.Logic(op, items, column=column)
            case ast.IfExp():
                # The parts are read in the order of the text, so that its first mistake is
                # reported.
                yes = self.read_node(node.body, depth + 1)
                test = self.read_node(node.test, depth + 1)
                return t.Select(test, yes, self.read_node(node.orelse, depth + 1), column=column)
            case ast.Call():
                return self._read_call(node, column, depth)
            case ast.Tuple() | ast.List():
                message = 'a tuple is only allowed to the right of "in"'
                raise ExprError(f'{message}; write an array of strings: ["n", "1"]', column)
            case _:
                text = f"{ast.unparse(node):.60}"
                raise ExprError(f"{text} is not part of the expression language", column)

    def _read_leaf(self, node: ast.expr, column: int) -> Node:
        """Return a literal, or a name with or without a prefix (`arch.number`)."""
        match node:
            case ast.Constant(value=bool() | int() | float() as number):
                return t.Const(check_number(number, column), column=column)
            case ast.Constant(value=str() as text):
                return t.Const(text, column=column)
            case ast.Constant(value=value):
                raise ExprError(f"{value!r:.40} is not a number, a string or a bool", column)
            case ast.Name(id=name):
                return self._read_name(name, column)
            case ast.Attribute(value=ast.Name(id=prefix), attr=name) if prefix in PREFIXES:
                return t.Name(f"{prefix}.{name}", column=column)
        raise ExprError("attributes are only those of arch and facts", column)

    def _read_name(self, name: str, column: int) -> t.Name:
        """Return a name without a prefix. Raises `ExprError` for a function or a prefix alone."""
        if name in FUNCTIONS:
            raise ExprError(f'"{name}" is a function and needs arguments', column)
        if name in PREFIXES:
            raise ExprError(f'"{name}" has no value of its own: write {name}.<something>', column)
        return t.Name(name, column=column)

    def _read_unary(self, node: ast.UnaryOp, column: int, depth: int) -> Node:
        """Return an operation of one operand; a literal with a sign becomes one constant."""
        op = UNARY_OPERATORS[type(node.op)]
        # Python parses -2**63 as the negation of 2**63, which alone does not fit 64 bits.
        if op == "-" and isinstance(node.operand, ast.Constant) and node.operand.value == 2**63:
            return t.Const(INT64_MIN, column=column)
        operand = self.read_node(node.operand, depth + 1)
        # A literal with a sign is one constant, so that `-5` and `- 5` have one canonical text.
        if op in "+-" and isinstance(operand, t.Const) and type(operand.value) in (int, float):
            value = operand.value if op == "+" else semantics.UNARY["-"](operand.value)
            # The negation of INT64_MIN, 2**63, does not fit 64 bits. The operation stays, and is an
            # error where it is evaluated.
            if value != -INT64_MIN:
                return t.Const(value, column=column)
        return t.Unary(op, operand, column=column)

    def _read_binary(self, node: ast.BinOp, column: int, depth: int) -> t.Binary:
        """Return an operation of two operands. An exponent and a left shift's distance must be
        literals."""
        op = BINARY_OPERATORS.get(type(node.op))
        if op is None:
            name = type(node.op).__name__
            raise ExprError(f"{name} is not part of the expression language", column)
        left = self.read_node(node.left, depth + 1)
        right = self.read_node(node.right, depth + 1)
        # A literal is known to C and to the analysis of ranges, and cannot be as large as 9**9**9.
        is_small_literal = (
            isinstance(right, t.Const)
            and type(right.value) is int
            and 0 <= right.value <= MAX_EXPONENT
        )
        if op in ("**", "<<") and not is_small_literal:
            raise ExprError(
                f'the right side of "{op}" must be a literal from 0 to {MAX_EXPONENT}'
                " (pow2(x) is 2 to the x)",
                right.column,
            )
        for side in (left, right):
            if isinstance(side, t.Const) and isinstance(side.value, str):
                raise ExprError(f'"{op}" needs numbers, not a string', side.column)
        return t.Binary(op, left, right, column=column)

    def _read_comparison(self, node: ast.Compare, column: int, depth: int) -> Node:
        """Return a chain of comparisons, or a single `in`."""
        # Python chains `in` with comparisons (`a < b in c`). Few expect that, so it is an error
        # below.
        if isinstance(node.ops[0], ast.In | ast.NotIn) and len(node.ops) == 1:
            return self._read_membership(node, column, depth)
        first = self.read_node(node.left, depth + 1)
        rest = []
        for operator, right in zip(node.ops, node.comparators, strict=True):
            op = COMPARE_OPERATORS.get(type(operator))
            if op is None:
                if isinstance(operator, ast.In | ast.NotIn):
                    raise ExprError('put "in" inside a chain of comparisons in parentheses', column)
                raise ExprError('compare with "==" and "!=", not with "is"', column)
            rest.append((op, self.read_node(right, depth + 1)))
        return t.Compare(first, tuple(rest), column=column)

    def _read_membership(self, node: ast.Compare, column: int, depth: int) -> t.Member:
        """Return `item in (…)` or `item not in (…)`, with at least one choice."""
        right = node.comparators[0]
        if not isinstance(right, ast.Tuple | ast.List) or not right.elts:
            message = '"in" needs a tuple on its right, such as (1, 2)'
            raise ExprError(message, self._find_column(right))
        item = self.read_node(node.left, depth + 1)
        choices = tuple(self.read_node(choice, depth + 1) for choice in right.elts)
        return t.Member(item, choices, isinstance(node.ops[0], ast.NotIn), column=column)

    def _read_call(self, node: ast.Call, column: int, depth: int) -> Node:
        """Return a call of a function of the language with a right number of arguments, or the name
        of a tensor's alignment, `align(x)`."""
        if not isinstance(node.func, ast.Name):
            raise ExprError("only the functions of the expression language can be called", column)
        name = node.func.id
        if name not in FUNCTIONS:
            hint = did_you_mean(name, FUNCTIONS)
            raise ExprError(f'unknown function "{name}"; {hint}', column)
        if node.keywords:
            raise ExprError(f'"{name}" takes no keyword arguments', column)
        match name, node.args:
            case "align", [ast.Name(id=tensor)]:
                return t.Name(semantics.name_alignment(tensor), column=column)
        fewest, most = FUNCTIONS[name]
        if len(node.args) < fewest or (most is not None and len(node.args) > most):
            count = f"{fewest} argument{'s' if fewest > 1 else ''}"
            expected = count if most == fewest else f"at least {count}"
            raise ExprError(f'"{name}" takes {expected}, not {len(node.args)}', column)
        arguments = tuple(self.read_node(argument, depth + 1) for argument in node.args)
        return t.Call(name, arguments, column=column)
