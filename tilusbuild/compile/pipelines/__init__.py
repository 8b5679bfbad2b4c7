"""The pipelines, and which of them compiles what. `docs/adding-a-pipeline.md` adds one."""

from tilusbuild.compile.pipelines.base import Pipeline
from tilusbuild.compile.pipelines.cpu import CPU
from tilusbuild.compile.pipelines.host import HOST
from tilusbuild.compile.pipelines.kernel_nvcc import KERNEL_NVCC
from tilusbuild.compile.pipelines.kernel_nvrtc import KERNEL_NVRTC

PIPELINES: list[Pipeline] = [CPU, KERNEL_NVRTC, KERNEL_NVCC, HOST]
"""The first that applies is taken."""


def pipeline_for(target: str, has_kernel: bool, device_compiler: str) -> Pipeline:
    """Return the pipeline of a script for a target; the arguments are those of `applies`."""
    return next(each for each in PIPELINES if each.applies(target, has_kernel, device_compiler))


__all__ = ["CPU", "HOST", "KERNEL_NVCC", "KERNEL_NVRTC", "PIPELINES", "Pipeline", "pipeline_for"]
