"""The kernels of a file of Triton, TileLang or Tilus, with the configurations of their `@autotune`.

An import of such a file asks for a device, and many run a benchmark. So the syntax tree is read,
and only the statements before a kernel that its list of configurations needs are run: loops and
functions often make it. There packages other than Python's own are stand-ins, as on an NVIDIA GPU
of sm_80. A list that depends on another answer of theirs is left out, with a note.
"""

from __future__ import annotations

import ast
import builtins
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from tilusbuild.generate.worker import list_bound_names, name_decorator
from tilusbuild.intake.draft import KernelDraft, ManifestDraft, make_table_name
from tilusbuild.runtime.dtypes import DTYPES
from tilusbuild.runtime.regular import read_text


class _StandIn:
    """A package, or a thing of one: its parts and results are stand-ins, and it has no value."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _ANSWERS[name] if name in _ANSWERS else _StandIn(f"{self._path}.{name}")

    def __call__(self, *_: Any, **__: Any) -> _StandIn:
        return _StandIn(f"{self._path}()")

    def _refuse(self, *_: Any) -> Any:
        raise LookupError(f"it depends on {self._path}")

    __bool__ = __iter__ = __len__ = __index__ = __getitem__ = __eq__ = __lt__ = __gt__ = _refuse
    __le__ = __ge__ = __add__ = __radd__ = __mul__ = __rmul__ = _refuse
    __hash__ = object.__hash__


class _Config:
    """A `triton.Config`, with its row of the space."""

    def __init__(self, kwargs: Any, num_warps: int = 4, num_stages: int = 3, **others: Any) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages
        self.row = {**kwargs, "num_warps": num_warps, "num_stages": num_stages, **others}


_ANSWERS: Mapping[str, Any] = {
    "Config": _Config,
    "backend": "cuda",
    "hip": None,
    "warp_size": 32,
    "is_available": lambda: True,
    "get_device_capability": lambda *_: (8, 0),
    "cdiv": lambda a, b: -(-a // b),
    "next_power_of_2": lambda n: 1 << (n - 1).bit_length(),
}


def _import_module(name: str, *args: Any) -> Any:
    is_own = name.partition(".")[0] not in sys.stdlib_module_names or any(args[3:])
    return _StandIn(name) if is_own else __import__(name, *args)


class _Namespace(dict[str, Any]):
    """The names of a module. The statements that bind a name run when it is asked for."""

    def __init__(self, statements: Sequence[ast.stmt]) -> None:
        names = {**vars(builtins), "__import__": _import_module}
        super().__init__(__name__="kernels", __builtins__=names)
        self._statements = [*statements]

    def __missing__(self, name: str) -> Any:
        needed = [s for s in self._statements if name in list_bound_names(s)]
        # They ask for the name, too, as `x += …` does.
        self._statements = [s for s in self._statements if s not in needed]
        for statement in needed:
            code = compile(ast.Module([statement], []), "kernels.py", "exec")
            exec(code, self)  # noqa: S102 - code of the project's author, as a Makefile's
        if name in self:
            return self[name]
        raise KeyError(name)


def read_kernels(draft: ManifestDraft, root: str, file: str) -> None:
    """Add a script to a draft for each kernel of a file, with notes. A function without `@autotune`
    that another kernel calls is a part of it. Raises `SyntaxError`."""
    tree = ast.parse(read_text(os.path.join(root, file)))
    kernels = [*_list_kernels(tree)]
    functions = {kernel.name: kernel for _, kernel, _ in kernels}
    for number, function, decorators in kernels:
        tuners = [d for name, d in decorators if name == "autotune" and isinstance(d, ast.Call)]
        others = (other for other in functions.values() if other is not function)
        if not tuners and any(name == function.name for o in others for name, _ in _list_calls(o)):
            continue
        namespace = _Namespace(tree.body[:number])
        try:
            space = _read_space(tuners, isinstance(function, ast.ClassDef), namespace)
        except Exception as error:
            origin = f"{file}:{function.lineno} {function.name}"
            draft.add_note(f"left out: {origin}: its list cannot be read: {error}")
            continue
        names = [kernel.name for kernel in draft.kernels]
        kernel = KernelDraft(make_table_name(function.name, names), "", "", space=space)
        jit = next((d for name, d in decorators if name == "jit"), None)
        if isinstance(function, ast.ClassDef):
            language, constants = "tilus", _add_tilus_arguments(kernel, function)
        elif any("constexpr" in ast.unparse(p) for p in _list_parameters(function)) or (
            jit and ast.unparse(jit).startswith("triton")
        ):
            language, constants = "triton", _add_triton_arguments(kernel, function, functions)
            kernel.grid = [1]
        else:
            language, constants = "tilelang", _add_tilelang_arguments(kernel, function, jit)
        kernel.keys[language] = f"{file}:{function.name}"
        if constants:
            kernel.keys["params"] = dict.fromkeys(constants, 1024)
            text = f"a call gives these, written as 1024: {', '.join(constants)}"
            draft.add_note(f"{kernel.name}: {text}")
        if kernel.grid:
            text = "the types f16*[1] and i32 of args, and the grid, are assumed"
            draft.add_note(f"{kernel.name}: {text}")
        draft.kernels.append(kernel)
    if not draft.kernels:
        draft.add_note("it has no function with @triton.jit or @tilelang.jit, nor a tilus.Script")


_Kernel: TypeAlias = ast.FunctionDef | ast.ClassDef


def _list_kernels(tree: ast.Module) -> Iterator[tuple[int, _Kernel, list[tuple[str, ast.expr]]]]:
    """Yield the kernels of a module, with the place of the statement that has each, and its
    decorators by name. They may stand in a branch, such as of the presence of Triton."""
    for number, statement in enumerate(tree.body):
        nodes = ast.walk(statement) if isinstance(statement, ast.If | ast.Try) else [statement]
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                decorators = [(name_decorator(d), d) for d in node.decorator_list]
                names = (name for name, _ in decorators)
                bases = (ast.unparse(base) for base in getattr(node, "bases", ()))
                is_script = {"Script", "tilus.Script"}.intersection(bases)
                methods = (method.name for method in _list_methods(node))
                if "jit" in names or (is_script and "__call__" in methods):
                    yield number, node, decorators


def _list_calls(function: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls in a function of a plain name, with it."""
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Name(id=name)):
                yield name, node


