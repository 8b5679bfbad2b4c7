"""The host pipeline: nvcc compiles a template that launches its kernels itself (`entry = …`)."""

from __future__ import annotations

from tilusbuild.arch import gencode
from tilusbuild.binary import parse_ptxas
from tilusbuild.compile.launcher import HOST_LAUNCHER
from tilusbuild.compile.model import Findings, Recipe
from tilusbuild.compile.pipelines.nvcc import NvccPipeline, has_line_info
from tilusbuild.compile.steps import EXPORT_FLAGS, LIBRARY_FLAGS, SOURCE, Step, host_march

_CUDART = ("-cudart", "static", "-cudadevrt", "none", "-nodlink")
_LINK = ("{nvcc}", "{link_flags}", "-shared", "-ccbin", "{cxx}", *_CUDART)


class Host(NvccPipeline):
    name = "host"
    launcher = HOST_LAUNCHER

    def applies(self, target: str, has_kernel: bool, device_compiler: str) -> bool:
        # Whatever the device compiler is: NVRTC compiles no host code.
        return target == "cuda" and not has_kernel

    def commands(self, recipe: Recipe) -> list[Step]:
        options = ("-Xcompiler", f"-fPIC,-march={host_march(recipe)},-frandom-seed=0")
        compiler = self.nvcc(recipe, "-c", gencode(recipe.archs, ptx=recipe.ptx))
        linker = [word for flag in (*LIBRARY_FLAGS, *EXPORT_FLAGS) for word in ("-Xlinker", flag)]
        objects = ("source.o", "launcher.o", *_link_flags(recipe), "-ldl")
        return [
            Step("source", (*compiler, *options, SOURCE, "-o", "source.o"), "source.o"),
            Step("link", (*_LINK, *linker, *objects, "-o", "lib.so"), "lib.so"),
        ]

    def copies_headers(self, recipe: Recipe) -> bool:
        # ptxas records the headers' times. The kernel pipeline gets round that by way of the PTX;
        # nvcc's host compilation cannot.
        return has_line_info(recipe)

    def judge(self, recipe: Recipe, step: Step, path: str, log: str, found: Findings) -> None:
        if step.output == "lib.so":
            found.ptxas = parse_ptxas(log)


def _link_flags(recipe: Recipe) -> list[str]:
    """Return those of the user's flags that mean something to a link."""
    kept: list[str] = []
    words = iter(recipe.flags)
    for word in words:
        if word in ("-l", "-L", "-Xlinker"):
            kept += [word, next(words, "")]
        elif word.startswith(("-l", "-L")) and not word.startswith("-lineinfo"):
            kept.append(word)
    return kept


HOST = Host()
