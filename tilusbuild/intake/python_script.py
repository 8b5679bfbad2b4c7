"""A Python script, walked from its first statement on and never run: what its calls are given.

Of values, those are followed that scripts build spaces, sources and sizes of; anything else is
None, and so is what is computed of it. A branch whose condition is not known is walked as well, a
loop's body once for each item, or once without what it changes where the items are not known, and a
function of the script with the values of each call. The script is not trusted: numbers, texts,
lists and the number of steps are bounded.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tilusbuild.space.t1 import MAX_VALUES

_MAX_TEXT, _MAX_BITS, _MAX_STEPS, _MAX_DEPTH = 1 << 20, 1 << 10, 1_000_000, 8
"""Characters or items, bits of a number, expressions that are looked at, calls within calls."""
_MAX_COMPREHENSION = 50_000
"""Expressions that are looked at for one list: data that a script makes is not followed."""

_LEAVES = (ast.Break, ast.Continue, ast.Return)
_CHANGES = frozenset({"append", "extend", "insert", "pop", "remove", "clear"})
"""Methods of lists that change them."""

Values: TypeAlias = dict[str, object]
Function: TypeAlias = ast.FunctionDef | ast.Lambda
"""A function is a value, as the tree that defines it."""


@dataclass(frozen=True, slots=True)
class Template:
    """A Jinja2 template that a script renders: its text, or the name of its file."""

    text: str


@dataclass(slots=True)
class Script:
    """One script: `found` is called with each call of `wanted`, and what is known there; `missed`
    of those that the walk did not come to."""

    name: str
    wanted: str
    found: Callable[[ast.Call, Values], None]
    missed: Callable[[ast.Call], None]
    _names: set[str] = field(default_factory=set)
    """What `wanted` is called in the script."""
    _seen: set[int] = field(default_factory=set)
    _steps: int = 0
    _depth: int = 0
    _entered: set[int] | None = None
    _globals: Values | None = None

    def walk(self, text: str) -> None:
        """Walk a script, and then the functions that nothing in it calls. Raises `SyntaxError`."""
        tree = ast.parse(text)
        self._names = {self.wanted, *_aliases(tree, self.wanted)}
        self._entered, self._globals = set(), {"__file__": self.name, "__name__": "__main__"}
        self._run(tree.body, self._globals)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and id(node) not in self._entered:
                self._call(node, [], {})
        for node in ast.walk(tree):
            is_wanted = isinstance(node, ast.Call) and _called(node) in self._names
            if isinstance(node, ast.Call) and is_wanted and id(node) not in self._seen:
                self.missed(node)

    def _run(self, statements: Iterable[ast.stmt], known: Values) -> object:
        """Walk statements, and return what they return."""
        result: object = None
        for statement in statements:
            returned = self._statement(statement, known)
            result = returned if returned is not None else result
        return result

    def _statement(self, node: ast.stmt, known: Values) -> object:  # noqa: C901
        self._steps += 1
        match node:
            case ast.Assign():
                value = self.value(node.value, known)
                for target in node.targets:
                    self._bind(target, value, known)
            case ast.AnnAssign(value=ast.expr() as given):
                self._bind(node.target, self.value(given, known), known)
            case ast.AugAssign(target=ast.Name(id=name)):
                joined = ast.BinOp(ast.Name(name), node.op, node.value)
                known[name] = self.value(joined, known)
            case ast.With():
                for item in node.items:
                    opened = self.value(item.context_expr, known)
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars, opened, known)
                return self._run(node.body, known)
            case ast.For():
                return self._loop(node, known)
            case ast.If() | ast.While():
                test = self.value(node.test, known)
                skipped = isinstance(test, bool)
                if isinstance(node, ast.While):
                    _forget(node, known)
                body = node.body if not skipped or test else []
                return self._run([*body, *(node.orelse if not skipped or not test else [])], known)
            case ast.Try():
                return self._run([*node.body, *node.orelse, *node.finalbody], known)
            case ast.FunctionDef():
                known[node.name] = node
            case ast.Return() | ast.Expr():
                value = self.value(node.value, known) if node.value else None
                return value if isinstance(node, ast.Return) else None
        return None

    def _loop(self, node: ast.For, known: Values) -> object:
        items = self.value(node.iter, known)
        rounds: Sequence[object] = items if isinstance(items, list) else [None]
        if not isinstance(items, list) or any(isinstance(each, _LEAVES) for each in _inside(node)):
            rounds = [None]
            _forget(node, known)
        result: object = None
        for item in rounds:
            if not self.is_whole:
                break
            self._bind(node.target, item, known)
            returned = self._run(node.body, known)
            result = returned if returned is not None else result
        returned = self._run(node.orelse, known)
        return returned if returned is not None else result

    def _bind(self, target: ast.expr, value: object, known: Values) -> None:
        match target:
            case ast.Name(id=name):
                known[name] = value
            case ast.Subscript(value=ast.Name(id=name)):
                table, key = known.get(name), self.value(target.slice, known)
                if isinstance(table, dict) and isinstance(key, str):
                    table[key] = value
            case ast.Tuple() | ast.List():
                same = isinstance(value, list) and len(value) == len(target.elts)
                values = value if same and isinstance(value, list) else [None] * len(target.elts)
                for each, part in zip(target.elts, values, strict=True):
                    self._bind(each, part, known)

    def value(self, node: ast.expr, known: Values) -> object:  # noqa: C901
        """Return what an expression is, as far as it can be read; None for what cannot."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            return None
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return known.get(node.id)
            case ast.Lambda():
                return node
            case ast.List() | ast.Tuple():
                return [self.value(item, known) for item in node.elts]
            case ast.Dict():
                return self._table(node, known)
            case ast.Call():
                return self._result(node, known)
            case ast.BinOp():
                left, right = self.value(node.left, known), self.value(node.right, known)
                return _operation(node.op, left, right)
            case ast.JoinedStr():
                return self._formatted(node, known)
            case ast.UnaryOp(op=ast.USub()):
                return _operation(ast.Sub(), 0, self.value(node.operand, known))
            case ast.Compare(ops=[ast.Eq()]):
                pair = self.value(node.left, known), self.value(node.comparators[0], known)
                return None if None in pair else pair[0] == pair[1]
            case ast.Subscript():
                return self._item(node, known)
            case ast.Attribute():
                return _attribute(self.value(node.value, known), node.attr)
            case ast.ListComp(generators=[ast.comprehension(target=ast.Name(id=name), ifs=[])]):
                return self._listed(node, name, known)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.value(child, known)
        return None

    def _formatted(self, node: ast.JoinedStr, known: Values) -> str | None:
        text = ""
        for part in node.values:
            plain = not isinstance(part, ast.FormattedValue) or (
                part.conversion == -1 and part.format_spec is None
            )
            given = part.value if isinstance(part, ast.FormattedValue) else part
            value = self.value(given, known)
            if not plain or not isinstance(value, str | int) or len(text) > _MAX_TEXT:
                return None
            text += str(value)
        return text

    def _listed(self, node: ast.ListComp, name: str, known: Values) -> object:
        items, end = self.value(node.generators[0].iter, known), self._steps + _MAX_COMPREHENSION
        found = []
        for item in items if isinstance(items, list) else ():
            if self._steps > end:
                return None
            found.append(self.value(node.elt, {**known, name: item}))
        return found if isinstance(items, list) else None

    @property
    def is_whole(self) -> bool:
        """Whether it was followed to its end."""
        return self._steps <= _MAX_STEPS

    def _table(self, node: ast.Dict, known: Values) -> object:
        table: Values = {}
        for key, each in zip(node.keys, node.values, strict=True):
            value = self.value(each, known)
            name = self.value(key, known) if key else None
            if isinstance(name, str):
                table[name] = value
            elif key is None and isinstance(value, dict):
                table |= value
            elif key is None:
                return None
        return table

    def _item(self, node: ast.Subscript, known: Values) -> object:
        whole = self.value(node.value, known)
        if isinstance(node.slice, ast.Slice):
            bounds = (node.slice.lower, node.slice.upper, node.slice.step)
            ends = [self.value(each, known) if each else None for each in bounds]
            numbers = [each for each in ends if isinstance(each, int)]
            plain = len(numbers) == sum(each is not None for each in bounds) and ends[2] != 0
            first, last, step = (each if isinstance(each, int) else None for each in ends)
            return whole[first:last:step] if plain and isinstance(whole, list) else None
        key = self.value(node.slice, known)
        if isinstance(whole, dict) and isinstance(key, str):
            return whole.get(key)
        if isinstance(whole, list) and isinstance(key, int) and -len(whole) <= key < len(whole):
            return whole[key]
        return None

    def _result(self, node: ast.Call, known: Values) -> object:
        """Return what a call gives, of those that scripts build their spaces and paths with."""
        function = node.func
        name = _called(node)
        own = self.value(function.value, known) if isinstance(function, ast.Attribute) else None
        given = [self.value(each, known) for each in node.args]
        words = {word.arg: self.value(word.value, known) for word in node.keywords if word.arg}
        if name in self._names:
            self._seen.add(id(node))
            self.found(node, known)
            return None
        callee = known.get(name) if isinstance(function, ast.Name) else None
        if isinstance(callee, ast.FunctionDef):
            return self._call(callee, given, words)
        return _method(own, name, given) if own is not None else _call(name, given, words)

    def _call(self, node: ast.FunctionDef, given: Sequence[object], words: Values) -> object:
        """Walk a function of the script."""
        if self._depth >= _MAX_DEPTH or self._entered is None or self._globals is None:
            return None
        self._entered.add(id(node))
        spec = node.args
        names = [each.arg for each in (*spec.posonlyargs, *spec.args)]
        known: Values = {**self._globals, **dict.fromkeys(names)}
        late = names[len(names) - len(spec.defaults) :]
        for name, default in zip(late, spec.defaults, strict=True):
            known[name] = self.value(default, known)
        for each, default_of in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            known[each.arg] = self.value(default_of, known) if default_of else None
        known |= dict(zip(names, given, strict=False)) | words
        self._depth += 1
        try:
            return self._run(node.body, known)
        finally:
            self._depth -= 1


