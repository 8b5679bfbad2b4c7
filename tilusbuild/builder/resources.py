"""What a build holds while it runs: the engine's compiler and store, and tokens of a jobserver.

`ProgramCompiler` lays out headers, fills the module directory, compiles and reports resources. It
is called from several threads: a directory of headers, or of a launcher, is published before the
first program that needs it is compiled. `BuildStore` is the cache as one build sees it.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from tilusbuild.builder.project import Project
from tilusbuild.builder.timeline import TimedRunner
from tilusbuild.cache.entries import Entry, Stage, Stages, compiler_log, lookup
from tilusbuild.cache.includes import publish_include
from tilusbuild.cache.layout import LIBRARY
from tilusbuild.cache.tree import Tree
from tilusbuild.compile import (
    StepStore,
    UnitSteps,
    launcher_directory,
    module_files,
    unit_store,
)
from tilusbuild.compile.model import OBJECT
from tilusbuild.compile.pipelines.nvcc import FIRST_RELEASE, ThreadsRunner
from tilusbuild.engine.history import History
from tilusbuild.engine.interfaces import BuildConfig, Job, ProgramStage
from tilusbuild.engine.resources import (
    Admission,
    AllOf,
    LoadLimit,
    MemoryLimit,
    TokensBeside,
    TokenSource,
)
from tilusbuild.engine.timeline import LAUNCHER, Timeline
from tilusbuild.lazy_dataclass import dataclass
from tilusbuild.manifest import Settings
from tilusbuild.plan.rendering import RenderedProgram
from tilusbuild.process.base import PrefixRunner, Runner
from tilusbuild.process.jobserver import (
    Jobserver,
    JobserverError,
    TokenPool,
    announced_jobserver,
)
from tilusbuild.process.local import LocalRunner
from tilusbuild.remote.lazy import LazyRemote
from tilusbuild.remote.settings import decide
from tilusbuild.render.closure import Closure, layout
from tilusbuild.state.stamp import Stamp, stamp_of
from tilusbuild.status import Cause, Compiled, Status
from tilusbuild.toolchain import Toolchain, ToolsChangedError

if TYPE_CHECKING:
    from typing_extensions import Self

    from tilusbuild.process.resident import ResidentPool
    from tilusbuild.toolchain.nvrtc import NvrtcLibrary


_SEVERAL = 3
"""Programs of one script that are worth preparing for: their headers are precompiled."""

WATCHED = ("", "/module", f"/{LIBRARY}")
"""What is looked at of a program that was found whole before: a directory has another stamp when a
file in it was removed, added or replaced, and the library when it was written to. Each more of
these is a tenth of the time of a large build with nothing to do."""


Shared: TypeAlias = Callable[[Runner, Job, Toolchain], Runner]
"""Returns a runner of a job that also runs elsewhere, where the same tools are."""


def _alone(runner: Runner, job: Job, toolchain: Toolchain) -> Runner:
    return runner


class ProgramCompiler:
    """Compiles the programs of one plan, each with its own toolchain."""

    def __init__(
        self,
        cache: Tree,
        runner: LocalRunner,
        *,
        timeout: float | None,
        prefix: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        nice: int = 0,
        makeflags: str = "",
        timeline: Timeline,
        shared: Shared = _alone,
    ) -> None:
        """`environment` is the prefix's; `makeflags` are for compilers with threads of their own;
        `shared` says who else runs commands."""
        self._shared = shared
        self._timeline = timeline
        self._cache = cache
        self._runner = runner
        self._timeout = timeout
        self._prefix = prefix
        self._environment = environment
        self._nice = nice
        self._makeflags = makeflags
        self._directories: dict[str, str] = {}
        self._laying_out = threading.Lock()
        self._running: dict[int, Runner] = {}
        self._expected: Counter[str] = Counter()
        """The programs of each script that are still to be compiled."""
        self._launchers = StepStore(os.path.join(cache.state_path, "launchers"))
        self._units = unit_store(os.path.join(cache.state_path, "units"))
        self._residents: dict[NvrtcLibrary, ResidentPool] = {}
        self._opening = threading.Lock()

    def compile(self, job: Job, work: RenderedProgram, stage: ProgramStage, /) -> Compiled:
        """Fill `stage`. Raises `CancelledError` and `OSError`."""
        runner = self._running[id(job)] = self._scope(job, work.toolchain)
        ran: list[str] = []
        units = UnitSteps(self._units, work.options_txt.partition("\n[toolchain]\n")[2])
        try:
            outcome = self._compile(work, stage.path, runner, ran, units)
        finally:
            del self._running[id(job)]
        try:
            _check_tools(work.toolchain, outcome)
        except ToolsChangedError:
            units.drop()
            raise
        from tilusbuild.compile.described import described

        return replace(outcome, meta=described(work.recipe, outcome), commands=tuple(ran))

    def expect(self, jobs: Iterable[Job], /) -> None:
        self._expected = Counter(job.script for job in jobs)

    def _more_to_come(self, script: str) -> bool:
        """Return whether each compiler that runs will probably get several more of a script."""
        self._expected[script] -= 1
        return self._expected[script] >= _SEVERAL * (len(self._running) + 1)

    def _residents_of(self, nvrtc: NvrtcLibrary | None) -> ResidentPool | None:
        """Return the processes that have a library loaded; None where none are kept."""
        if nvrtc is None or self._prefix:
            return None
        from tilusbuild.process import resident

        with self._opening:
            if nvrtc not in self._residents:
                self._residents[nvrtc] = resident.ResidentPool(self._runner, nvrtc.command)
            return self._residents[nvrtc]

    def _scope(self, job: Job, toolchain: Toolchain) -> Runner:
        """Return a runner for one program, whose commands can be cancelled alone."""
        scope = self._runner.scope()
        runner: Runner = scope
        more_to_come = self._more_to_come(job.script)
        if (residents := self._residents_of(toolchain.nvrtc)) is not None:
            from tilusbuild.toolchain.nvrtc_command import MORE

            runner = residents.runner(scope, MORE if more_to_come else ())
        if self._prefix or self._nice:
            runner = PrefixRunner(self._prefix, runner, self._nice, self._environment)
        cuda = toolchain.cuda
        if self._makeflags and not self._prefix and cuda and cuda.release >= FIRST_RELEASE:
            runner = ThreadsRunner(cuda.nvcc, self._makeflags, runner)
        return self._shared(runner, job, toolchain)

    def _timed(
        self, toolchain: Toolchain, runner: Runner, ran: list[str], before: str = ""
    ) -> Runner:
        nvrtc = toolchain.nvrtc
        names = {} if nvrtc is None else {nvrtc.command: "NVRTC"}
        return TimedRunner(runner, self._timeline, names, before, ran)

    def _compile(
        self,
        work: RenderedProgram,
        stage: str,
        runner: Runner,
        ran: list[str],
        units: UnitSteps,
    ) -> Compiled:
        module = os.path.join(stage, "module")
        os.makedirs(module)
        from tilusbuild.compile.program import compile_program

        laid_out = self._lay_out_all(work, stage, runner, ran)
        if isinstance(laid_out, Compiled):
            return laid_out
        launcher, include = laid_out
        for name, data in module_files(work.recipe, work.toolchain, launcher).items():
            with open(os.path.join(module, name), "wb") as file:
                file.write(data)
        return compile_program(
            work.recipe,
            work.toolchain,
            stage,
            include,
            self._timed(work.toolchain, runner, ran),
            self._launchers,
            self._timeout,
            work.closure.notes,
            [
                os.path.join(self._cache.program_path(program), "module", OBJECT)
                for program in work.recipe.objects
            ],
            units,
        )

    def lay_out(self, work: RenderedProgram) -> None:
        """Lay out a program's headers and its launcher, as compiling it does. Raises `CacheError`
        and `CancelledError`."""
        stage = Stage(self._cache)
        try:
            self._lay_out_all(work, stage.path, self._runner.scope(), [])
        finally:
            stage.discard()

    def _lay_out_all(
        self, work: RenderedProgram, stage: str, runner: Runner, ran: list[str]
    ) -> tuple[str, str | None] | Compiled:
        """Return the launcher's digest ("" without one) and the directory of headers, both laid
        out; or the outcome of a launcher that was not made."""
        recipe = work.recipe
        headers = work.closure
        if not recipe.pipeline.launcher.is_there:
            return "", self._headers(headers)
        made: bytes | None = None
        if recipe.pipeline.script.ships_launcher:
            from tilusbuild.compile.program import launcher_object

            timed = self._timed(work.toolchain, runner, ran, f"{LAUNCHER}: ")
            answer = launcher_object(
                recipe, work.toolchain, stage, timed, self._launchers, self._timeout
            )
            if isinstance(answer, Compiled):
                return answer
            made = answer
        launcher, files = launcher_directory(recipe, made)
        self._lay_out(launcher, lambda: files)
        return launcher, self._headers(headers)

    def _headers(self, headers: Closure) -> str | None:
        """Return the directory of a closure's headers, laid out; None when there are none."""
        if not headers.headers:
            return None
        return self._lay_out(headers.digest, lambda: layout(headers))

    def _lay_out(self, digest: str, files: Callable[[], Mapping[str, bytes | str]]) -> str:
        """Return the directory of a launcher or of headers, checked by content once a build."""
        with self._laying_out:
            if digest not in self._directories:
                self._directories[digest] = publish_include(self._cache, digest, files())
            return self._directories[digest]

    def cancel(self) -> None:
        for residents in list(self._residents.values()):
            residents.drain()
        for scope in list(self._running.values()):
            scope.cancel()
        self._runner.cancel()

    def close(self) -> None:
        """End the processes that were kept for the next program."""
        for residents in self._residents.values():
            residents.close()

    def cancel_job(self, job: Job) -> None:
        """Kill the compile that has this very object."""
        if (scope := self._running.get(id(job))) is not None:
            scope.cancel()


