"""The kernel pipeline of a generator that returns device code: a cubin is checked and linked."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tilusbuild.arch import Arch
from tilusbuild.compile.geometry import format_program_source
from tilusbuild.compile.kernel_names import is_cpp_name
from tilusbuild.compile.model import DumpInProgress, Findings, Recipe, Step
from tilusbuild.compile.pipelines.nvcc import KernelPipeline
from tilusbuild.errors import Diagnostic, Location
from tilusbuild.toolchain import HeaderDirectories, Toolchain


class KernelCubin(KernelPipeline):
    name = compiler = "cubin"
    source_name = "kernel.cubin"

    def can_compile(self, target: str, has_kernel: bool, device_compiler: str) -> bool:
        return target == "cuda" and has_kernel and device_compiler == "none"

    def find_toolkit(self, recipe: Recipe) -> str:
        from tilusbuild.binary.cubin import read_toolkit

        return read_toolkit(_encode_cubin(recipe))

    def list_device_steps(self, recipe: Recipe, image: str) -> list[Step]:
        return []

    def explain_local_only(self, recipe: Recipe, notes: Sequence[Diagnostic] = ()) -> str:
        return "the generator has compiled the kernel, which is only linked"

    def generate_files(self, recipe: Recipe) -> dict[str, str]:
        return {"program.s": format_program_source(recipe, self.source_name)}

    def select_fingerprint(self, recipe: Recipe, toolchain: Toolchain) -> tuple[str, ...]:
        return toolchain.fingerprint_host

    def list_header_directories(self, toolchain: Toolchain) -> HeaderDirectories:
        return toolchain.find_header_directories(cuda=False)

    def check_archs(
        self, toolchain: Toolchain, archs: Sequence[Arch], ptx: bool, location: Location | None
    ) -> None:
        return  # no tool here compiles for them

    def find_source_problem(self, recipe: Recipe, headers: str | None) -> str | None:
        if is_cpp_name(recipe.symbol):
            return f'error: a cubin has symbols, and "{recipe.symbol}" is a C++ name'
        # Not needed by a build without cubins.
        from tilusbuild.binary.elf import BinaryError
        from tilusbuild.binary.fatbin import read_archs
        from tilusbuild.compile.checks import find_image_problem

        try:
            problem = find_image_problem(recipe, read_archs(_encode_cubin(recipe)))
        except BinaryError as error:
            problem = f"is none: {error}"
        return None if problem is None else f"error: the cubin {problem}"

    def check_output(
        self, recipe: Recipe, step: Step, path: str, log: str, findings: Findings
    ) -> None:
        """Check the cubin, once it is in an object."""
        from tilusbuild.compile.checks import check_device_code

        if step.name == "image":
            work = os.path.dirname(path)
            check_device_code(recipe, step, _encode_cubin(recipe), work, log, findings)

    def find_source_command(self, recipe: Recipe) -> tuple[str, ...]:
        raise ValueError("it is a cubin, which no command compiles")

    def dump_intermediates(self, recipe: Recipe, dump: DumpInProgress) -> None:
        dump.disassemble(os.path.join(dump.work, self.source_name))


def _encode_cubin(recipe: Recipe) -> bytes:
    return recipe.source.encode("utf-8", "surrogateescape")


KERNEL_CUBIN = KernelCubin()
