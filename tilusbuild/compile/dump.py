"""`--dump-ir`: the inputs and outputs of each step of a compile, for people to read.

A dump stands beside a program and is not part of it: the program is compiled once more, with the
compiler's intermediate files kept and line numbers on, so neither the library nor `meta.json`
changes. An output that a step does not have, or that needs a missing tool, is left out.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tilusbuild.binary import BinaryError
from tilusbuild.binary.fatbin import Cubin, extract_cubins
from tilusbuild.compile.model import Recipe, Step
from tilusbuild.compile.program import Compile
from tilusbuild.compile.steps import tools_of
from tilusbuild.process.base import Runner
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.envelope import StepStore
from tilusbuild.status import Compiled
from tilusbuild.toolchain.cuda import disassembler

if TYPE_CHECKING:
    from tilusbuild.toolchain import Toolchain

TIMINGS, USAGE = "timings.txt", "usage.txt"


def dump_module(
    recipe: Recipe,
    toolchain: Toolchain,
    stage: str,
    include_dir: str | None,
    runner: Runner,
    timeout: float | None = None,
) -> Compiled:
    """Write `module/ir` in a stage whose `module` directory holds the module's files.

    Return the outcome of the compile. Raises `CancelledError` and `OSError` (of the stage's file
    system)."""
    directory, work = os.path.join(stage, "module", "ir"), os.path.join(stage, "work")
    os.makedirs(directory, exist_ok=True)
    try:
        compiling = Compile(recipe, tools_of(toolchain), stage, work, runner, StepStore(), timeout)
        compiling.prepare(include_dir)
        dump = Dump(compiling, directory, disassembler(toolchain.cuda))
        outcome = compiling.run(until=recipe.pipeline.device_image(recipe))
        dump.timed("compile", outcome.seconds)
        recipe.pipeline.dump(recipe, dump)
        dump.finish(outcome)
        return outcome
    finally:
        shutil.rmtree(work, ignore_errors=True)


class Dump:
    """A dump in progress: a pipeline runs commands and adds files through it.

    Names are relative to the private directory of the compile, which still holds all its files.
    """

    def __init__(self, compiling: Compile, directory: str, disassembler: str | None) -> None:
        self._compiling = compiling
        self.work = compiling.work
        self._directory = directory
        self._disassembler = disassembler
        self._times: list[str] = []

    def timed(self, what: str, seconds: float) -> None:
        """Add a line to the list of times."""
        self._times.append(f"{seconds:9.3f} s  {what}\n")

    def finish(self, outcome: Compiled) -> None:
        """Write the texts about the whole compile."""
        self._write(USAGE, "".join(self._usage(outcome)))
        self._write(TIMINGS, "".join(self._times))

    def run(self, step: Step) -> bool:
        """Run a command. Return whether it made its output."""
        try:
            finished = self._compiling.execute(step)
        except OSError:
            return False
        self.timed(step.name, finished.seconds)
        return finished.status == 0 and os.path.exists(os.path.join(self.work, step.output))

    def disassemble(self, path: str) -> None:
        """Write the instructions of every cubin in a file, with source lines if it has them."""
        for cubin in _cubins(path):
            name = f"{cubin.image.arch}.sass"
            with open(os.path.join(self.work, "one.cubin"), "wb") as file:
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

    def copy(self, made: str, name: str) -> None:
        """Add the output `made` of a command as `name`, without the paths and times of this run."""
        self._write(name, self._compiling.scrub(read_bytes(os.path.join(self.work, made))))

    def _write(self, name: str, text: str) -> None:
        if text:
            with open(os.path.join(self._directory, name), "w", encoding="utf-8") as file:
                file.write(text)

    def _usage(self, outcome: Compiled) -> Iterator[str]:
        for arch, usage in self._compiling.found.usages:
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
        return extract_cubins(read_bytes(path))
    except (OSError, BinaryError):
        return ()
