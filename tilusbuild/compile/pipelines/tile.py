"""The kernel pipeline of CUDA Tile C++: nvcc 13.3 or later, with tileiras in the place of ptxas."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from tilusbuild.arch import Arch
from tilusbuild.compile.kernel_names import is_cpp_name
from tilusbuild.compile.model import DumpInProgress, Recipe
from tilusbuild.compile.pipelines.nvcc import LINE_INFO, KernelNvcc, choose_image_name
from tilusbuild.errors import Diagnostic, InputError, Location
from tilusbuild.toolchain import Toolchain


class KernelTile(KernelNvcc):
    name = "tile"
    groups = False
    standards = ("c++20", "c++23")

    def can_compile(self, target: str, has_kernel: bool, device_compiler: str) -> bool:
        return target == "cuda" and has_kernel and device_compiler == "tile"

    def build_nvcc_command(self, recipe: Recipe, mode: str, code: tuple[str, ...]) -> list[str]:
        command = super().build_nvcc_command(recipe, "-tilecubin", code)
        index = command.index("-Xptxas")  # with -v, which tileiras does not have
        return [*command[:index], "--enable-tile", *command[index + 2 :]]

    def select_fingerprint(self, recipe: Recipe, toolchain: Toolchain) -> tuple[str, ...]:
        return (*toolchain.fingerprint_cuda, *toolchain.fingerprint_tile)

    def find_source_problem(self, recipe: Recipe, headers: str | None) -> str | None:
        if is_cpp_name(recipe.symbol):
            return f'error: a kernel of CUDA Tile has a C name, which "{recipe.symbol}" is not'
        return None

    def check_archs(
        self, toolchain: Toolchain, archs: Sequence[Arch], ptx: bool, location: Location | None
    ) -> None:
        super().check_archs(toolchain, archs, ptx, location)
        cuda = toolchain.cuda
        problem, hint = "", None
        if cuda is not None and cuda.release < (13, 3):
            problem, hint = f"needs nvcc 13.3 or later, not {cuda.version}", "see [toolchain] nvcc"
        elif not toolchain.fingerprint_tile:
            problem, hint = "needs tileiras beside nvcc", "pip install nvidia-cuda-tileiras"
        elif ptx:
            problem = "makes no PTX"
        for arch in () if problem else archs:
            if arch.number < 80:
                problem = f"needs sm_80 or later, which {arch.name} is not"
            elif arch.number >= 90 and not arch.suffix:
                problem = f"makes code of {arch.name}a for {arch.name}"
                hint = f'write arch = "{arch.name}a"'
        if problem:
            raise InputError(Diagnostic(f"CUDA Tile {problem}", location, hint))

    def find_refused_flags(self, flags: Iterable[str]) -> Iterator[tuple[int, str, str]]:
        for index, flag in enumerate(flags):
            if flag in LINE_INFO:
                yield index, flag, "leave it out: code of CUDA Tile has no line numbers here"

    def dump_intermediates(self, recipe: Recipe, dump: DumpInProgress) -> None:
        dump.disassemble(os.path.join(dump.work, choose_image_name(recipe)))


KERNEL_TILE = KernelTile()
