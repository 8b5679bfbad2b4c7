"""The pipelines in their order of precedence. `docs/adding-a-pipeline.md` adds one."""

from tilusbuild.compile.model import Pipeline
from tilusbuild.compile.pipelines.cpu import CPU
from tilusbuild.compile.pipelines.cubin import KERNEL_CUBIN
from tilusbuild.compile.pipelines.library import LIBRARY_PIPELINES
from tilusbuild.compile.pipelines.nvcc import HOST, KERNEL_NVCC
from tilusbuild.compile.pipelines.nvrtc import KERNEL_NVRTC
from tilusbuild.compile.pipelines.tile import KERNEL_TILE

PIPELINES: list[Pipeline] = [CPU, KERNEL_CUBIN, KERNEL_TILE, KERNEL_NVRTC, KERNEL_NVCC, HOST]
"""In order: the first whose `can_compile` returns True compiles a script."""


def select_pipeline(target: str, form: str, device_compiler: str) -> Pipeline:
    """Return the pipeline of a script for a target: `form` is a script's `Form`, the others are
    those of `Pipeline.can_compile`. Raises `LookupError` when none compiles it."""
    if (target, form) in LIBRARY_PIPELINES:
        return LIBRARY_PIPELINES[target, form]
    has_kernel = form == "kernel"
    for pipeline in PIPELINES:
        if pipeline.can_compile(target, has_kernel, device_compiler):
            return pipeline
    source = "a kernel" if has_kernel else "an entry"
    raise LookupError(f"no pipeline compiles {source} for {target} with {device_compiler}")


def find_pipeline_by_name(name: str, compiler: str | None = None) -> Pipeline | None:
    """Return a pipeline by its name in `options.txt`. Those that share one differ only in their
    compiler, not in what they make."""
    for pipeline in (*PIPELINES, *LIBRARY_PIPELINES.values()):
        if pipeline.name == name and compiler in (None, pipeline.compiler):
            return pipeline
    return None
