"""The common part of the kernel pipelines: device code alone, checked, then linked with a launcher.

No host code of the template is compiled, which would be most of nvcc's time on a small kernel. The
device code is checked before the link: a kernel that cannot be launched, or exceeds a limit, ends
there.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from tilusbuild.compile.geometry import program_source
from tilusbuild.compile.kernel_names import SYMBOL_FILE
from tilusbuild.compile.launcher import KERNEL_LAUNCHER
from tilusbuild.compile.model import Findings, Pipeline, Recipe, Step
from tilusbuild.compile.steps import LIBRARY_FLAGS, ONE_SEGMENT_FLAGS
from tilusbuild.runtime.regular import read_bytes

_LINK = ("-shared", *LIBRARY_FLAGS, *ONE_SEGMENT_FLAGS, "--hash-style=gnu", "--eh-frame-hdr")
"""No C library is linked: its functions are found in the process, whatever its version is."""


def image_name(recipe: Recipe) -> str:
    """Return the name of the file of device code that is linked."""
    return "program.fatbin" if len(recipe.archs) > 1 or recipe.ptx else "program.cubin"


class KernelPipeline(Pipeline):
    """A pipeline whose subclass compiles the device code."""

    name = "kernel"
    launcher = KERNEL_LAUNCHER
    fixed_files: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def device_steps(self, recipe: Recipe, image: str) -> list[Step]:
        """Return the commands that make the device code, `image`."""

    def commands(self, recipe: Recipe) -> list[Step]:
        link = ("{ld}", *_LINK, "program.o", "launcher.o", "-o", "lib.so")
        return [
            *self.device_steps(recipe, image_name(recipe)),
            Step("image", ("{as}", "program.s", "-o", "program.o"), "program.o", False),
            Step("link", link, "lib.so", False),
        ]

    def generated(self, recipe: Recipe) -> dict[str, str]:
        return {"program.s": program_source(recipe, image_name(recipe))}

    def problem(self, recipe: Recipe) -> str | None:
        from tilusbuild.compile.checks import launch_problem

        return launch_problem(recipe)

    def device_image(self, recipe: Recipe) -> str:
        return image_name(recipe)

    def judge(self, recipe: Recipe, step: Step, path: str, log: str, found: Findings) -> None:
        """Check the device code against the signature, the launch and the limits."""
        from tilusbuild.compile.checks import judge_code, judge_symbol

        work = os.path.dirname(path)
        if step.output == SYMBOL_FILE:
            judge_symbol(recipe, work)
        elif step.output == image_name(recipe):
            judge_code(recipe, step, read_bytes(path), work, log, found)
