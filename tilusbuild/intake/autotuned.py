"""The kernels of a file of Triton or TileLang, with the configurations of their `@autotune`.

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
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilusbuild.generate.worker import list_bound_names
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
    """Add a script to a draft for each kernel of a file with `@autotune`, with notes. Raises
    `SyntaxError`."""
    tree = ast.parse(read_text(os.path.join(root, file)))
    for number, function in _list_functions(tree):
        decorators = {
            ast.unparse(getattr(d, "func", d)).rpartition(".")[2]: d
            for d in function.decorator_list
        }
        tuner = next((d for name, d in decorators.items() if name.endswith("autotune")), None)
        if not isinstance(tuner, ast.Call) or "jit" not in decorators:
            continue
        try:
            space = _read_space(tuner, file, tree.body[:number])
        except Exception as error:
            place = f"{file}:{function.lineno} {function.name}"
            draft.add_note(f"left out: {place}: its list cannot be read: {error}")
            continue
        names = [kernel.name for kernel in draft.kernels]
        kernel = KernelDraft(make_table_name(function.name, names), "", "", space=space)
        is_triton = any("constexpr" in ast.unparse(p) for p in _list_parameters(function))
        is_triton |= ast.unparse(decorators["jit"]).startswith("triton")
        kernel.keys["triton" if is_triton else "tilelang"] = f"{file}:{function.name}"
        if is_triton:
            constants = _add_triton_arguments(kernel, function)
        else:
            constants = _add_tilelang_arguments(kernel, function, decorators["jit"])
        if constants:
            kernel.keys["params"] = dict.fromkeys(constants, 1024)
            text = f"a call gives these, written as 1024: {', '.join(constants)}"
            draft.add_note(f"{kernel.name}: {text}")
        if is_triton:
            kernel.grid = [1]
            text = "the types f16*[1] and i32 of args, and the grid, are assumed"
            draft.add_note(f"{kernel.name}: {text}")
        draft.kernels.append(kernel)
    if not draft.kernels:
        draft.add_note("no function has @triton.autotune or @tilelang.autotune with a list")


def _list_functions(tree: ast.Module) -> Iterator[tuple[int, ast.FunctionDef]]:
    """Yield the functions of a module, with the place of the statement that has each. They may
    stand in a branch, such as of the presence of Triton."""
    for number, statement in enumerate(tree.body):
        nodes = ast.walk(statement) if isinstance(statement, ast.If | ast.Try) else [statement]
        yield from ((number, node) for node in nodes if isinstance(node, ast.FunctionDef))


def _read_space(tuner: ast.Call, file: str, statements: Sequence[ast.stmt]) -> dict[str, list[Any]]:
    """Return the space of an `@autotune`, whose list may need the statements before it. Raises what
    they raise."""
    options = {option.arg: option.value for option in tuner.keywords}
    configs = ast.Expression(options.get("configs") or tuner.args[0])
    rows = eval(  # noqa: S307 - code of the project's author
        compile(configs, file, "eval"), _Namespace(statements)
    )
    return _make_space([getattr(row, "row", row) for row in rows])


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


def _add_triton_arguments(kernel: KernelDraft, function: ast.FunctionDef) -> list[str]:
    """Add the arguments, and return the constants that a call gives. A pointer is a parameter that
    the address of a load or a store begins with."""
    values = _list_values(function)
    pointers, outputs = set[str](), set[str]()
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(attr=verb)) if verb in _ACCESSES:
                address: Any = [*node.args, *(option.value for option in node.keywords)][0]
                unused = dict(values)
                while nearer := getattr(address, "left", getattr(address, "value", None)) or (
                    unused.pop(getattr(address, "id", ""), None)
                ):
                    address = nearer
                pointers.add(name := getattr(address, "id", ""))
                outputs |= {name} if _ACCESSES[verb] else set()
    constants = []
    for parameter in _list_open_parameters(kernel, function):
        name = parameter.arg
        if "constexpr" in ast.unparse(parameter):
            constants.append(name)
        elif name in outputs:
            kernel.args[name] = {"type": "f16*[1]", "out": True}
        else:
            kernel.args[name] = "f16*[1]" if name in pointers else "i32"
    return constants


_ACCESSES = {"load": False, "make_block_ptr": False, "store": True, "atomic_add": True}
"""Functions of Triton with an address, and whether they write."""


def _add_tilelang_arguments(
    kernel: KernelDraft, function: ast.FunctionDef, jit: ast.expr
) -> list[str]:
    """Add the tensors as arguments, and return the constants that a call gives."""
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
        written = ast.unparse(dtype).strip("'").rpartition(".")[2]
        element = next((n for n, d in DTYPES.items() if d.numpy == written), "f16")
        dims: list[ast.expr] = getattr(shape, "elts", [shape])
        tensor = {"type": f"{element}*[{', '.join(map(ast.unparse, dims))}]", "align": 16}
        kernel.args[name] = {**tensor, "out": True} if name in outputs else tensor
        constants += (n.id for dim in dims for n in ast.walk(dim) if isinstance(n, ast.Name))
    names = (parameter.arg for parameter in _list_open_parameters(kernel, function))
    constants += (name for name in names if name not in tensors)
    tuned = _list_tuned_names(kernel)
    sizes = [n for n, v in values.items() if ast.unparse(v).startswith(("T.dynamic", "T.symbolic"))]
    kernel.args |= dict.fromkeys(sizes, "i32")
    return [name for name in dict.fromkeys(constants) if name not in tuned.union(sizes)]
