"""A stand-in for the package `kernel_tuner`, in the process that runs a user's script.

`kernel_tuner.py` copies this file to a directory that is first on the script's path. `tune_kernel`
writes down what it is given, a line of JSON each, measures nothing and returns no results. Other
modules of `kernel_tuner` can be imported, and whatever they hold can be called. Imports nothing
of tilusbuild.

A value that JSON has not is `{"?": its text}`, a function of the configuration the expression that
it returns, with what it knows besides filled in.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

_NAMES = ("kernel_name", "kernel_source", "problem_size", "arguments", "tune_params")
_LIMIT = 40


def tune_kernel(*args: Any, **named: Any) -> tuple[list[Any], dict[str, Any]]:
    """Write down one call. Returns no results."""
    caller = sys._getframe(1)
    given = {**dict(zip(_NAMES, args, strict=False)), **named}
    arguments = given.pop("arguments", ())
    names = set(given.get("tune_params") or ())
    said: dict[str, Any] = {name: _plain(value, names) for name, value in given.items()}
    said["kernel_source"] = _source(given.get("kernel_source"), names)
    # Which argument each part of the problem's size is: that may change from call to call.
    size = given.get("problem_size")
    parts = size if isinstance(size, list | tuple) else [size]
    said["size arguments"] = [_position(part, arguments) for part in parts]
    said["where"] = caller.f_lineno
    with open(os.environ["TILUSBUILD_RECORD"], "a", encoding="utf-8") as file:
        file.write(json.dumps(said) + "\n")
    return [], {}


def run_kernel(*args: Any, **named: Any) -> list[Any]:
    """Return the kernel's arguments as they are."""
    return list({**dict(zip(_NAMES, args, strict=False)), **named}.get("arguments", ()))


def _position(size: Any, arguments: Any) -> int | None:
    """Return which argument a size is: the same object, or the only one of its value."""
    if not isinstance(arguments, list | tuple) or not hasattr(size, "__index__"):
        return None
    scalars = {i: each for i, each in enumerate(arguments) if hasattr(each, "__index__")}
    scalars = {i: each for i, each in scalars.items() if getattr(each, "shape", ()) == ()}
    same = [i for i, each in scalars.items() if each is size and not isinstance(each, int)]
    equal = [i for i, each in scalars.items() if int(each) == int(size) > 1]
    return same[0] if same else equal[0] if len(equal) == 1 else None


def _plain(value: Any, names: set[str]) -> Any:
    """Return a value as JSON has it."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "__array__"):  # numpy's, whose large arrays are not sent
        return _plain(value.tolist(), names) if value.size <= 1 << 16 else {"?": "an array"}
    if isinstance(value, Mapping):
        return {str(key): _plain(each, names) for key, each in value.items()}
    if isinstance(value, list | tuple | set | range):
        return [_plain(each, names) for each in value]
    if isinstance(value, FunctionType):
        text = _expression(value, names)
        return text if text is not None else {"?": _shown(value)}
    return {"?": repr(value)[:_LIMIT]}


def _source(source: Any, names: set[str]) -> Any:
    """Return a kernel's source: a text, the name of a file, or `{"template": either}`."""
    rendered = getattr(source, "__self__", None)
    if rendered is not None and type(rendered).__module__.startswith("jinja2"):
        file = getattr(rendered, "filename", None)
        text = _TEMPLATES.get(id(rendered))
        return {"template": text if text is not None else file}
    if isinstance(source, FunctionType):
        return {"?": _shown(source)}
    return _plain(source, names)


def _tree(function: FunctionType) -> ast.Lambda | ast.FunctionDef | None:
    """Return the definition of a function: of several on its line, that with the same code."""
    try:
        tree = ast.parse("".join(inspect.findsource(function)[0]))
    except (OSError, SyntaxError):
        return None
    code = function.__code__
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
            made = compile(ast.Expression(node), "", "eval").co_consts[0]
            if _facts(made) == _facts(code):
                return node
    return None


def _facts(code: CodeType) -> object:
    """Return what distinguishes the functions of one line, wherever they are compiled."""
    constants = [repr(each) for each in code.co_consts if not isinstance(each, CodeType | None)]
    return code.co_varnames, {*code.co_names, *code.co_freevars}, constants


def _shown(function: FunctionType) -> str:
    node = _tree(function)
    return (ast.unparse(node) if isinstance(node, ast.Lambda) else function.__name__)[:_LIMIT]


def _expression(function: FunctionType, names: set[str]) -> str | None:
    """Return what a function of a configuration computes, as an expression over its parameters."""
    node = _tree(function)
    body: ast.expr | None = None
    if isinstance(node, ast.Lambda):
        body = node.body
    elif node is not None:
        *before, last = node.body
        plain = all(isinstance(each, ast.Expr) for each in before)  # a docstring
        body = last.value if isinstance(last, ast.Return) and plain else None
    if node is None or body is None:
        return None
    known = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    arguments = [each.arg for each in node.args.args]
    table = arguments[0] if len(arguments) == 1 and arguments[0] not in names else None

    class Parameters(ast.NodeTransformer):
        """Writes `p["block"]` as `block`, and what is known besides as its value."""

        def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
            of_table = isinstance(node.value, ast.Name) and node.value.id == table
            key = node.slice
            if of_table and isinstance(key, ast.Constant) and isinstance(key.value, str):
                return ast.Name(key.value)
            return self.generic_visit(node)

        def visit_Name(self, node: ast.Name) -> ast.AST:
            value: Any = known.get(node.id)
            own = node.id in names or node.id in arguments
            if callable(getattr(value, "item", None)):
                value = value.item()
            return ast.Constant(value) if not own and isinstance(value, str | int) else node

    return ast.unparse(Parameters().visit(body))


class _Anything(ModuleType):
    """Any other module of kernel_tuner, and any name in one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self


class _Modules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if not name.startswith(f"{__name__}."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


_TEMPLATES: dict[int, str] = {}
"""The text of each template of Jinja2, which keeps none itself."""


def _keep_templates() -> None:
    from jinja2 import Template

    make = Template.__new__

    def keep(cls: Any, source: Any, *args: Any, **named: Any) -> Any:
        made = make(cls, source, *args, **named)
        _TEMPLATES[id(made)] = str(source)
        made._kept = made  # the number is its own as long as the process lives
        return made

    Template.__new__ = keep  # type: ignore[method-assign]


if os.environ.get("TILUSBUILD_RECORD"):
    sys.meta_path.insert(0, _Modules())
    with suppress(ImportError):
        _keep_templates()