def _check_tools(toolchain: Toolchain, outcome: Compiled) -> None:
    """Raise `ToolsChangedError` when a compile may have seen other tools than its hash names.

    What a tool reported may come from a file that was half written; so may its crash.
    """
    whole = outcome.cause not in (None, Cause.CHECK, Cause.LIMIT)
    if (path := toolchain.changed(whole=whole)) is not None:
        raise ToolsChangedError(f"{path} changed while it was used; build again")


class BuildStore:
    """The engine's store. Use as a context manager: leaving it lets collections go on.

    `seen` are programs that an earlier build found built and whole, with the stamps of `WATCHED`:
    one that still has them is not read again.
    """

    def __init__(self, cache: Tree, seen: Mapping[str, tuple[Stamp, ...]] | None = None) -> None:
        self._cache = cache
        self._seen: Mapping[str, tuple[Stamp, ...]] = seen or {}
        self._guard = threading.Lock()
        self._kept = ExitStack()
        self._stages = Stages(cache)
        self._kept.callback(self._stages.close)
        self._in_use = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._kept.close()

    def lookup(self, program: str, /) -> Entry | None:
        path = self._cache.program_path(program)
        stamps = self._seen.get(program)
        if stamps and all(
            stamp_of(path + part) == stamp for part, stamp in zip(WATCHED, stamps, strict=True)
        ):
            return Entry(program, path, Status.BUILT, {})
        return lookup(self._cache, program)

    def locked(self, program: str, /, wait: bool) -> AbstractContextManager[bool]:
        # From the first compile on, not from the start: a build that finds everything must not wait
        # for a collection, and must work in a cache that cannot be written.
        with self._guard:
            if not self._in_use:
                self._kept.enter_context(self._cache.in_use())
                self._in_use = True
        return self._cache.locked(program, wait)

    def stage(self) -> Stage:
        return self._stages.make()

    def program_path(self, program: str, /) -> str:
        return self._cache.program_path(program)

    def log(self, program: str, /) -> str:
        return compiler_log(self._cache, program)


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """What a build asks before it starts a compiler, and what it gives to it."""

    tokens: TokenSource
    admission: Admission
    warnings: tuple[str, ...]
    makeflags: str
    """MAKEFLAGS for compilers with threads of their own."""
    nice: int


