"""Triton: compile a `@triton.jit` function to a cubin, for a device that need not be there.

The manifest says what Triton reads off the arguments of a call: types, alignment and sizes. A
parameter is specialized only by a rule that holds for each call that the program gets (`serves`).
The cubin is that of `triton.compile`, which calls the kernel with two pointers behind its own
parameters: global scratch memory and the profiler's, both null here.
"""

from __future__ import annotations

import gc
import io
import os
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

from tilusbuild.generate import Cubin, Target
from tilusbuild.generate.worker import (
    GeneratorError,
    LanguageInputs,
    describe_packages,
    make_arch_error,
)

DEFAULTS = {"device-compiler": "none"}
"""The keys of a script that names a function of this language, unless it sets them."""

_TYPES = {
    "bool": "u1", "f16": "fp16", "bf16": "bf16", "f32": "fp32", "f64": "fp64",
    "f8e4m3": "fp8e4nv", "f8e5m2": "fp8e5",
    **{f"{sign}{bits}": f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64)},
}  # fmt: skip
_STAGES = {"ttir": "ir", "ttgir": "ir", "llir": "module/ir", "ptx": "module/ir"}
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_ONE = re.compile(r"(\w+) == 1")


def generate(
    function: Any, values: Mapping[str, Any], target: Target, inputs: LanguageInputs
) -> Cubin:
    """Return the cubin of a `@triton.jit` function for a schedule. Raises `GeneratorError`."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import sm_arch_from_capability
    from triton.compiler.errors import CompilationError

    while hasattr(function, "fn") and not isinstance(function, triton.JITFunction):
        function = function.fn  # of @triton.autotune and @triton.heuristics
    if not isinstance(function, triton.JITFunction):
        raise GeneratorError("it is not a function with @triton.jit")
    line = function.def_file_line_number
    number = re.fullmatch(r"sm_(\d+)a?", " ".join(target.archs))
    arch = sm_arch_from_capability(int(number[1])) if number else None
    if number is None or arch != target.arch:
        raise make_arch_error("Triton", target, line, arch)
    divisors = inputs.find_divisors()
    ones = {match[1] for rule in inputs.conditions if (match := _ONE.fullmatch(rule))}
    signature, constants, attributes = {}, {}, {}
    parameters: list[str | None] = []
    for parameter in function.params:
        name, position = parameter.name, (parameter.num,)
        argument = inputs.arguments.get(name)
        if parameter.is_constexpr or argument is None or name in ones:
            signature[name] = "constexpr"
            constants[position] = 1 if name in ones else _find_constant(parameter, values, line)
            continue
        if argument.dtype not in _TYPES:
            raise GeneratorError(f"Triton has no {argument.dtype} for {name}", line)
        signature[name] = "*" * argument.is_tensor + _TYPES[argument.dtype]
        parameters.append(name)
        if divisors[name] % 16 == 0:  # Triton specializes by no other number
            attributes[position] = [["tt.divisibility", 16]]
    source = triton.compiler.ASTSource(function, signature, constants, attributes)
    options = {name: values[name] for name in _OPTIONS if name in values}
    knobs, log = triton.knobs, io.StringIO()
    knobs.propagate_env = False  # the environment stays that of the build
    knobs.cache.manager_class = _make_cache_class()
    knobs.compilation.store_binary_only = not inputs.dumps
    knobs.compilation.always_compile = knobs.nvidia.dump_ptxas_log = True
    if "TRITON_DISABLE_LINE_INFO" not in os.environ:  # lines have the project's directory
        knobs.compilation.disable_line_info = True
    with TemporaryDirectory() as knobs.cache.dir, redirect_stdout(log):
        try:
            kernel = triton.compile(source, GPUTarget("cuda", int(number[1]), 32), options)
        except CompilationError as error:
            raise _locate_error(error, function) from None
    if (facts := kernel.metadata).global_scratch_size:
        message = f"it needs {facts.global_scratch_size} bytes of scratch memory for each block"
        raise GeneratorError(message, line, "use pointers instead of descriptors in the kernel")
    clusters: dict[str, Any] = {}
    if facts.num_ctas > 1 and inputs.grid:
        # Triton's grid counts clusters.
        grid = (f"({inputs.grid[0]}) * {facts.num_ctas}", *inputs.grid[1:])
        clusters = {"grid": grid, "cluster": (facts.num_ctas,)}
    return Cubin(
        kernel.asm["cubin"],
        compiler=describe_packages("triton"),
        symbol=facts.name,
        parameters=(*parameters, None, None),
        block=(facts.num_warps * facts.warp_size,),
        smem=facts.shared,
        log=log.getvalue(),
        ir={
            f"{path}/{facts.name}.{k}": kernel.asm[k] for k, path in _STAGES.items() if inputs.dumps
        },
        **clusters,
    )


def _find_constant(parameter: Any, values: Mapping[str, Any], line: int) -> Any:
    """Return the value of a constant of the kernel. Raises `GeneratorError`."""
    if parameter.name in values:
        return values[parameter.name]
    if parameter.has_default:
        return parameter.default
    kind = "space, params or derived" if parameter.is_constexpr else "args"
    raise GeneratorError(f'its parameter "{parameter.name}" is not in {kind}', line)


@cache
def _make_cache_class() -> Any:
    """Return a cache that writes a file at once. Triton's makes a directory for each, so that other
    processes see whole files; those of a private directory have no other reader."""
    from triton.runtime.cache import FileCacheManager

    class PrivateCache(FileCacheManager):  # type: ignore[misc]
        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            path: str = self._make_path(filename)
            with open(path, "xb") as file:
                file.write(data if isinstance(data, bytes) else str(data).encode())
            return path

    return PrivateCache


def _locate_error(error: Any, function: Any) -> GeneratorError:
    """Return the innermost error of a compile, with its line in the kernel, or in the function of
    another file that the kernel calls."""
    while isinstance(error.__cause__, type(error)):
        error = error.__cause__
    functions = (item for item in gc.get_objects() if issubclass(type(item), type(function)))
    callee = next((item for item in functions if item.src == error.src), function)
    cause = error.__cause__ or error.__context__
    is_own = error.error_message not in (None, repr(cause))
    message = error.error_message if is_own else str(cause or error)
    line = callee.def_file_line_number + getattr(error.node, "lineno", 1) - 1
    return GeneratorError(message.strip(), line, path=callee.fn.__code__.co_filename)
