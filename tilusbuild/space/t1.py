"""Read a tuning space from a T1 file, the JSON format of Kernel Tuner, KTT and the benchmark hub.

A T1 file has values as Python text, such as "[2**i for i in range(6)]", which other tools evaluate.
This reader parses the text, and accepts lists, ranges, simple comprehensions and sums of lists over
numbers. Conditions become expressions of our language. Nothing in the file is run. However short
its text is, a file makes at most `MAX_STEPS` values, those that are thrown away included.
"""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from tilusbuild.expr import Expr, ExprError, Value, parse_expression
from tilusbuild.expr.parser import BINARY_OPERATORS, COMPARE_OPERATORS, UNARY_OPERATORS
from tilusbuild.runtime import semantics
from tilusbuild.space.model import Parameter, SpaceError

MAX_VALUES = 100_000
"""Values of one list."""
MAX_STEPS = 1_000_000
"""Operands, operations and elements of ranges in one file."""
MAX_TEXT = 100_000
MAX_INTEGER = 2**63
_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int, float),  # files in use have 0.5 among integers; it stays what it is
    "uint": (int,),
    "float": (float, int),
    "bool": (bool,),
    "string": (str,),
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_QUOTED_OR_C_LOGIC = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|&&|\|\|")


class T1Space(Struct, frozen=True):
    """The space of a T1 file. `default` has the defaults that are among a parameter's values."""

    parameters: tuple[Parameter, ...]
    restrict: tuple[tuple[str, Expr], ...]
    default: Mapping[str, Value]


def read_t1(text: str) -> T1Space:
    """Return the space of a T1 file's text. Raises `SpaceError` that names the entry."""
    try:
        document = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise SpaceError(f"not a T1 file: not JSON: {error}") from None
    space = _read_member(document, "ConfigurationSpace", dict, "the file")
    entries = _read_member(space, "TuningParameters", list, "ConfigurationSpace")
    # Of two parameters with one name the last one counts, at the position of the first: published
    # files have such names, and Kernel Tuner reads them so.
    maker = _ValueMaker()
    declared = (_read_parameter(number, entry, maker) for number, entry in enumerate(entries, 1))
    parameters = tuple({parameter.names: parameter for parameter in declared}.values())
    conditions = space.get("Conditions") or []
    if not isinstance(conditions, list):
        raise SpaceError('not a T1 file: "Conditions" is not a list')
    restrict = (_read_condition(number, entry) for number, entry in enumerate(conditions, 1))
    default = {p.names[0]: p.default[0] for p in parameters if p.default is not None}
    return T1Space(parameters, tuple(restrict), default)


def _read_member(parent: Any, key: str, kind: type, where: str) -> Any:
    """Return the value of `key` in a JSON object. Raises `SpaceError`, whose message calls the
    object `where`, if `parent` is not an object, or has no such value of the type `kind`."""
    value = parent.get(key) if isinstance(parent, dict) else None
    if not isinstance(value, kind):
        raise SpaceError(f'not a T1 file: {where} has no "{key}" of the right type')
    return value


def _read_parameter(number: int, entry: Any, maker: _ValueMaker) -> Parameter:
    """Return a parameter of the file. Raises `SpaceError` that names it."""
    name = _read_member(entry, "Name", str, f"tuning parameter {number}")
    if not _NAME.match(name):
        raise SpaceError(f'"{name}" is not a name', rule=name)
    kind = _read_member(entry, "Type", str, f'the parameter "{name}"')
    if kind not in _TYPES:
        raise SpaceError(
            f'the parameter "{name}" has the unknown type "{kind}"',
            rule=name,
            hint="known: " + ", ".join(_TYPES),
        )
    values = _read_values(name, entry.get("Values"), maker)
    checked_values = (_check_type(name, kind, value) for value in values)
    default = entry.get("Default")
    # Some published files have the default in a list.
    if isinstance(default, list) and len(default) == 1:
        default = default[0]
    # Each value once: rows must differ.
    rows = tuple((value,) for value in dict.fromkeys(checked_values))
    default_row = None if default is None else (_check_type(name, kind, default),)
    # Published files have defaults that are not among the values. Such a default is ignored. Of 2.0
    # and 2, which are equal, the default is the one that is a value.
    return Parameter((name,), rows, default=next((row for row in rows if row == default_row), None))


