"""`python recorder.py RECORD SCRIPT` runs a Kernel Tuner script and records its kernels.

`kernel_tuner.py` starts it. The script's `kernel_tuner` is this module, also where a package of the
name is installed or lies beside it: `tune_kernel` adds a line of JSON to RECORD, measures nothing
and returns no results. Whatever else is imported from `kernel_tuner` can be called. Imports nothing
of tilusbuild.

A value without a form in JSON is recorded as `{"?": its text}`. A function of the configuration is
recorded as the expression that it returns, with the values of its other names filled in.
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

_PARAMETER_NAMES = ("kernel_name", "kernel_source", "problem_size", "arguments", "tune_params")
LIMIT = 40
"""Characters of a value that a note shows."""
_RECORD = os.path.abspath(sys.argv[1]) if __name__ == "__main__" else ""
# It is a package, of modules that `_ModuleFinder` makes.
__path__: list[str] = []


def tune_kernel(*args: Any, **options: Any) -> tuple[list[Any], dict[str, Any]]:
    """Record the arguments of the call as a line of JSON in RECORD. Return empty results, in the
    form of Kernel Tuner's."""
    arguments_by_name = {**dict(zip(_PARAMETER_NAMES, args, strict=False)), **options}
    arguments = arguments_by_name.pop("arguments", ())
    names = set(arguments_by_name.get("tune_params") or ())
    record: dict[str, Any] = {
        name: _to_json_value(value, names) for name, value in arguments_by_name.items()
    }
    if callable(arguments_by_name.get("kernel_source")):
        record["kernel_source"] = {"?": "a function"}
    # An expression for the size must name the arguments, since their values may change from call to
    # call.
    size = arguments_by_name.get("problem_size")
    size_by_axis = size if isinstance(size, list | tuple) else [size]
    record["size arguments"] = [_find_argument_index(part, arguments) for part in size_by_axis]
    record["where"] = sys._getframe(1).f_lineno  # of the script, which calls this function
    with open(_RECORD, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    return [], {}


def run_kernel(*args: Any, **options: Any) -> list[Any]:
    """Return the kernel's arguments unchanged."""
    # Scripts compute a reference by it, which is compared with nothing here.
    return list({**dict(zip(_PARAMETER_NAMES, args, strict=False)), **options}.get("arguments", ()))


def _find_argument_index(size: Any, arguments: Any) -> int | None:
    """Return the index of the argument that is an integer equal to `size`; None if none or several
    are, or for a size of at most 1."""
    if not isinstance(arguments, list | tuple) or not hasattr(size, "__index__"):
        return None
    # An array of one element has `__index__`, too: only a scalar has the shape ().
    scalars = [
        (number, int(value))
        for number, value in enumerate(arguments)
        if hasattr(value, "__index__") and getattr(value, "shape", ()) == ()
    ]
    # The value 1 is too frequent to identify an argument.
    equal = [number for number, value in scalars if value == int(size) > 1]
    return equal[0] if len(equal) == 1 else None


def _to_json_value(value: Any, names: set[str]) -> Any:
    """Return a value that JSON can hold. A function becomes an expression over the parameters
    `names`. A value that cannot be expressed becomes `{"?": its text}`."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "__array__"):
        # numpy's: a large array is data of the kernel, and no note shows it.
        return _to_json_value(value.tolist(), names) if value.size <= 1 << 16 else {"?": "an array"}
    if isinstance(value, Mapping):
        return {str(key): _to_json_value(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple | set | range):
        return [_to_json_value(item, names) for item in value]
    if isinstance(value, FunctionType):
        node = _find_definition(value)
        text = _to_expression(value, node, names)
        label = ast.unparse(node) if isinstance(node, ast.Lambda) else value.__name__
        return text if text is not None else {"?": label[:LIMIT]}
    return {"?": repr(value)[:LIMIT]}


def _find_definition(function: FunctionType) -> ast.Lambda | ast.FunctionDef | None:
    """Return the syntax tree of a lambda or a `def`; None for an `async def`, and if the source
    cannot be read. Of several lambdas on one line, return the first with the same code."""
    try:
        tree = ast.parse("".join(inspect.findsource(function)[0]))
    except (OSError, SyntaxError):
        return None
    code = function.__code__
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            # The code of a decorated function begins with its first decorator.
            if next((d.lineno for d in node.decorator_list), node.lineno) == code.co_firstlineno:
                return node
        elif isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
            compiled_code = compile(ast.Expression(node), "", "eval").co_consts[0]
            if _list_code_facts(compiled_code) == _list_code_facts(code):
                return node
    return None


def _list_code_facts(code: CodeType) -> object:
    """Return names and constants of code: equal for the same lambda in another compilation."""
    # The text of nested code has an address, and not every compilation adds None.
    constants = [repr(c) for c in code.co_consts if not isinstance(c, CodeType | None)]
    return code.co_varnames, {*code.co_names, *code.co_freevars}, constants


def _to_expression(
    function: FunctionType, node: ast.Lambda | ast.FunctionDef | None, names: set[str]
) -> str | None:
    """Return the body of a function as an expression over the parameters `names`, with the values
    of its other names filled in; None for a function of several statements."""
    if isinstance(node, ast.FunctionDef):
        *statements, last = node.body
        # A docstring is an expression, which does nothing.
        does_nothing_else = all(isinstance(statement, ast.Expr) for statement in statements)
        body = last.value if isinstance(last, ast.Return) and does_nothing_else else None
    else:
        body = node.body if node is not None else None
    if node is None or body is None:
        return None
    bound_values = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    arguments = [argument.arg for argument in node.args.args]
    # Kernel Tuner passes the configuration as one dictionary, or each parameter by its name.
    dictionary_name = arguments[0] if len(arguments) == 1 and arguments[0] not in names else None

    class Parameters(ast.NodeTransformer):
        """Writes `p["block"]` as `block`, and a name of the script as its value."""

        def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
            is_of_dictionary = isinstance(node.value, ast.Name) and node.value.id == dictionary_name
            key = node.slice
            if is_of_dictionary and isinstance(key, ast.Constant) and isinstance(key.value, str):
                return ast.Name(key.value)
            return self.generic_visit(node)

        def visit_Name(self, node: ast.Name) -> ast.AST:
            """Return a constant for a name of the script; a parameter's name as it is."""
            value: Any = bound_values.get(node.id)
            is_parameter = node.id in names or node.id in arguments
            # A number of numpy becomes one of Python.
            if getattr(value, "shape", None) == ():
                value = value.item()
            if not is_parameter and isinstance(value, str | int):
                return ast.Constant(value)
            return node

    return ast.unparse(Parameters().visit(body))


class _AnyModule(ModuleType):
    """A module whose attributes are modules that can be called, for imports from kernel_tuner."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyModule(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self


class _ModuleFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every submodule of kernel_tuner."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        is_submodule = name.startswith("kernel_tuner.")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_submodule else None

    def create_module(self, spec: Any) -> ModuleType:
        return _AnyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def run_script(script: str, arguments: Sequence[str] = ()) -> None:
    """Run a script as Python's main module. Print an exception without this module's frame, and
    exit with status 1."""
    main = ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main
    sys.argv = [script, *arguments]
    try:
        with open(script, "rb") as file:
            exec(compile(file.read(), script, "exec"), main.__dict__)  # noqa: S102 - it is the user's
    except Exception as error:
        own_frame = error.__traceback__
        script_frames = own_frame.tb_next if own_frame else None
        traceback.print_exception(type(error), error, script_frames)
        sys.exit(1)


if __name__ == "__main__":
    # Before the script runs: an installed kernel_tuner must not be imported.
    sys.modules["kernel_tuner"] = sys.modules["__main__"]
    sys.meta_path.insert(0, _ModuleFinder())
    sys.path[0] = os.getcwd()
    run_script(sys.argv[2])
