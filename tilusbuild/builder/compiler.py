"""The engine's compiler: lays out headers, fills the module directory, runs the pipeline's steps.

It is called from several threads. A directory of headers, or of a launcher, is published before the
first program that needs it is compiled. What runs a program's commands is a stack of runners, made
for each program by `RunnerStack.make_runner`, from the innermost outwards.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.cache.entries import Stage
from tilusbuild.cache.includes import publish_include
from tilusbuild.cache.tree import Tree
from tilusbuild.compile.model import OBJECT
from tilusbuild.compile.module import collect_module_files, describe_program, lay_out_launcher
from tilusbuild.compile.units import MAX_IN_MEMORY, UnitSteps, trim_store
from tilusbuild.engine.interfaces import Job, ProgramStage
from tilusbuild.plan.rendering import RenderedProgram
from tilusbuild.process.base import Command, CompletedCommand, PrefixRunner, Runner
from tilusbuild.process.local import LocalRunner
from tilusbuild.render.closure import map_layout
from tilusbuild.state.envelope import StepStore
from tilusbuild.status import Cause, Compiled
from tilusbuild.toolchain import Toolchain
from tilusbuild.toolchain.probe import ToolsChangedError

if TYPE_CHECKING:
    from tilusbuild.process.resident import ResidentPool
    from tilusbuild.toolchain.nvrtc import NvrtcLibrary


WrapRunner: TypeAlias = Callable[[Runner, Job, Toolchain], Runner]
"""Returns a runner that runs a job's commands on the given one or on another machine."""


class RunnerStack(Struct, frozen=True):
    """The runners of a build, from which each program gets one of its own."""

    local: LocalRunner
    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None
    """The prefix's."""
    nice: int = 0
    elsewhere: WrapRunner | None = None
    """None where only this machine compiles."""

    def make_runner(self, job: Job, toolchain: Toolchain, residents: ResidentPools) -> Runner:
        """Return a runner for the commands of one program, which can be cancelled alone.

        From the inside: a new process or one that has NVRTC loaded, the prefix, other machines.
        """
        scope = self.local.open_scope()
        runner: Runner = scope
        # A resident process would bypass the prefix.
        if toolchain.nvrtc is not None and not self.prefix:
            from tilusbuild.process.resident import ResidentRunner

            runner = ResidentRunner(residents.find_pool(toolchain.nvrtc), scope)
        if self.prefix or self.nice:
            runner = PrefixRunner(self.prefix, runner, self.nice, self.environment)
        return runner if self.elsewhere is None else self.elsewhere(runner, job, toolchain)


class RecordingRunner:
    """Runs commands on another runner, and adds each command line to `command_lines`."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.command_lines: list[str] = []

    def run(self, command: Command) -> CompletedCommand:
        self.command_lines.append(shlex.join(command.argv))
        return self._runner.run(command)

    def cancel(self) -> None:
        self._runner.cancel()


class ResidentPools:
    """The processes that have NVRTC loaded, by its library, and the running compiles."""

    def __init__(self, runner: LocalRunner) -> None:
        self._runner = runner
        self._guard = threading.Lock()
        self._pools: dict[NvrtcLibrary, ResidentPool] = {}
        self.running: list[tuple[Job, Runner]] = []
        """The jobs that are compiled now, with their runners."""

    def find_pool(self, nvrtc: NvrtcLibrary) -> ResidentPool:
        """Return the pool of the processes that have this library loaded; make it at first."""
        from tilusbuild.process.resident import ResidentPool

        with self._guard:
            if nvrtc not in self._pools:
                self._pools[nvrtc] = ResidentPool(self._runner, nvrtc.command)
            return self._pools[nvrtc]

    def release_idle(self) -> None:
        """End the idle processes."""
        # A copy: a compile that begins now may add a pool.
        for pool in list(self._pools.values()):
            pool.release_idle()

    def close(self) -> None:
        """End the idle processes, and keep none from now on."""
        for pool in self._pools.values():
            pool.close()


class ProgramLayout(NamedTuple):
    """The published directories that a program is compiled with."""

    launcher_digest: str
    """"" without a launcher."""
    header_directory: str | None


class IncludeLayout:
    """The directories of headers and launchers that a build's programs are compiled with."""

    def __init__(self, cache: Tree, runners: RunnerStack, timeout: float | None) -> None:
        self._cache = cache
        self._runners = runners
        self._timeout = timeout
        self._directories: dict[str, str] = {}
        self._guard = threading.Lock()
        self.launchers = StepStore(os.path.join(cache.state_path, "launchers"))

    def lay_out_program(
        self, work: RenderedProgram, stage: str, runner: Runner
    ) -> ProgramLayout | Compiled:
        """Publish the directories of a program's launcher and headers, as far as it has them.

        Return where they are; or the result of the launcher's compile if that fails. Raises
        `CacheError` and `CancelledError`.
        """
        recipe, closure = work.recipe, work.closure
        launcher_digest = ""
        if recipe.pipeline.launcher.is_there:
            launcher_library: bytes | None = None
            # A compiler of host code compiles the launcher together with the program.
            if not recipe.pipeline.host_code:
                from tilusbuild.compile.program import compile_launcher

                library_or_failure = compile_launcher(
                    recipe, work.toolchain, stage, runner, self.launchers, self._timeout
                )
                if isinstance(library_or_failure, Compiled):
                    return library_or_failure
                launcher_library = library_or_failure
            launcher_digest, files = lay_out_launcher(recipe, launcher_library)
            self._lay_out_directory(launcher_digest, lambda: files)
        if not closure.headers:
            return ProgramLayout(launcher_digest, None)
        directory = self._lay_out_directory(closure.digest, lambda: map_layout(closure))
        return ProgramLayout(launcher_digest, directory)

    def _lay_out_directory(
        self, digest: str, files: Callable[[], Mapping[str, bytes | str]]
    ) -> str:
        """Publish a directory of a launcher or of headers, and return its path. Only the first call
        for a digest calls `files` and compares the contents."""
        # The guard is held while files are written, so that a second program with this digest waits
        # until the directory is complete.
        with self._guard:
            if digest not in self._directories:
                self._directories[digest] = publish_include(self._cache, digest, files())
            return self._directories[digest]