def _called(node: ast.Call) -> str:
    """Return the name that a call has, without what it is a method or a member of."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _aliases(tree: ast.AST, name: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (each.asname for each in node.names if each.name == name and each.asname)


def _inside(loop: ast.For | ast.While) -> Iterator[ast.AST]:
    for statement in loop.body:
        yield from ast.walk(statement)


def _forget(loop: ast.For | ast.While, known: Values) -> None:
    """Make unknown what a loop changes: who does not know how often it does has a wrong value."""
    for node in _inside(loop):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                known[name] = None
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)):
                if attr in _CHANGES and isinstance(known.get(name), list):
                    known[name] = None


def _directory(path: str) -> str:
    # Of a name alone, which is one beside the script.
    return os.path.dirname(path) or "."


def _listing(name: str, given: Sequence[object]) -> object:
    lists = [each for each in given if isinstance(each, list)]
    if len(lists) != len(given) or not lists:
        return None
    if name == "zip":
        return [list(each) for each in zip(*lists, strict=False)]
    if name == "enumerate":
        return [[number, each] for number, each in enumerate(lists[0])] if not lists[1:] else None
    return list(lists[0])


def _call(name: str, given: Sequence[object], words: Values) -> object:
    first = given[0] if given else None
    match name:
        case "OrderedDict" | "dict" if not given:
            return dict(words)
        case "OrderedDict" | "dict":
            return dict(first) if isinstance(first, Mapping) else None
        case "list" | "tuple" | "sorted" | "enumerate" | "zip":
            return None if name == "enumerate" and words else _listing(name, given)
        case "int" | "int32" | "int64" | "uint32" | "uint64":
            return int(first) if isinstance(first, int | float) and abs(first) < 1 << 63 else None
        case "str" | "Path" | "open" | "realpath" | "abspath" | "PackageLoader":
            return first
        case "dirname":
            return _directory(first) if isinstance(first, str) else None
        case "range":
            ends = [each for each in given if isinstance(each, int)]
            if len(ends) != len(given) or not 1 <= len(ends) <= 3 or 0 in ends[2:]:
                return None
            return list(range(*ends)[:MAX_VALUES])
        case "max" | "min" | "len" | "sum" | "prod":
            return _of_numbers(name, first if len(given) == 1 else list(given))
        case "join":
            return _joined(given)
        case "Template":
            return Template(first) if isinstance(first, str) else None
    return None


def _method(own: object, name: str, given: Sequence[object]) -> object:
    """Return what a method of a known value gives."""
    first = given[0] if given else None
    match own, name:
        case str(), "read" | "read_text" | "resolve" | "absolute" | "open":
            return own  # a file's name stands for what is in it
        case str(), "joinpath":
            return _joined([own, *given])
        case list(), "append" if len(own) < _MAX_TEXT:
            own.append(first)
        case list() | dict(), "copy":
            return own.copy()
        case dict(), "update" if isinstance(first, dict):
            own.update(first)
        case dict(), "get" if isinstance(first, str):
            return own.get(first)
        case dict(), "keys":
            return list(own)
        case dict(), "values":
            return list(own.values())
        case dict(), "items":
            return [[key, value] for key, value in own.items()]
    return None


def _attribute(own: object, name: str) -> object:
    match own, name:
        case str(), "parent":
            return _directory(own)
        case Template(), "render":
            return own
    return None


def _joined(parts: Sequence[object]) -> str | None:
    """Return a path; what is not known of its front is taken for the script's directory."""
    known = [part for part in parts if isinstance(part, str)]
    return os.path.join(*known) if known else None


