"""Tilus: lower a `tilus.Script` to CUDA C++, for a device that need not be there.

A schedule's values are the parameters of `__init__`, and the constants of `__call__`. The source is
the device code of Tilus' own `source.cu`. The launcher makes tensor maps and launches as Tilus'
host function does; one that does more is refused.
"""

from __future__ import annotations

import inspect
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from tilusbuild.generate import Source, Target, TensorMap
from tilusbuild.generate.worker import GeneratorError, LanguageInputs, call_by_name, make_arch_error
from tilusbuild.runtime.regular import read_text

DEFAULTS = {
    "flags": ["-ftz=true", "-prec-div=false"],  # as Tilus calls nvcc
    "include-dirs": [{"package": "tilus", "path": "hidet/include"}],
    "launch": {"grid": [1]},  # until Tilus says it
}
"""The keys of a script that names a class of this language, unless it sets them."""
# Of the host function, with tvm-ffi's headers.
_HOST_LINES = re.compile(r'(?:#include <(?:tvm/|tilus/tvm/|tilus/runtime)|extern "C" \{ Tilus).*\n')
# The expressions of Tilus as ours. A name in braces is a part of the expression.
_FORMATS = {
    "Add": "{a} + {b}", "Sub": "{a} - {b}", "Multiply": "{a} * {b}", "Div": "{a} // {b}",
    "Mod": "{a} % {b}", "LessThan": "{a} < {b}", "LessEqual": "{a} <= {b}", "Equal": "{a} == {b}",
    "NotEqual": "{a} != {b}", "LogicalAnd": "{a} and {b}", "LogicalOr": "{a} or {b}",
    "IfThenElse": "{then_expr} if {cond} else {else_expr}", "Cast": "{expr}",
}  # fmt: skip


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
    with _locate_errors(function):
        name = f"nvgpu_{', '.join(target.archs).replace('_', '')}"
        if not (goal := getattr(tilus.target, name, None)):
            raise make_arch_error("Tilus", target)
    # Too much shared memory fails a program, not the build.
    properties = replace(goal.properties, shared_memory_per_block=1 << 31)
    tilus.target.set_current_target(replace(goal, properties=properties))
    tilus.option.debug.dump_ir(inputs.dumps)
    script: Any = object.__new__(function)  # since a call of the class does not make one
    call_by_name(script.__init__, values)
    constants, divisors = {}, {}
    with _locate_errors(function), TemporaryDirectory() as directory:
        for name, parameter in inspect.signature(script.__call__).parameters.items():
            if parameter.annotation in (bool, int, float, str):
                constants[name] = values.get(name, parameter.default)
            elif getattr(parameter.annotation, "is_integer", bool)():
                divisors[name] = 1
            if constants.get(name) is parameter.empty:
                raise GeneratorError(f'its constant "{name}" has no value')
        written = Transpiler().transpile(script, constants, divisors)
        written = written.with_name(to_snake_case(function.__name__))
        program, path = Program.create({written.name: written}), Path(directory)
        drivers.verify(program)
        lowered = drivers.optimize_program(program, drivers.BuildOptions(), path)
        module = drivers.optimize_ir_module(drivers.generate_ir_module(lowered), path)
        kernel, host = module.functions[f"{written.name}_kernel"], module.functions.pop("launch")
        text = _HOST_LINES.sub("", codegen(module, src_out_path=None, target="cuda"))
        if target.arch.startswith("sm_9"):  # Tilus 0.2 writes for Hopper what Blackwell has
            text = text.replace(".cta_group::1", "")
        cluster = tuple(map(int, kernel.attrs.get("cuda.cluster_dim", ())))
        return Source(
            text.replace("static __global__", 'extern "C" __global__'),
            program=str(program),
            symbol=f"tilus_{kernel.name}",
            parameters=tuple(_list_parameters(kernel, host, inputs)),
            grid=tuple(map(_format_size, kernel.attrs["cuda.grid_dim"])),
            block=(int(kernel.attrs["cuda.block_dim"]),),
            smem=int(kernel.attrs.get("cuda.dynamic_smem_bytes", 0)),
            cluster=cluster if any(size > 1 for size in cluster) else None,
            ir={str(file.relative_to(path)): read_text(file) for file in path.rglob("*.*")},
        )


@contextmanager
def _locate_errors(function: Any) -> Iterator[None]:
    """Raise the innermost error of a lowering, at the innermost statement that Tilus knows."""
    try:
        yield
    except Exception as error:
        path, (_, line) = inspect.getsourcefile(function), inspect.getsourcelines(function)
        cause: Any = error
        while True:
            if hasattr(cause, "start_lineno") and cause.obj is not None:
                path, line = cause.file, cause.start_lineno + cause.obj.lineno - 1
            if cause.__cause__ is None:
                break
            cause = cause.__cause__
        kind = "" if isinstance(cause, GeneratorError) else f"{type(cause).__name__}: "
        lines = (getattr(cause, "msg", "") or f"{kind}{cause}").strip().splitlines()
        text = "\n".join(lines[:4])  # of up to a thousand
        raise GeneratorError(text, line, getattr(cause, "hint", None), path) from None


def _list_parameters(kernel: Any, host: Any, inputs: LanguageInputs) -> list[str | TensorMap]:
    """Return a kernel's parameters. Raises `GeneratorError` for one that no argument fits."""
    from cuda.bindings import driver
    from tilus.hidet.ir import stmt
    from tilus.hidet.ir.tools import collect

    known: dict[Any, str | TensorMap] = {parameter: parameter.hint for parameter in host.params}
    stores = collect(host.body, stmt.BufferStoreStmt)
    for call in collect(host.body, stmt.BlackBoxStmt):
        if call.template_string.startswith("cuTensorMapEncodeTiled"):
            variable, _, tensor, *buffers = call.exprs
            words = re.findall(r"(CUtensorMap\w+)::(\w+)", call.template_string)
            kind, *modes = (getattr(getattr(driver, enum), word).value for enum, word in words)
            sizes, strides, box, steps = (
                tuple(_format_size(store.value) for store in stores if store.buf is buffer)
                for buffer in buffers
            )
            encoding = (_format_size(tensor), kind, sizes, strides, box, steps)
            known[variable.expr] = TensorMap(*encoding, *modes)
    (launch,) = collect(host.body, stmt.LaunchKernelStmt)
    parameters: list[str | TensorMap] = []
    for parameter, value in zip(kernel.params, launch.args, strict=True):
        kind = parameter.type
        base = getattr(kind, "base_type", kind)
        choice = known.get(value, parameter.hint)
        if value not in known and (base is kind or choice not in inputs.arguments):
            raise GeneratorError(f"Tilus' host function makes {choice}, a {kind}")
        if isinstance(choice, str):
            dtype = getattr(base, "name", "").replace("8_e4m3", "8_e4m3fn")
            inputs.check_type(choice, dtype, base is not kind)
        parameters.append(choice)
    return parameters


def _format_size(size: Any) -> str:
    """Return an expression of Tilus as one of ours. Raises `GeneratorError`."""
    if isinstance(leaf := getattr(size, "hint", getattr(size, "value", size)), str | int):
        return str(leaf)
    if form := _FORMATS.get(type(size).__name__):
        return f"({re.sub('{(.+?)}', lambda part: _format_size(getattr(size, part[1])), form)})"
    raise GeneratorError(f"there is no expression for {size}, which its host function computes")