class ProgramCompiler:
    """Compiles the programs of one plan, each with its own toolchain."""

    def __init__(self, cache: Tree, runners: RunnerStack, timeout: float | None) -> None:
        """`timeout` is in seconds, for each process."""
        self._cache = cache
        self._runners = runners
        self._timeout = timeout
        units, codes = (os.path.join(cache.state_path, name) for name in ("units", "code"))
        self._units = StepStore(units, in_memory=MAX_IN_MEMORY)
        self._codes = StepStore(codes, in_memory=0)
        self._has_compiled = False
        self._residents = ResidentPools(runners.local)
        self._layout = IncludeLayout(cache, runners, timeout)

    def compile(self, job: Job, work: RenderedProgram, stage: ProgramStage, /) -> Compiled:
        """Compile a rendered program into `stage`. Return the result, with meta.json and the
        command lines that were run.

        Raises `CancelledError` and `OSError`; raises `ToolsChangedError` when the compile may have
        seen other tools than its hash names.
        """
        runner = RecordingRunner(self._runners.make_runner(job, work.toolchain, self._residents))
        # The steps that programs share are keyed by the tools. These are the last section of
        # options.txt, such as "[toolchain]\nnvcc 12.8.93 …".
        _, _, tools = work.options_txt.partition("\n[toolchain]\n")
        for line in work.toolchain.fingerprint_joiner:  # which sees finished code only
            tools = tools.replace(f"{line}\n", "")
        units = UnitSteps(tools, self._units, self._codes)
        self._has_compiled = True
        running = (job, runner)
        self._residents.running.append(running)
        try:
            compiled = self._compile_rendered(work, stage.path, runner, units)
        finally:
            self._residents.running.remove(running)
        # A tool that was half written may print any error, or crash. After such a compile the files
        # of large directories are compared, too, which takes longer.
        is_suspect = compiled.cause not in (None, Cause.CHECK, Cause.LIMIT)
        changed_path = work.toolchain.find_changed_path(is_exhaustive=is_suspect)
        if changed_path is not None:
            units.forget_used()
            raise ToolsChangedError(f"{changed_path} changed while it was used; build again")
        return replace(
            compiled,
            meta=describe_program(work.recipe, compiled),
            commands=tuple(runner.command_lines),
        )

    def _compile_rendered(
        self, work: RenderedProgram, stage: str, runner: Runner, units: UnitSteps
    ) -> Compiled:
        """Write the files of the stage's `module` directory, and run the pipeline's steps. Return
        the result, which may be that of the launcher's compile."""
        from tilusbuild.compile.program import compile_program

        module = os.path.join(stage, "module")
        os.makedirs(module)
        layout = self._layout.lay_out_program(work, stage, runner)
        if isinstance(layout, Compiled):
            return layout
        files = collect_module_files(work.recipe, work.toolchain, layout.launcher_digest)
        for name, data in files.items():
            with open(os.path.join(module, name), "wb") as file:
                file.write(data)
        objects = [
            os.path.join(self._cache.program_path(program), "module", OBJECT)
            for program in work.recipe.objects
        ]
        return compile_program(
            work.recipe,
            work.toolchain,
            stage,
            layout.header_directory,
            runner,
            self._layout.launchers,
            timeout=self._timeout,
            notes=work.closure.notes,
            objects=objects,
            units=units,
        )

    def lay_out_includes(self, work: RenderedProgram) -> None:
        """Publish the directories of a program's headers and launcher, as `compile` does, without
        compiling the program. Raises `CacheError` and `CancelledError`."""
        stage = Stage(self._cache)
        try:
            self._layout.lay_out_program(work, stage.path, self._runners.local.open_scope())
        finally:
            stage.discard()

    def cancel(self) -> None:
        # The idle processes are ended first: a compile that begins now could get one of them just
        # before all processes are killed below.
        self._residents.release_idle()
        for _, runner in list(self._residents.running):
            runner.cancel()
        self._runners.local.cancel()

    def cancel_job(self, job: Job) -> None:
        """Kill the compile that has this very object."""
        for running_job, runner in list(self._residents.running):
            if running_job is job:
                runner.cancel()

    def close(self) -> None:
        """End the processes that were kept for the next program, and trim the stores."""
        self._residents.close()
        for store in (self._units, self._codes) if self._has_compiled else ():
            trim_store(store.directory or "")