def _of_numbers(name: str, items: object) -> object:
    if not isinstance(items, list):
        return None
    if name == "len":
        return len(items)
    numbers = [each for each in items if isinstance(each, int)]
    if len(numbers) != len(items) or not numbers:
        return None
    if name == "prod":
        product: object = 1
        for each in numbers:
            product = _operation(ast.Mult(), product, each)
        return product
    if name == "sum":
        return sum(numbers)
    return max(numbers) if name == "max" else min(numbers)


def _operation(operator: ast.operator, left: object, right: object) -> object:
    match operator, left, right:
        case ast.Div(), str(), str():
            return os.path.join(left, right)
        case ast.Add(), str(), str():
            return left + right if len(left) + len(right) <= _MAX_TEXT else None
        case ast.Add(), list(), list():
            return left + right if len(left) + len(right) <= _MAX_TEXT else None
        case ast.BitOr(), dict(), dict():
            return left | right
        case ast.Mult(), list(), int():
            return left * right if len(left) * right <= MAX_VALUES else None
        case _, int(), int():
            return _of_integers(operator, left, right)
    return None


def _of_integers(operator: ast.operator, left: int, right: int) -> int | None:
    if left.bit_length() > _MAX_BITS:
        return None
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult() if right.bit_length() <= _MAX_BITS:
            return left * right
        case ast.Pow() if 0 <= right < 64:
            return int(left**right)
        case ast.LShift() if 0 <= right < 64:
            return left << right
        case ast.FloorDiv() if right:
            return left // right
        case ast.Mod() if right:
            return left % right
    return None