def _list_operands(call: ast.Call) -> Iterator[ast.expr]:
    yield from (*call.args, *(option.value for option in call.keywords))


def _read_space(
    tuners: Sequence[ast.Call], is_tilus: bool, namespace: _Namespace
) -> dict[str, list[Any]]:
    """Return the space of each `@autotune`, whose lists may need statements of `namespace`. Raises
    what they raise."""

    def evaluate_expression(value: ast.expr) -> Any:
        code = compile(ast.Expression(value), "kernels.py", "eval")
        return eval(code, namespace)  # noqa: S307 - code of the project's author

    space: dict[str, list[Any]] = {}
    for tuner in tuners:
        if is_tilus:
            names, values = map(evaluate_expression, _list_operands(tuner))
            space[names] = [[*v] if isinstance(v, tuple) else v for v in values]
        else:
            options = {option.arg: option.value for option in tuner.keywords}
            rows = evaluate_expression(options.get("configs") or tuner.args[0])
            space |= _make_space([getattr(row, "row", row) for row in rows])
    return space


def _make_space(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the space of configurations: separate parameters if all combinations of their
    values are there, else those with several values linked. Values that are not plain, such as
    functions, are left out."""
    names = [n for n in rows[0] if all(isinstance(r.get(n), int | float | str) for r in rows)]
    table = [*dict.fromkeys(tuple(row[name] for name in names) for row in rows)]
    columns = zip(*table, strict=True)
    space = {n: [*dict.fromkeys(column)] for n, column in zip(names, columns, strict=True)}
    if math.prod(map(len, space.values())) == len(table):
        return space
    varying = [position for position, name in enumerate(names) if len(space[name]) > 1]
    linked = [[row[position] for position in varying] for row in table]
    fixed = {name: values for name, values in space.items() if len(values) == 1}
    return {", ".join(names[position] for position in varying): linked, **fixed}


def _list_parameters(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _list_tuned_names(kernel: KernelDraft) -> set[str]:
    """Return the names of the space, linked ones one by one."""
    return {name for key in kernel.space for name in key.split(", ")}


def _list_open_parameters(kernel: KernelDraft, function: ast.FunctionDef) -> list[ast.arg]:
    """Return the parameters without default that the space does not have."""
    tuned = _list_tuned_names(kernel)
    positional = [*function.args.posonlyargs, *function.args.args]
    defaulted = positional[len(positional) - len(function.args.defaults) :]
    keyword_only = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    defaulted += [parameter for parameter, default in keyword_only if default]
    return [p for p in _list_parameters(function) if p.arg not in tuned and p not in defaulted]


def _list_values(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """Return the first value of each variable of a function."""
    parameters = {parameter.arg for parameter in _list_parameters(function)}
    values: dict[str, ast.expr] = {}
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in parameters:
                values.setdefault(name, value)
    return values


def _add_triton_arguments(
    kernel: KernelDraft, function: ast.FunctionDef, functions: Mapping[str, _Kernel]
) -> list[str]:
    """Add the arguments, and return the constants that a call gives."""
    pointers = _find_pointers(function, functions)
    constants = []
    for parameter in _list_open_parameters(kernel, function):
        name = parameter.arg
        if "constexpr" in ast.unparse(parameter):
            constants.append(name)
        elif pointers.get(name):
            kernel.args[name] = {"type": "f16*[1]", "out": True}
        else:
            kernel.args[name] = "f16*[1]" if name in pointers else "i32"
    return constants


_ACCESS = re.compile(r"load|make_block_ptr|make_tensor_descriptor|(store|atomic_\w+)")
"""Triton's functions of an address, and methods of a descriptor. Group 1: those that write."""


def _find_pointers(function: ast.FunctionDef, functions: Mapping[str, _Kernel]) -> dict[str, bool]:
    """Return the parameters of a function of Triton that an address begins with, here or in one of
    `functions` that it calls, and whether it is written to."""
    values, pointers = _list_values(function), dict[str, bool]()
    accesses: list[tuple[Any, bool]] = []
    names = {parameter.arg for parameter in _list_parameters(function)}
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(attr=verb, value=owner)) if (
                access := _ACCESS.fullmatch(verb)
            ):
                is_method = getattr(owner, "id", "") in names
                address = owner if is_method else next(_list_operands(node), None)
                accesses.append((address, bool(access[1])))
    others = {name: other for name, other in functions.items() if other is not function}
    for name, call in _list_calls(function):
        if isinstance(callee := others.get(name), ast.FunctionDef):
            parameters = (parameter.arg for parameter in _list_parameters(callee))
            arguments = dict(zip(parameters, call.args, strict=False))
            arguments |= {option.arg or "": option.value for option in call.keywords}
            written = _find_pointers(callee, others)
            accesses += ((arguments[n], written[n]) for n in written if n in arguments)
    for address, is_written in accesses:
        unused = dict(values)
        while nearer := getattr(address, "left", getattr(address, "value", None)) or (
            unused.pop(getattr(address, "id", ""), None)
        ):
            address = nearer
        if (name := getattr(address, "id", "")) in names:
            pointers[name] = pointers.get(name, False) or is_written
    return pointers


