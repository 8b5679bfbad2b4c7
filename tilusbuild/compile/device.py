"""A kernel's device code alone, for who launches it through the driver: no launcher, no linker.

With tools of NVRTC (`nvrtc_tools`) nothing but that library is needed: neither nvcc, nor a host
compiler, nor binutils. The steps, the checks and the log are those of a whole program.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from tilusbuild.compile import checks
from tilusbuild.compile.model import Outcome, Recipe
from tilusbuild.compile.program import Compile
from tilusbuild.compile.steps import image_name
from tilusbuild.compile.tools import Tools
from tilusbuild.process.base import Runner
from tilusbuild.state.objects import LauncherStore
from tilusbuild.status import Cause
from tilusbuild.toolchain import Nvrtc


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """What came of a compile. `image` is a cubin, a fatbin for several architectures or PTX, and
    empty unless `outcome.status` is "built". The log names lines of the rendered source:
    `render.messages.map_messages` has the template's."""

    outcome: Outcome
    image: bytes


def nvrtc_tools(nvrtc: Nvrtc) -> Tools:
    """What `compile_device` needs of a machine that has NVRTC and no compiler besides."""
    return Tools(
        paths={"{nvrtc}": nvrtc.command},
        environment={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
        folders={},
        cuda_fingerprint=(),
        cc_fingerprint=(),
        cuda_headers=nvrtc.include_dir,
    )


def compile_device(
    recipe: Recipe,
    tools: Tools,
    folder: str,
    include_dir: str | None,
    runner: Runner,
    timeout: float | None = None,
) -> DeviceCode:
    """Compile a recipe of the kernel pipeline in a folder below `folder`, which is removed again.

    `include_dir` is the folder of the recipe's headers, `timeout` is in seconds for each process.
    Raises `CancelledError` and `OSError` (of the folder's file system).
    """
    if problem := checks.launch_problem(recipe):
        return DeviceCode(Outcome(Cause.SOURCE, f"{problem}\n", reason=problem), b"")
    work = os.path.join(folder, "work")
    try:
        compiling = Compile(recipe, tools, folder, work, runner, LauncherStore(), timeout)
        compiling.prepare(include_dir)
        source = os.path.join(work, "source.cu")
        with open(source, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(recipe.source)
        os.utime(source, (1, 1))
        outcome = compiling.run(device_only=True)
        if outcome.cause is not None:
            return DeviceCode(outcome, b"")
        with open(os.path.join(work, image_name(recipe)), "rb") as image:
            return DeviceCode(outcome, image.read())
    finally:
        shutil.rmtree(work, ignore_errors=True)