@contextmanager
def open_resources(
    settings: Settings, environment: Mapping[str, str], runner: LocalRunner
) -> Iterator[ResourceLimits]:
    """Connect to make's jobserver, or make a pool; give every token back at the end."""
    load = settings.load_average.value
    memory = MemoryLimit()
    warnings: tuple[str, ...] = ()
    outer: Jobserver | None = None
    with ExitStack() as opened:
        try:
            if (address := announced_jobserver(environment)) is not None:
                outer = opened.enter_context(Jobserver(address, runner.hold))
        except JobserverError as error:
            warnings = (str(error),)
        # Make's own tokens are not shown to compilers: nvcc gives none back when it is killed, and
        # make would do with fewer until it ends. So under make the pool is empty.
        pool = opened.enter_context(TokenPool(0 if outer else settings.jobs.value - 1))
        yield ResourceLimits(
            tokens=outer or pool,
            admission=memory if load is None else AllOf(memory, LoadLimit(load)),
            warnings=warnings,
            makeflags=pool.makeflags,
            nice=settings.nice.value,
        )


@dataclass(frozen=True, slots=True)
class Builder:
    """What the engine needs to build programs of a project. The compiler is the user's to close."""

    store: BuildStore
    compiler: ProgramCompiler
    config: BuildConfig