def _check_type(name: str, kind: str, value: Any) -> Value:
    """Return `value`, as a float if `kind` is "float". Raises `SpaceError` if it is not of the T1
    type `kind`, or does not fit in 64 bits."""
    # For Python a bool is an int, and here it is not a number.
    is_misplaced_bool = isinstance(value, bool) and kind != "bool"
    has_type = isinstance(value, _TYPES[kind]) and not is_misplaced_bool
    if not has_type or (kind == "uint" and value < 0):
        raise SpaceError(
            f'the parameter "{name}": {value!r:.60} is not of the type {kind}', rule=name
        )
    # JSON, as Python reads it, has integers of any length, NaN and infinity.
    number = 0 if isinstance(value, str) else value
    if not (abs(number) < MAX_INTEGER if isinstance(number, int) else math.isfinite(number)):
        message = f'the parameter "{name}": {value!r:.60} does not fit in 64 bits'
        raise SpaceError(message, rule=name)
    return float(value) if kind == "float" else value


def _read_values(name: str, text: Any, maker: _ValueMaker) -> list[Any]:
    """Return the values of the parameter `name`: `text` is a list, or Python text such as
    "[1, 2, 4]". Raises `SpaceError`."""
    if isinstance(text, list):
        return text
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise SpaceError(f'the parameter "{name}" has no "Values"', rule=name)
    try:
        with warnings.catch_warnings():
            # Python's parser would print a warning for `1if x`. Here it is raised as a mistake.
            warnings.simplefilter("error")
            tree = ast.parse(text.strip(), mode="eval").body
        return maker.read_list(tree)
    except (SyntaxError, ValueError, Warning) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
    except (RecursionError, MemoryError):
        reason = "nested too deeply"
    raise SpaceError(
        f'the values of "{name}" are not understood: {reason}',
        rule=name,
        hint='understood: "[1, 2, 4]", "range(1, 9)", "[2**i for i in range(6)]" and their sums',
    )