def _add_tilus_arguments(kernel: KernelDraft, function: ast.ClassDef) -> list[str]:
    """Add the arguments of a script, and return the constants that a call gives: parameters of its
    schedules, and those of `__call__` that are annotated as values of Python."""
    methods = {method.name: method for method in _list_methods(function)}
    parameters = _list_open_parameters(kernel, methods["__call__"])[1:]
    names = {parameter.arg for parameter in parameters}
    shapes: dict[str, str] = {}
    views: dict[str, str] = {}
    outputs = set[str]()
    for node in ast.walk(function):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=view)],
                value=ast.Call(
                    func=ast.Attribute(attr="global_view"), args=[ast.Name(id=name)]
                ) as call,
            ):
                views[view] = name
                shape = next((o.value for o in call.keywords if o.arg == "shape"), None)
                used = {n.id for n in ast.walk(shape or call) if isinstance(n, ast.Name)}
                if used <= names:
                    shapes[name] = ", ".join(map(ast.unparse, getattr(shape, "elts", ())))
            case ast.Call(func=ast.Attribute(attr=verb)) if verb.endswith(
                ("e_global", "to_global")
            ):
                outputs |= {getattr(operand, "id", "") for operand in _list_operands(node)}
    outputs = {views[view] for view in outputs & views.keys()}
    constants = []
    if "__init__" in methods:
        constants += [p.arg for p in _list_open_parameters(kernel, methods["__init__"])[1:]]
    for parameter in parameters:
        name, kind = parameter.arg, ast.unparse(parameter.annotation or parameter)
        if kind in ("bool", "int", "float", "str"):
            constants.append(name)
        elif kind.startswith("~"):
            kernel.args[name] = _make_tensor(kind[1:], shapes.get(name) or "1", name in outputs)
        else:
            kernel.args[name] = _find_element(kind, "i32")
    return constants