def _unsafe(project: Project) -> Iterator[str]:
    """Yield a warning where flags are passed on that may break every guarantee."""
    manifest = project.manifest
    named = [name for name, script in manifest.scripts.items() if script.unsafe_flags]
    if manifest.build.unsafe_flags or named:
        where = (
            "[build]" if manifest.build.unsafe_flags else ", ".join(f"script {n}" for n in named)
        )
        yield f"{where}: unsafe-flags: what these flags run, read and write is in no hash"


def _beside(
    project: Project,
    remote: LazyRemote,
    limits: ResourceLimits,
    config: BuildConfig,
) -> tuple[TokenSource, int | None, Shared]:
    """Return the tokens and the jobs of a build, and who runs its commands: with an executor, there
    are more of them than this machine has places. Raises `InputError`."""
    settings = decide(project.manifest.remote, project.environment, "executor")
    if settings is None:
        return limits.tokens, config.jobs, _alone
    from tilusbuild.process.elsewhere import Places, SharingRunner

    here = config.places
    tokens = TokensBeside(limits.tokens, settings.jobs)
    places = Places(lambda: min(here, 1 + tokens.here))
    remote.share(settings, project.runner.scope())
    jobs = here + settings.jobs

    def shared(runner: Runner, job: Job, toolchain: Toolchain) -> Runner:
        executor = remote.executor_for(job, toolchain)
        return SharingRunner(runner, executor, places, remote.follow(job))

    return tokens, jobs, shared


@contextmanager
def open_builder(
    project: Project,
    config: BuildConfig,
    *,
    seen: Mapping[str, tuple[Stamp, ...]] | None = None,
) -> Iterator[Builder]:
    """Open everything that one build needs; `seen` is for the store. Raises `InputError`.

    The config is completed with the machine's limits, and with the cache's history where it has
    none.
    """
    with (
        open_resources(project.settings, project.environment, project.runner) as limits,
        BuildStore(project.cache, seen) as store,
        LazyRemote(
            decide(project.manifest.remote, project.environment), store, project.cache
        ) as remote,
    ):
        tokens, jobs, shared = _beside(project, remote, limits, config)
        compiler = ProgramCompiler(
            project.cache,
            project.runner,
            timeout=project.manifest.build.timeout,
            prefix=project.launcher(),
            environment=project.environment,
            nice=limits.nice,
            makeflags=limits.makeflags,
            timeline=project.timeline,
            shared=shared,
        )
        whole = replace(
            config,
            history=config.history or History(project.cache.state_path),
            admission=limits.admission,
            tokens=tokens,
            jobs=jobs,
            timeline=project.timeline,
            remote=remote,
            warnings=(*limits.warnings, *_unsafe(project)),
        )
        yield Builder(store, compiler, whole)
