"""TileLang: lower a `prim_func` to CUDA C++, for a device that need not be there.

TileLang knows the launch: block, shared memory and cluster are numbers, and the grid is an
expression over the sizes that the function leaves open. nvcc compiles the source, as any other,
against the headers of TileLang's wheel.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial, update_wrapper
from typing import Any

from tilusbuild.generate import Source, Target
from tilusbuild.generate.worker import GeneratorError, LanguageInputs, call_by_name

DEFAULTS = {
    "std": "c++20",  # templates of lambdas, in tl_templates/cuda/reduce.h
    "include-dirs": [
        {"package": "tilelang", "path": path} for path in ("src", "3rdparty/cutlass/include")
    ],
    "launch": {"grid": [1]},  # until TileLang says it
}
"""The keys of a script that names a function of this language, unless it sets them."""


def prepare() -> None:
    """Let TileLang make its cache where this process may write: it does so when imported."""
    os.environ["TILELANG_CACHE_DIR"] = os.environ["TMPDIR"]


def generate(
    function: Any, values: Mapping[str, Any], target: Target, inputs: LanguageInputs
) -> Source:
    """Return the source of the `prim_func` that a function returns. Raises `GeneratorError`."""
    import tilelang
    from tilelang import tvm
    from tilelang.jit import JITImpl
    from tilelang.jit.adapter.utils import pythonic_expr

    function = getattr(function, "jit_impl", function)  # of @tilelang.autotune
    configs: Mapping[str, Any] = {}
    arguments = {**values, "target": target}
    if isinstance(function, JITImpl):
        configs, written = function.pass_configs or {}, function.func
        function = partial(function.get_tir)
        if written.tensor_args:
            del arguments["target"]  # all values go in, for T.const, and each is hashed
        else:
            update_wrapper(function, written.orig_func)
    if not callable(function):
        raise GeneratorError("it is not a function")
    if target.kind != "cuda" or len(target.archs) > 1:
        hint = "make each GPU architecture a target of its own"
        raise GeneratorError(f"TileLang has no code for {', '.join(target.archs)}", None, hint)
    with (
        tvm.target.Target({"kind": "cuda", "arch": target.arch}) as goal,
        tvm.transform.PassContext(opt_level=3, config=configs),
    ):
        program, line = call_by_name(function, arguments)
        if not isinstance(program, tvm.tirx.PrimFunc):
            message = f"it returned a value of type {type(program).__name__}"
            raise GeneratorError(message, line, "return a function with @T.prim_func")
        lowered = tilelang.lower(program, target=goal)
    kernels = {name.name_hint: kernel for name, kernel in lowered.device_mod.functions.items()}
    if len(kernels) != 1:
        message = f"it has {len(kernels)} kernels: {', '.join(kernels)}"
        raise GeneratorError(message, line, "use one T.Kernel in a function")
    ((symbol, kernel),) = kernels.items()
    if "use_cooperative_groups" in kernel.attrs:
        raise GeneratorError("it synchronizes the grid, which needs a cooperative launch", line)
    for parameter in kernel.params:
        _check_parameter(parameter, inputs, line)
    sizes = {
        tag: pythonic_expr(size, ignore_cast=True, floor_div_op="//")
        for tag, size in kernel.attrs["thread_extent"].items()
    }
    grid, block = (
        tuple(sizes.get(f"{kind}.{axis}", "1") for axis in "xyz")
        for kind in ("blockIdx", "threadIdx")
    )
    return Source(
        lowered.kernel_source,
        symbol=symbol,
        parameters=tuple(parameter.name for parameter in kernel.params),
        grid=grid,
        block=tuple(map(int, block)),
        smem=int(kernel.attrs.get("dyn_shared_memory_buf", 0)),
        cluster=tuple(map(int, kernel.attrs.get("cluster_dims", ()))) or None,
    )


def _check_parameter(parameter: Any, inputs: LanguageInputs, line: int | None) -> None:
    """Raise `GeneratorError` for a parameter of the kernel that no argument of a call fits."""
    kind = parameter.type_annotation
    is_tensor = hasattr(kind, "element_type")
    if is_tensor and kind.storage_scope == "grid_constant":
        hint = "T.copy(…, disable_tma=True) copies without one"
        raise GeneratorError(f"it needs a TMA descriptor, {parameter.name}", line, hint)
    dtype = str((kind.element_type if is_tensor else kind).dtype)
    inputs.check_type(parameter.name, dtype, is_tensor, line)