class _ValueMaker:
    """Makes the values of a file from their syntax trees, at most `MAX_STEPS`. Each method raises
    `ValueError` for other syntax, and once there are too many."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS

    def _count_steps(self, number: int) -> None:
        self._steps -= number
        if self._steps < 0:
            raise ValueError(f"the file's values take more than {MAX_STEPS:,} steps")

    def read_list(self, node: ast.expr) -> list[Any]:
        """Return the values of a list, a tuple, a range, a comprehension or a sum of these."""
        values: list[Any] = []
        self._append_values(node, values)
        return values

    def _append_values(self, node: ast.expr, values: list[Any]) -> None:
        """Append what `read_list` returns: a sum of many lists would copy each of them again and
        again."""
        match node:
            case ast.List() | ast.Tuple():
                values += [self._evaluate_scalar(item, {}) for item in node.elts]
            case ast.Call(func=ast.Name(id="list" | "tuple"), args=[inner], keywords=[]):
                self._append_values(inner, values)
            case ast.Call(func=ast.Name(id="range")):
                values += self._read_range(node)
            case ast.BinOp(op=ast.Add()):
                self._append_values(node.left, values)
                self._append_values(node.right, values)
            case ast.ListComp(generators=[generator]) | ast.GeneratorExp(generators=[generator]):
                self._expand_comprehension(node.elt, generator, values)
            case _:
                raise ValueError(f"{ast.unparse(node):.60}")
        if len(values) > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES:,} values")

    def _expand_comprehension(
        self, element: ast.expr, generator: ast.comprehension, values: list[Any]
    ) -> None:
        """Append the values of `[element for … in … if …]`."""
        if not isinstance(generator.target, ast.Name) or generator.is_async:
            raise ValueError("a comprehension over more than one name")
        name = generator.target.id
        for value in self.read_list(generator.iter):
            env = {name: value}
            if all(self._evaluate_scalar(condition, env) for condition in generator.ifs):
                values.append(self._evaluate_scalar(element, env))

    def _read_range(self, node: ast.Call) -> range:
        """Return the range that a call of `range` makes."""
        bounds = [self._evaluate_scalar(argument, {}) for argument in node.args]
        if node.keywords or not 1 <= len(bounds) <= 3 or not all(type(b) is int for b in bounds):
            raise ValueError(f"{ast.unparse(node):.60}")
        values = range(*bounds)
        # A range knows its length without making its values, so a huge one is refused in time.
        if len(values) > MAX_VALUES:
            raise ValueError(f"a range of {len(values):,} values, at most {MAX_VALUES:,}")
        self._count_steps(len(values))
        return values

    def _evaluate_scalar(self, node: ast.expr, env: Mapping[str, Any]) -> Any:
        """Return the number, string or bool of an expression over the names of `env`.

        The operations are those of the expression language.
        """
        self._count_steps(1)
        evaluate = self._evaluate_scalar
        try:
            match node:
                case ast.Constant(value=bool() | int() | float() | str()):
                    value: Any = node.value
                case ast.Name(id=name) if name in env:
                    value = env[name]
                case ast.UnaryOp():
                    operand = evaluate(node.operand, env)
                    value = semantics.UNARY[UNARY_OPERATORS[type(node.op)]](operand)
                case ast.BinOp() if type(node.op) in BINARY_OPERATORS:
                    left, right = evaluate(node.left, env), evaluate(node.right, env)
                    value = _apply_operator(BINARY_OPERATORS[type(node.op)], left, right)
                case ast.Compare(ops=[op]) if type(op) in COMPARE_OPERATORS:
                    left, right = evaluate(node.left, env), evaluate(node.comparators[0], env)
                    value = semantics.COMPARE[COMPARE_OPERATORS[type(op)]](left, right)
                case _:
                    raise ValueError(f"{ast.unparse(node):.60}")
        except semantics.NoValueError as error:
            raise ValueError(f"{error} in {ast.unparse(node):.60}") from None
        if isinstance(value, int) and abs(value) >= MAX_INTEGER:
            raise ValueError(f"{ast.unparse(node):.60} is too large")
        return value


def _apply_operator(op: str, left: Any, right: Any) -> Any:
    """Return `left op right`. Raises `NoValueError`.

    The exponent may be computed, unlike in an expression, since both operands are known.
    """
    if op in ("**", "<<") and not (type(right) is int and 0 <= right <= 62):
        raise semantics.NoValueError("an exponent that is not from 0 to 62")
    return semantics.BINARY[op](left, right)


def _read_condition(number: int, entry: Any) -> tuple[str, Expr]:
    """Return a condition with its name, `condition_1` and so on; C's `&&` and `||` are read as
    `and` and `or`. Raises `SpaceError`."""
    name = f"condition_{number}"
    text = _read_member(entry, "Expression", str, f"condition {number}")
    # `a > 1 && b != "x&&y"` becomes `a > 1 and b != "x&&y"`: a quoted text is replaced by itself.
    python_words = {"&&": " and ", "||": " or "}
    source = _QUOTED_OR_C_LOGIC.sub(
        lambda match: python_words.get(match[0], match[0]), text.strip()
    )
    try:
        return name, parse_expression(source)
    except ExprError as error:
        raise SpaceError(
            f"condition {number}, {text!r:.120}: {error.message}", rule=name, column=error.column
        ) from None
