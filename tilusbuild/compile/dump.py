"""What `--dump-ir` shows of a compile: what went in and came out of each step, for people to read.

A dump is beside a program and no part of it: it is made by compiling once more with the compiler's
intermediate files kept and line numbers on, so neither the library nor its record changes. What a
step does not give, or a machine has no tool for, is left out.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tilusbuild.binary import BinaryError
from tilusbuild.binary.fatbin import Cubin, extract_cubins
from tilusbuild.compile.model import Outcome, Recipe
from tilusbuild.compile.program import Compile
from tilusbuild.compile.steps import Step, image_name, ptx_steps, steps
from tilusbuild.compile.tools import tools_of
from tilusbuild.process.base import Runner
from tilusbuild.state.objects import LauncherStore
from tilusbuild.toolchain.disassembler import disassembler

if TYPE_CHECKING:
    from tilusbuild.toolchain import Toolchain

KEPT = "kept"
TIMINGS, USAGE = "timings.txt", "usage.txt"
_DEVICE_II = re.compile(r"source(?:\.compute_(\w+))?\.cpp1\.ii")
_PTX = re.compile(r"source(?:\.compute_(\w+))?\.ptx")


def dump_module(
    recipe: Recipe,
    toolchain: Toolchain,
    stage: str,
    include_dir: str | None,
    runner: Runner,
    timeout: float | None = None,
) -> Outcome:
    """Write `module/ir` in a stage whose `module` folder holds the module's files; how the compile
    itself ended. Raises `CancelledError` and `OSError` (of the stage's file system)."""
    folder, work = os.path.join(stage, "module", "ir"), os.path.join(stage, "work")
    os.makedirs(folder, exist_ok=True)
    try:
        compiling = Compile(
            recipe, tools_of(toolchain), stage, work, runner, LauncherStore(), timeout
        )
        compiling.prepare(include_dir)
        dumping = _Dump(recipe, compiling, folder, disassembler(toolchain.cuda))
        outcome = compiling.run(device_only=recipe.pipeline == "kernel")
        dumping.timed("compile", outcome.seconds)
        dumping.everything(outcome)
        return outcome
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _Dump:
    def __init__(
        self, recipe: Recipe, compiling: Compile, folder: str, disassembler: str | None
    ) -> None:
        self._recipe = recipe
        self._compiling = compiling
        self._work = compiling.work
        self._folder = folder
        self._disassembler = disassembler
        self._times: list[str] = []

    def timed(self, what: str, seconds: float) -> None:
        self._times.append(f"{seconds:9.3f} s  {what}\n")

    def everything(self, outcome: Outcome) -> None:
        if self._recipe.pipeline == "cpu":
            self._host()
        elif self._recipe.through_nvrtc:
            for step in ptx_steps(self._recipe):
                if self._run(step):
                    self._copy(step.output, step.output)
            self._sass(os.path.join(self._work, image_name(self._recipe)))
        else:
            self._kept_by_nvcc()
        self._write(USAGE, "".join(self._usage(outcome)))
        self._write(TIMINGS, "".join(self._times))

    def _run(self, step: Step) -> bool:
        """Whether the command made its output."""
        try:
            finished = self._compiling.execute(step)
        except OSError:
            return False
        self.timed(step.name, finished.seconds)
        return finished.status == 0 and os.path.exists(os.path.join(self._work, step.output))

    def _host(self) -> None:
        """g++'s: the preprocessed source, and assembly."""
        first = steps(self._recipe)[0].argv
        source = first[: first.index("-o")]
        mode = source.index("-c")
        for flag, name, what in (
            ("-E", "host.ii", "preprocess for the host"),
            ("-S", "host.s", "assembly"),
        ):
            argv = (*source[:mode], flag, *source[mode + 1 :], "-o", name)
            if self._run(Step(what, argv, name)):
                self._copy(name, name)

    def _kept_by_nvcc(self) -> None:
        """One run of nvcc for device and host, its intermediate files kept."""
        first = steps(self._recipe)[0].argv
        source = list(first[: first.index("-o")])
        modes = ("-cubin", "-fatbin", "-ptx", "-c")
        mode = next(i for i, word in enumerate(source) if word in modes)
        source[mode] = "-c"
        os.mkdir(os.path.join(self._work, KEPT))
        argv = (*source, "-lineinfo", "-keep", "-keep-dir", KEPT, "-o", "kept.o")
        self._run(Step("compile for host and device, with line numbers", argv, "kept.o"))
        for path in sorted(glob.glob(os.path.join(glob.escape(self._work), KEPT, "*"))):
            name = f"{KEPT}/{os.path.basename(path)}"
            if match := _DEVICE_II.fullmatch(os.path.basename(path)):
                self._copy(name, f"device{self._arch(match[1])}.ii")
            elif name.endswith(".cpp4.ii"):
                self._copy(name, "host.ii")
            elif match := _PTX.fullmatch(os.path.basename(path)):
                self._copy(name, f"{self._arch(match[1]).removeprefix('.') or 'kernel'}.ptx")
            elif name.endswith(".cubin"):
                self._sass(path)

    def _arch(self, number: str | None) -> str:
        """The part of a name that says which architecture; nvcc leaves it out when there is one."""
        if number is None and len(self._recipe.archs) == 1:
            return f".{self._recipe.archs[0].name}"
        return f".sm_{number}" if number else ""

    def _sass(self, path: str) -> None:
        """Every cubin of a file, taken apart, with the source's lines where it has them."""
        for cubin in _cubins(path):
            name = f"{cubin.image.arch}.sass"
            with open(os.path.join(self._work, "one.cubin"), "wb") as file:
                file.write(cubin.data)
            if self._disassembler is None:
                return
            argv = (self._disassembler, "-c", "-g", "one.cubin")
            try:
                finished = self._compiling.execute(Step("disassemble", argv, name))
            except OSError:
                return
            self.timed(f"disassemble {cubin.image.arch}", finished.seconds)
            if finished.status == 0:
                self._write(name, self._compiling.scrub(finished.output))

    def _copy(self, made: str, name: str) -> None:
        with open(os.path.join(self._work, made), "rb") as file:
            self._write(name, self._compiling.scrub(file.read()))

    def _write(self, name: str, text: str) -> None:
        if text:
            with open(os.path.join(self._folder, name), "w", encoding="utf-8") as file:
                file.write(text)

    def _usage(self, outcome: Outcome) -> Iterator[str]:
        for arch, usage in self._compiling.usages:
            yield (
                f"{arch.name} {usage.name}: {usage.registers} registers, {usage.stack} bytes of"
                f" stack, {usage.static_smem} bytes of static shared memory,"
                f" {usage.code_bytes} bytes of code\n"
            )
        for each in outcome.ptxas:
            yield (
                f"{each.arch} {each.kernel}: {each.spill_stores} bytes of spill stores,"
                f" {each.spill_loads} bytes of spill loads\n"
            )


def _cubins(path: str) -> tuple[Cubin, ...]:
    try:
        with open(path, "rb") as file:
            return extract_cubins(file.read())
    except (OSError, BinaryError):
        return ()
