"""Tilus: lower a `tilus.Script` to CUDA C++, for a device that need not be there.

A schedule's values are the parameters of `__init__`, and those of `__call__` that Tilus takes as
constants. The source is the device code of Tilus' own `source.cu`: its host function only launches
the kernel, as our launcher does. A host function that does more is refused.
"""

from __future__ import annotations

import inspect
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from tilusbuild.generate import Source, Target
from tilusbuild.generate.worker import GeneratorError, LanguageInputs, call_by_name
from tilusbuild.runtime.regular import read_text

DEFAULTS = {
    "flags": ["-ftz=true", "-prec-div=false"],  # as Tilus calls nvcc
    "include-dirs": [{"package": "tilus", "path": "hidet/include"}],
    "launch": {"grid": [1]},  # until Tilus says it
}
"""The keys of a script that names a class of this language, unless it sets them."""
# Of the host function, with tvm-ffi's headers.
_HOST_LINES = re.compile(
    r'(?:#include <(?:tvm/|tilus/tvm/|tilus/runtime|cudaTypedefs)|extern "C" \{ Tilus).*\n'
)
_OPERATORS = {
    "Add": "+", "Sub": "-", "Multiply": "*", "Div": "//", "Mod": "%", "LessThan": "<",
    "LessEqual": "<=", "Equal": "==", "NotEqual": "!=", "LogicalAnd": "and", "LogicalOr": "or",
}  # fmt: skip

_Place = Mapping[str, Any]


def prepare() -> None:
    """Import Tilus, without git: it asks git for the place of its own cache, which is not used."""
    no_git = patch("subprocess.run", side_effect=subprocess.CalledProcessError(1, "git"))
    with suppress(ImportError), no_git:  # the file's own import reports that there is no Tilus
        import tilus  # noqa: F401


def generate(
    function: Any, values: Mapping[str, Any], target: Target, inputs: LanguageInputs
) -> Source:
    """Return the device code of a `tilus.Script` for a schedule. Raises `GeneratorError`."""
    import tilus
    from tilus import drivers
    from tilus.hidet.backend.codegen import codegen
    from tilus.ir.prog import Program
    from tilus.lang.transpiler import Transpiler
    from tilus.utils import to_snake_case

    if not (inspect.isclass(function) and issubclass(function, tilus.Script)):
        raise GeneratorError("it is not a class of tilus.Script")
    _, line = inspect.getsourcelines(function)
    place: _Place = {"line": line, "path": inspect.getsourcefile(function)}
    archs = ", ".join(target.archs)
    if not (goal := getattr(tilus.target, f"nvgpu_{archs.replace('_', '')}", None)):
        hint = "make each GPU architecture a target of its own"
        raise GeneratorError(f"Tilus has no code for {archs}", hint=hint, **place)
    # Too much shared memory fails a program, not the build.
    properties = replace(goal.properties, shared_memory_per_block=1 << 31)
    tilus.target.set_current_target(replace(goal, properties=properties))
    tilus.option.debug.dump_ir(inputs.dumps)
    constants, divisors = {}, {}
    for parameter in [*inspect.signature(function.__call__).parameters.values()][1:]:
        name, kind = parameter.name, parameter.annotation
        if kind in (bool, int, float, str):
            constants[name] = values.get(name, parameter.default)
            if constants[name] is parameter.empty:
                raise GeneratorError(f'its constant "{name}" has no value', **place)
        elif getattr(kind, "is_integer", bool)():
            divisors[name] = 1
    script: Any = object.__new__(function)  # since a call of the class does not make one
    call_by_name(script.__init__, values)
    with TemporaryDirectory() as directory:
        path = Path(directory)
        try:
            written = Transpiler().transpile(script, constants, divisors)
            written = written.with_name(to_snake_case(function.__name__))
            program = Program.create({written.name: written})
            drivers.verify(program)
            lowered = drivers.optimize_program(program, drivers.BuildOptions(), path)
            module = drivers.optimize_ir_module(drivers.generate_ir_module(lowered), path)
        except Exception as error:
            raise _locate_error(error, **place) from None
        ir = {str(file.relative_to(path)): read_text(file) for file in path.rglob("*.*")}
    kernel = module.functions[f"{written.name}_kernel"]
    _check_parameters(kernel, module.functions.pop("launch"), inputs, place)
    text = _HOST_LINES.sub("", codegen(module, src_out_path=None, target="cuda"))
    cluster = tuple(map(int, kernel.attrs.get("cuda.cluster_dim", ())))
    return Source(
        text.replace("static __global__", 'extern "C" __global__'),
        program=str(program),
        symbol=f"tilus_{kernel.name}",
        parameters=tuple(parameter.hint for parameter in kernel.params),
        grid=tuple(_format_size(size, place) for size in kernel.attrs["cuda.grid_dim"]),
        block=(int(kernel.attrs["cuda.block_dim"]),),
        smem=int(kernel.attrs.get("cuda.dynamic_smem_bytes", 0)),
        cluster=cluster if any(size > 1 for size in cluster) else None,
        ir=ir,
    )


def _check_parameters(kernel: Any, host: Any, inputs: LanguageInputs, place: _Place) -> None:
    """Raise `GeneratorError` for a parameter that no argument of a call fits."""
    for number, parameter in enumerate(kernel.params):
        name, kind = parameter.hint, parameter.type
        base = getattr(kind, "base_type", kind)
        if number >= len(host.params) and (base is kind or name not in inputs.arguments):
            message = f"Tilus' host function does not only launch: it makes {name}, a {kind}"
            raise GeneratorError(message, **place)
        dtype = getattr(base, "name", "")
        inputs.check_type(name, dtype + "fn" * (dtype == "float8_e4m3"), base is not kind, **place)


def _format_size(size: Any, place: _Place) -> str:
    """Return a size of Tilus' grid as an expression. Raises `GeneratorError`."""
    match type(size).__name__:
        case "int" | "Constant" | "Var":
            return str(getattr(size, "hint", size))
        case "Cast":
            return _format_size(size.expr, place)
        case "IfThenElse":
            cases = (size.then_expr, size.cond, size.else_expr)
            return "({} if {} else {})".format(*(_format_size(case, place) for case in cases))
        case name if name in _OPERATORS:
            sides = (_format_size(side, place) for side in (size.a, size.b))
            return f"({f' {_OPERATORS[name]} '.join(sides)})"
    raise GeneratorError(f"no expression is the size {size} of its grid", **place)


def _locate_error(error: Any, line: int, path: str | None) -> GeneratorError:
    """Return the innermost error of a lowering, at the innermost statement that Tilus knows."""
    while True:
        if hasattr(error, "start_lineno") and error.obj is not None:
            path, line = error.file, error.start_lineno + error.obj.lineno - 1
        if error.__cause__ is None:
            break
        error = error.__cause__
    lines = (getattr(error, "msg", "") or f"{type(error).__name__}: {error}").strip().splitlines()
    return GeneratorError("\n".join(lines[:4]), line, path=path)  # of up to a thousand
