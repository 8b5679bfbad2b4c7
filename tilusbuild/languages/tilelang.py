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

from tilusbuild.generate import Source, Target, TensorMap
from tilusbuild.generate.worker import GeneratorError, LanguageInputs, call_by_name, make_arch_error

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
        raise make_arch_error("TileLang", target)
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
    maps = _read_tensor_maps(lowered.host_mod, inputs, line)
    for parameter in kernel.params:
        if parameter.name not in maps:
            _check_parameter(parameter, inputs, line)
    sizes = {tag: _format_size(size) for tag, size in kernel.attrs["thread_extent"].items()}
    grid, block = (
        tuple(sizes.get(f"{kind}.{axis}", "1") for axis in "xyz")
        for kind in ("blockIdx", "threadIdx")
    )
    return Source(
        lowered.kernel_source,
        symbol=symbol,
        parameters=tuple(maps.get(p.name, p.name) for p in kernel.params),
        grid=grid,
        block=tuple(map(int, block)),
        smem=int(kernel.attrs.get("dyn_shared_memory_buf", 0)),
        cluster=tuple(map(int, kernel.attrs.get("cluster_dims", ()))) or None,
    )


def _format_size(size: Any) -> str:
    from tilelang.jit.adapter.utils import pythonic_expr

    text: str = pythonic_expr(size, ignore_cast=True, floor_div_op="//")
    return text


def _read_tensor_maps(
    host_module: Any, inputs: LanguageInputs, line: int | None
) -> dict[str, TensorMap]:
    """Return the tensor maps that a host function makes, by the kernel's parameters. Raises
    `GeneratorError` for one of another type than its argument."""
    maps = {}
    for host in host_module.functions.values():
        for descriptor, call in host.attrs.get("tma_descriptor_args", {}).items():
            function, _, kind, rank, tensor, *rest = call
            # Another function makes those of a convolution, of other numbers.
            if function.value == "__tvm_tensormap_create_tiled":
                _check_parameter(tensor, inputs, line)
                texts, n = [*map(_format_size, rest)], int(rank)
                sizes, strides, box, steps = (tuple(texts[i : i + n]) for i in range(0, 4 * n, n))
                modes = map(int, texts[4 * n :])
                encoding = (tensor.name, int(kind), sizes, strides[1:], box, steps)
                maps[descriptor.name] = TensorMap(*encoding, *modes)
    return maps


def _check_parameter(parameter: Any, inputs: LanguageInputs, line: int | None) -> None:
    """Raise `GeneratorError` for a parameter of the kernel that no argument of a call fits."""
    kind = parameter.type_annotation
    is_tensor = hasattr(kind, "element_type")
    if is_tensor and kind.storage_scope == "grid_constant":
        hint = "copy without T.c2d_im2col"
        message = f"it needs a TMA descriptor of a convolution, {parameter.name}"
        raise GeneratorError(message, line, hint)
    dtype = str((kind.element_type if is_tensor else kind).dtype)
    inputs.check_type(parameter.name, dtype, is_tensor, line)