def _list_methods(function: _Kernel) -> Iterator[ast.FunctionDef]:
    yield from (node for node in function.body if isinstance(node, ast.FunctionDef))


def _find_element(dtype: str, default: str) -> str:
    """Return the manifest's name of an element type that a language writes so, else `default`."""
    written = dtype.strip("'").rpartition(".")[2]
    return next((name for name, known in DTYPES.items() if known.numpy == written), default)


def _make_tensor(dtype: str, dims: str, is_output: bool) -> dict[str, object]:
    """Return an argument that is a tensor. Both languages read 16 bytes at once."""
    tensor = {"type": f"{_find_element(dtype, 'f16')}*[{dims}]", "align": 16}
    return {**tensor, "out": True} if is_output else tensor


def _add_tilelang_arguments(
    kernel: KernelDraft, function: ast.FunctionDef, jit: ast.expr | None
) -> list[str]:
    """Add the tensors as arguments, and return the constants that a call gives."""
    if jit and re.search("tl[._]enable_fast_math'?: True", ast.unparse(jit), re.IGNORECASE):
        kernel.flags.append("--use_fast_math")
    defaulted = zip(reversed(function.args.args), reversed(function.args.defaults), strict=False)
    values = {parameter.arg: default for parameter, default in defaulted} | _list_values(function)
    constants = list[str]()
    tensors: dict[str, Any] = {}
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(attr="const"), args=[ast.Constant(value=str(text))]):
                constants += text.replace(" ", "").split(",")
            case ast.arg(arg=name, annotation=ast.Call() as kind):
                tensors[name] = kind
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Call() as kind):
                tensors[name] = kind
    empty = {n: v for n, v in values.items() if ast.unparse(v).startswith("T.empty(")}
    tensors |= empty
    outputs = {*empty}
    for option in getattr(jit, "keywords", ()):
        if option.arg == "out_idx":
            numbers = ast.literal_eval(option.value)
            outputs |= {[*tensors][n] for n in ([numbers] if isinstance(numbers, int) else numbers)}
    for name, kind in tensors.items():
        shape, dtype = (values.get(getattr(part, "id", ""), part) for part in kind.args[:2])
        dims: list[ast.expr] = getattr(shape, "elts", [shape])
        text = ", ".join(map(ast.unparse, dims))
        kernel.args[name] = _make_tensor(ast.unparse(dtype), text, name in outputs)
        constants += (n.id for dim in dims for n in ast.walk(dim) if isinstance(n, ast.Name))
    names = (parameter.arg for parameter in _list_open_parameters(kernel, function))
    constants += (name for name in names if name not in tensors)
    tuned = _list_tuned_names(kernel)
    sizes = [n for n, v in values.items() if ast.unparse(v).startswith(("T.dynamic", "T.symbolic"))]
    kernel.args |= dict.fromkeys(sizes, "i32")
    return [name for name in dict.fromkeys(constants) if name not in tuned.union(sizes)]
