"""Compile one program: run its steps in a private directory, check their outputs, keep `lib.so`.

The stage's `module` directory holds the files of `module_files` before, and `nvcc_output.txt`
after the compile; `lib.so` too if the program is built. Nothing else is ever in the stage: the
private directory is beside it, so what could not be removed of it is not published.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from tilusbuild.compile import checks, declared, units
from tilusbuild.compile.causes import Program, StepError, failure, not_started, scrub
from tilusbuild.compile.launcher import launcher_source
from tilusbuild.compile.model import PRODUCT, Findings, Recipe, Step, Tools
from tilusbuild.compile.reads import Reads
from tilusbuild.compile.steps import (
    CC_FLAGS,
    ENVIRONMENT,
    LAUNCHER,
    LAUNCHER_OBJECT,
    LAUNCHER_STEP,
    TOOLS,
    defines,
    host_march,
    object_name,
    steps,
    tools_of,
)
from tilusbuild.compile.units import Shared, UnitSteps
from tilusbuild.errors import Diagnostic
from tilusbuild.process.base import Command, CompletedCommand, Runner, WorkerRun
from tilusbuild.render.closure import UNDETERMINED
from tilusbuild.runtime.regular import read_bytes, try_read_text
from tilusbuild.state.envelope import StepStore
from tilusbuild.status import RECORDED, Cause, Compiled, Status

if TYPE_CHECKING:
    from tilusbuild.toolchain import Toolchain


def launcher_object(
    recipe: Recipe,
    toolchain: Toolchain,
    stage: str,
    runner: Runner,
    launchers: StepStore,
    timeout: float | None = None,
) -> bytes | Compiled:
    """Return the launcher's object, compiled once for all programs of a script, or the outcome of
    a failed compile.

    It works in a directory beside the stage. Raises `CancelledError` and `OSError`.
    """
    work = f"{stage}.launcher"
    compiling = Compile(recipe, tools_of(toolchain), stage, work, runner, launchers, timeout)
    try:
        compiling.make_directory()
        return compiling.launcher()
    except StepError as stop:
        return Compiled.stopped(stop.cause, "".join(compiling.logs), stop.reason)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def compile_program(
    recipe: Recipe,
    toolchain: Toolchain,
    stage: str,
    include_dir: str | None,
    runner: Runner,
    launchers: StepStore,
    timeout: float | None = None,
    notes: Sequence[Diagnostic] = (),
    objects: Sequence[str] = (),
    units: UnitSteps | None = None,
) -> Compiled:
    """Compile `module/lib.so` in the stage, whose `module` directory holds the module's files; it
    works in a directory beside the stage.

    `include_dir` is the directory of the recipe's include layout, `timeout` is in seconds for each
    process, `notes` are those of the closure, `objects` the files of the recipe's objects; `units`
    keeps what programs share. Raises `CancelledError` and `OSError` (of the stage's file system).
    """
    starts_kernel = recipe.pipeline.launcher.starts_kernel and recipe.recorded is None
    if starts_kernel and (problem := checks.launch_problem(recipe)):
        return _finish(stage, Compiled.stopped(Cause.CHECK, "", problem))
    work = f"{stage}.work"
    try:
        compiling = Compile(recipe, tools_of(toolchain), stage, work, runner, launchers, timeout)
        compiling.notes = notes
        compiling.units = units or compiling.units
        compiling.prepare(include_dir)
        for number, path in enumerate(objects):
            try:
                shutil.copyfile(path, os.path.join(work, object_name(number)))
            except FileNotFoundError:
                # Taken back, with all that came from a remote that turned out to be wrong.
                reason = f"{path} no longer exists"
                return _finish(stage, Compiled.stopped(Cause.OUTPUT, "", reason))
        return _finish(stage, compiling.run())
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _finish(stage: str, outcome: Compiled) -> Compiled:
    log = outcome.log
    if outcome.reason and outcome.reason not in log:
        log = f"{log}{outcome.reason}\n"
    with open(os.path.join(stage, "module", "nvcc_output.txt"), "w", encoding="utf-8") as file:
        file.write(log)
    return outcome


class Compile(Struct):
    """One compile in progress, with its logs, resource use and findings so far."""

    recipe: Recipe
    tools: Tools
    stage: str
    work: str
    runner: Runner
    launchers: StepStore
    timeout: float | None
    logs: list[str] = field(default_factory=list)
    seconds: float = 0.0
    peak_rss: int = 0
    elsewhere: WorkerRun | None = None
    """Another machine that did a part: then nothing is known of the memory."""
    found: Findings = field(default_factory=Findings)
    include_dir: str | None = None
    notes: Sequence[Diagnostic] = ()
    units: UnitSteps = field(default_factory=lambda: UnitSteps(StepStore(), ""))
    used: str | None = None
    """The launcher that was linked, by its key."""

    def make_directory(self) -> None:
        """Create the private directory, with all that a tool finds by name."""
        for name in ("tmp", TOOLS):
            os.makedirs(os.path.join(self.work, name))
        for name, path in self.tools.links.items():
            os.symlink(os.path.abspath(path), os.path.join(self.work, TOOLS, name))

    def prepare(self, include_dir: str | None) -> None:
        """Create the private directory: copies of inputs with a fixed time, links to headers."""
        pipeline = self.recipe.pipeline
        self.include_dir = include_dir and os.path.abspath(include_dir)
        module = os.path.join(self.stage, "module")
        self.make_directory()
        for name in ("source.cu", *pipeline.fixed_files, *pipeline.written(self.recipe)):
            source = os.path.join(module, name)
            if os.path.exists(source):
                shutil.copyfile(source, os.path.join(self.work, name))
                # With -lineinfo, ptxas writes its inputs' times into the code.
                os.utime(os.path.join(self.work, name), (1, 1))
        headers = os.path.join(self.work, "include")
        if include_dir is not None and pipeline.copies_headers(self.recipe):
            shutil.copytree(include_dir, headers)
            for parent, _, names in os.walk(headers):
                for name in names:
                    os.utime(os.path.join(parent, name), (1, 1))
        elif include_dir is not None:
            os.symlink(os.path.abspath(include_dir), headers)
        for link, directory in pipeline.links(self.recipe, self.tools).items():
            os.symlink(directory, os.path.join(self.work, link))

    def run(self, *, until: str | None = None) -> Compiled:
        """Run all steps and publish the library; with `until`, stop when that output is made."""
        cause: Cause | None = None
        reason = ""
        try:
            self._check_source()
            for step in steps(self.recipe):
                path = os.path.join(self.work, step.output)
                if step == LAUNCHER_STEP:
                    self._check_declaration()
                    with open(path, "wb") as made:
                        made.write(self.launcher())
                elif step.unless_empty and not os.path.getsize(self._file(step.unless_empty[0])):
                    os.replace(self._file(step.unless_empty[1]), path)
                elif step.alone:
                    self._shared_step(step, path)
                else:
                    self._step(step)
                log = "".join(self.logs)
                if self.recipe.recorded is None:
                    self.recipe.pipeline.judge(self.recipe, step, path, log, self.found)
                if step.output == until:
                    break
            else:
                self._publish()
        except StepError as error:
            cause, reason = error.cause, error.reason
            if cause.status not in RECORDED:
                # It may be the launcher's fault: that gcc ended well is all we know of it.
                if self.used is not None:
                    self.launchers.drop_output(self.used)
                self.units.drop()
        return Compiled(
            Status.BUILT if cause is None else cause.status,
            cause=cause,
            log="".join(self.logs),
            ptxas=self.found.ptxas,
            images=self.found.images,
            seconds=self.seconds,
            peak_rss=self.peak_rss,
            reason=reason,
            elsewhere=self.elsewhere,
        )

    def _file(self, name: str) -> str:
        return os.path.join(self.work, name)

    def _check_source(self) -> None:
        headers = os.path.join(self.work, "include")
        copies = os.path.realpath(headers) if os.path.exists(headers) else None
        if error := self.recipe.pipeline.source_problem(self.recipe, copies):
            self.logs.append(error + "\n")
            raise StepError(Cause.CHECK, error)
        listed = self.recipe.pipeline.compiler != "NVRTC"
        if not listed and (error := self._reads().unheld(self.notes)):
            self.logs.append(error + "\n")
            raise StepError(Cause.OUTSIDE, error)

    def _check_declaration(self) -> None:
        """Compare the template's own function with the declared arguments."""
        if self.recipe.pipeline.launcher.starts_kernel or self.recipe.recorded is not None:
            return
        check = declared.declaration_check(self.recipe)
        if check is None:
            return
        unit, shared = check

        def ask() -> bytes:
            with open(self._file(declared.CHECK), "w", encoding="utf-8") as file:
                file.write(unit)
            command = self.recipe.pipeline.source_command(self.recipe)
            argv = declared.check_command(command, shared=shared)
            try:
                finished = self.execute(Step("declaration", argv, declared.CHECK))
            except OSError as error:
                raise not_started("g++", error) from None
            # Without what differs between schedules that share the answer.
            return "\n".join(declared.findings(finished.output.decode("utf-8", "replace"))).encode()

        key = StepStore.make_key(unit, (declared.CHECK,), self.tools.cc_fingerprint)
        found = self.launchers.get_or_make(key, ask) if shared else ask()
        if error := declared.problem(self.recipe, found.decode()):
            self.logs.append(error + "\n")
            raise StepError(Cause.SOURCE, error)

    def _shared_step(self, step: Step, path: str) -> None:
        """Have the output of a step for all programs of the unit, or for this one by itself."""

        def make() -> Shared:
            before = len(self.logs)
            try:
                self._step(step)
                ptx = read_bytes(path)
                return Shared(ptx, "".join(self.logs[before:]), units.entries(ptx))
            except StepError as error:
                if error.cause.status not in RECORDED:
                    raise
                return Shared(None, "")
            finally:
                del self.logs[before:]

        made = self.units.get(self.recipe, step, make)
        if made.output is None:
            count = len(self.recipe.unit)
            self.logs.append(f"{count} kernels do not compile together: this one compiles alone\n")
            self._step(step.by_itself)
            return
        with open(path, "wb") as file:
            file.write(units.of_one(self.recipe, made.output, made.kernels))
        self.logs.append(made.log)

    def _step(self, step: Step) -> None:
        try:
            finished = self.execute(step)
        except OSError as error:
            raise not_started(step.tool, error) from None
        log = self.scrub(finished.output)
        if log:
            self.logs.append(log if log.endswith("\n") else log + "\n")
        reads = self._reads()
        if not finished.timed_out and (
            outside := reads.problem(step, finished, self.recipe.source)
        ):
            outside = self.scrub(outside.encode("utf-8", "surrogateescape"))
            self.logs.append(f"{outside}\n")
            raise StepError(Cause.OUTSIDE, outside)
        if finished.status or finished.timed_out:
            program = self._program() if step.of_program else None
            meaning = checks.link_problem(self.recipe, log)
            if ended := failure(step.tool, finished, log, program, meaning):
                raise ended
        if not os.path.isfile(os.path.join(self.work, step.output)):
            raise StepError(Cause.OUTPUT, f"{step.tool} ended well but made no {step.output}")

    def _program(self) -> Program:
        """Return what tools were given of the program."""
        recipe = self.recipe
        march = f"-march={host_march(recipe)}" if recipe.pipeline.host_code else ""
        generated = recipe.pipeline.written(recipe).keys() - recipe.headers.keys()
        ours = {LAUNCHER, *recipe.pipeline.fixed_files, *generated}
        return Program(
            flags=(*recipe.options.flags, *defines(recipe), f"-std={recipe.options.std}", march),
            ours=frozenset(ours),
            headers=self._promised_headers,
            roots=tuple(name for name, _ in recipe.includes.roots),
        )

    def _promised_headers(self) -> frozenset[str] | None:
        """Return the names of the program's headers, there or not; None when that is unknown."""
        if any(UNDETERMINED in note.message for note in self.notes):
            return None
        if self.recipe.includes.digest is None:
            return frozenset()
        listed = try_read_text(self._file(os.path.join("include", "MANIFEST")), "replace")
        return frozenset(line[66:] for line in listed.splitlines()) if listed else None

    def execute(self, step: Step) -> CompletedCommand:
        """Run one step's command in the private directory. Raises `OSError` if it cannot start."""
        reads = self._reads()
        reads.forget()
        made = self.recipe.pipeline.made_elsewhere(step)
        why = self.recipe.pipeline.stays_here(self.recipe, self.notes) if made else None
        if stays := why is not None:
            made = ()
        command = Command(
            reads.argv(step),
            self.work,
            {**self.tools.environment, **ENVIRONMENT, **reads.environment},
            self.timeout,
            outputs=(*made, *reads.lists(step)) if made else (),
            stays=stays,
            on_worker=self.recipe.pipeline.on_worker(step, self.tools) if made else None,
            sandbox=reads.sandbox(step),
        )
        finished = self.runner.run(command)
        self.seconds += finished.seconds
        self.elsewhere = finished.elsewhere or self.elsewhere
        self.peak_rss = 0 if self.elsewhere else max(self.peak_rss, finished.peak_rss)
        return finished

    def _reads(self) -> Reads:
        return Reads(self.tools, self.work, self.include_dir)

    def scrub(self, output: bytes) -> str:
        return scrub(output, {self.work: "", "/proc/self/cwd": "", **self.tools.directories})

    def launcher(self) -> bytes:
        """Return the launcher's object from the store, or compile it."""
        source = launcher_source(self.recipe)

        def make() -> bytes:
            path = os.path.join(self.work, LAUNCHER)
            with open(path, "w", encoding="utf-8") as copy:
                copy.write(source)
            self._step(LAUNCHER_STEP)
            return read_bytes(os.path.join(self.work, LAUNCHER_OBJECT))

        self.used = StepStore.make_key(source, CC_FLAGS, self.tools.cc_fingerprint)
        return self.launchers.get_or_make(self.used, make)

    def _publish(self) -> None:
        pipeline = self.recipe.pipeline
        made = os.path.join(self.work, pipeline.product)
        data = read_bytes(made)
        images = checks.images_of(data)
        if pipeline.launcher.is_there and (
            problem := checks.library_problem(self.recipe, data, images)
        ):
            raise StepError(Cause.OUTPUT, problem)
        if pipeline.product == PRODUCT:
            os.chmod(made, 0o755)  # noqa: S103 - a library, as linkers leave it
        os.replace(made, os.path.join(self.stage, "module", pipeline.product))
        self.found.images = images
