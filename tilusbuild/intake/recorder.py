"""`python recorder.py RECORD SCRIPT` runs a Kernel Tuner script and writes down what it tunes.

`kernel_tuner.py` starts it. The script's `kernel_tuner` is this module, also where a package of the
name is installed or lies beside it: `tune_kernel` adds a line of JSON to RECORD, measures nothing
and returns no results. Whatever else is imported from `kernel_tuner` can be called. Imports nothing
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
import traceback
from collections.abc import Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

_NAMES = ("kernel_name", "kernel_source", "problem_size", "arguments", "tune_params")
LIMIT = 40
"""Characters of a value that a note shows."""
_RECORD = os.path.abspath(sys.argv[1]) if __name__ == "__main__" else ""
__path__: list[str] = []  # it is a package, of modules that `_Modules` makes


def tune_kernel(*args: Any, **named: Any) -> tuple[list[Any], dict[str, Any]]:
    """Write down one call. Returns no results."""
    given = {**dict(zip(_NAMES, args, strict=False)), **named}
    arguments = given.pop("arguments", ())
    names = set(given.get("tune_params") or ())
    said: dict[str, Any] = {name: _plain(value, names) for name, value in given.items()}
    if callable(given.get("kernel_source")):
        said["kernel_source"] = {"?": "a function"}
    # Which argument each part of the problem's size is: that may change from call to call.
    size = given.get("problem_size")
    parts = size if isinstance(size, list | tuple) else [size]
    said["size arguments"] = [_position(part, arguments) for part in parts]
    said["where"] = sys._getframe(1).f_lineno
    with open(_RECORD, "a", encoding="utf-8") as file:
        file.write(json.dumps(said) + "\n")
    return [], {}


def run_kernel(*args: Any, **named: Any) -> list[Any]:
    """Return the kernel's arguments as they are."""
    return list({**dict(zip(_NAMES, args, strict=False)), **named}.get("arguments", ()))


def _position(size: Any, arguments: Any) -> int | None:
    """Return which argument a size is: the only integer of its value."""
    if not isinstance(arguments, list | tuple) or not hasattr(size, "__index__"):
        return None
    scalars = {
        number: int(each)
        for number, each in enumerate(arguments)
        if hasattr(each, "__index__") and getattr(each, "shape", ()) == ()
    }
    equal = [number for number, each in scalars.items() if each == int(size) > 1]
    return equal[0] if len(equal) == 1 else None


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
        node = _tree(value)
        text = _expression(value, node, names)
        shown = ast.unparse(node) if isinstance(node, ast.Lambda) else value.__name__
        return text if text is not None else {"?": shown[:LIMIT]}
    return {"?": repr(value)[:LIMIT]}


def _tree(function: FunctionType) -> ast.Lambda | ast.FunctionDef | None:
    """Return the definition of a function: of several on its line, that with the same code."""
    try:
        tree = ast.parse("".join(inspect.findsource(function)[0]))
    except (OSError, SyntaxError):
        return None
    code = function.__code__
    for node in ast.walk(tree):
        if not isinstance(node, ast.Lambda | ast.FunctionDef):
            continue
        if node.lineno != code.co_firstlineno:
            continue
        if isinstance(node, ast.FunctionDef):
            return node
        made = compile(ast.Expression(node), "", "eval").co_consts[0]
        if _facts(made) == _facts(code):
            return node
    return None


def _facts(code: CodeType) -> object:
    """Return what distinguishes the functions of one line, wherever they are compiled."""
    constants = [repr(each) for each in code.co_consts if not isinstance(each, CodeType | None)]
    return code.co_varnames, {*code.co_names, *code.co_freevars}, constants


def _expression(
    function: FunctionType, node: ast.Lambda | ast.FunctionDef | None, names: set[str]
) -> str | None:
    """Return what a function of a configuration computes, as an expression over its parameters."""
    if isinstance(node, ast.FunctionDef):
        *before, last = node.body
        plain = all(isinstance(each, ast.Expr) for each in before)  # a docstring
        body = last.value if isinstance(last, ast.Return) and plain else None
    else:
        body = node.body if node is not None else None
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
        ours = name.startswith("kernel_tuner.")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: Any) -> ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def run(script: str, arguments: Sequence[str] = ()) -> None:
    """Run a script as Python does. What it raises is shown without our own frame."""
    main = ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main
    sys.argv = [script, *arguments]
    try:
        with open(script, "rb") as file:
            exec(compile(file.read(), script, "exec"), main.__dict__)  # noqa: S102 - it is the user's
    except Exception as error:
        own = error.__traceback__
        traceback.print_exception(type(error), error, own.tb_next if own else None)
        sys.exit(1)


if __name__ == "__main__":
    sys.modules["kernel_tuner"] = sys.modules["__main__"]
    sys.meta_path.insert(0, _Modules())
    sys.path[0] = os.getcwd()
    run(sys.argv[2])
