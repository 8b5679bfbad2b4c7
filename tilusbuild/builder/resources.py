"""What a build holds while it runs: the engine's compiler and store, and tokens of a jobserver.

`ProgramCompiler` lays out headers, fills the module directory, compiles and reports resources. It
is called from several threads: a directory of headers, or of a launcher, is published before the
first program that needs it is compiled. `BuildStore` is the cache as one build sees it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tilusbuild.builder.project import Project
from tilusbuild.cache.cache import Cache
from tilusbuild.cache.entries import Entry, Stage
from tilusbuild.cache.layout import LIBRARY, META
from tilusbuild.compile import (
    CompileOutcome,
    LauncherStore,
    compile_program,
    launcher_directory,
    launcher_object,
    module_files,
)
from tilusbuild.compile.pipelines.nvcc import FIRST_RELEASE, ThreadsRunner
from tilusbuild.engine.history import History
from tilusbuild.engine.interfaces import BuildConfig, Compiled, Job, ProgramStage
from tilusbuild.engine.resources import (
    Admission,
    AllOf,
    LoadLimit,
    MemoryLimit,
    TokenSource,
)
from tilusbuild.manifest import Settings
from tilusbuild.plan.script_instance import RenderedProgram
from tilusbuild.process.base import PrefixRunner, Runner
from tilusbuild.process.jobserver import (
    Jobserver,
    JobserverError,
    TokenPool,
    announced_jobserver,
)
from tilusbuild.process.local import LocalRunner
from tilusbuild.process.resident import ResidentPool
from tilusbuild.render.closure import layout
from tilusbuild.state.stamp import Stamp, stamp_of
from tilusbuild.status import Cause, Status
from tilusbuild.toolchain import Toolchain, ToolsChangedError

if TYPE_CHECKING:
    from typing_extensions import Self


class ProgramCompiler:
    """Compiles the programs of one plan with one toolchain."""

    def __init__(
        self,
        cache: Cache,
        toolchain: Toolchain,
        runner: LocalRunner,
        *,
        timeout: float | None,
        prefix: tuple[str, ...] = (),
        nice: int = 0,
        makeflags: str = "",
    ) -> None:
        """`makeflags` are for compilers with threads of their own."""
        self._cache = cache
        self._toolchain = toolchain
        self._runner = runner
        self._timeout = timeout
        self._prefix = prefix
        self._nice = nice
        self._makeflags = makeflags
        self._directories: dict[str, str] = {}
        self._laying_out = threading.Lock()
        self._running: dict[int, Runner] = {}
        self._launchers = LauncherStore(os.path.join(cache.state_path, "launchers"))
        nvrtc = toolchain.nvrtc
        self._residents = None if nvrtc is None or prefix else ResidentPool(runner, nvrtc.command)

    def compile(self, job: Job, work: RenderedProgram, stage: ProgramStage, /) -> Compiled:
        """Fill `stage`. Raises `CancelledError` and `OSError`."""
        runner = self._running[id(job)] = self._scope()
        try:
            outcome = self._compile(work, stage.path, runner)
        finally:
            del self._running[id(job)]
        self._check_tools(outcome)
        return Compiled(
            status=outcome.status,
            cause=outcome.cause,
            meta=described(work, outcome),
            log=outcome.log,
            reason=outcome.reason,
            seconds=outcome.seconds,
            peak_rss=outcome.peak_rss,
        )

    def _check_tools(self, outcome: CompileOutcome) -> None:
        """Raise `ToolsChangedError` when the compile may have seen other tools than its hash names.

        What a tool reported may come from a file that was half written; so may its crash.
        """
        whole = outcome.cause not in (None, Cause.CHECK, Cause.LIMIT)
        if (path := self._toolchain.changed(whole=whole)) is not None:
            raise ToolsChangedError(f"{path} changed while it was used; build again")

    def _scope(self) -> Runner:
        """Return a runner for one program, whose commands can be cancelled alone."""
        scope = self._runner.scope()
        runner: Runner = scope
        if self._residents is not None:
            runner = self._residents.runner(scope)
        if self._prefix or self._nice:
            path = self._toolchain.environment()["PATH"]
            runner = PrefixRunner(self._prefix, runner, self._nice, path)
        cuda = self._toolchain.cuda
        if self._makeflags and not self._prefix and cuda and cuda.release >= FIRST_RELEASE:
            runner = ThreadsRunner(cuda.nvcc, self._makeflags, runner)
        return runner

    def _compile(self, work: RenderedProgram, stage: str, runner: Runner) -> CompileOutcome:
        recipe = work.recipe
        module = os.path.join(stage, "module")
        os.makedirs(module)
        made: bytes | None = None
        if recipe.pipeline.script.ships_launcher:
            answer = launcher_object(
                recipe, self._toolchain, stage, runner, self._launchers, self._timeout
            )
            if isinstance(answer, CompileOutcome):
                return answer
            made = answer
        launcher, files = launcher_directory(recipe, made)
        self._lay_out(launcher, lambda: files)
        for name, data in module_files(recipe, self._toolchain, launcher).items():
            with open(os.path.join(module, name), "wb") as file:
                file.write(data)
        headers = work.closure
        include = None
        if headers.headers:
            include = self._lay_out(headers.digest, lambda: layout(headers))
        return compile_program(
            recipe,
            self._toolchain,
            stage,
            include,
            runner,
            self._launchers,
            self._timeout,
            headers.notes,
        )

    def _lay_out(self, digest: str, files: Callable[[], Mapping[str, bytes | str]]) -> str:
        """Return the directory of a launcher or of headers, checked by content once a build."""
        with self._laying_out:
            if digest not in self._directories:
                self._directories[digest] = self._cache.publish_include(digest, files())
            return self._directories[digest]

    def cancel(self) -> None:
        if self._residents is not None:
            self._residents.drain()
        self._runner.cancel()

    def close(self) -> None:
        """End the processes that were kept for the next program."""
        if self._residents is not None:
            self._residents.close()

    def cancel_job(self, job: Job) -> None:
        """Kill the compile that has this very object."""
        if (scope := self._running.get(id(job))) is not None:
            scope.cancel()


def described(work: RenderedProgram, outcome: CompileOutcome) -> Mapping[str, Any]:
    """Return the `meta.json` of a program: its status, what the binary holds, what it needs.

    `kernels` is by name and architecture, in bytes and registers of a thread; `dynamic_smem` is the
    launch's bytes of a block, or the expression when the call decides it.
    """
    kernels: dict[str, dict[str, Any]] = {}
    for usage in outcome.ptxas:
        kernels.setdefault(usage.kernel, {})[usage.arch] = {
            "registers": usage.registers,
            "stack": usage.stack,
            "spill_stores": usage.spill_stores,
            "spill_loads": usage.spill_loads,
            "static_smem": usage.static_smem,
            "barriers": usage.barriers,
        }
    images = [
        {"kind": image.kind, "arch": image.arch, "size": image.size} for image in outcome.images
    ]
    meta: dict[str, Any] = {
        "status": outcome.status,
        "reason": outcome.reason,
        "images": images,
        "kernels": kernels,
    }
    launch = work.recipe.launch
    if launch is not None:
        smem = launch.smem.substitute(work.recipe.constants)
        meta["dynamic_smem"] = smem.canonical if smem.constant is None else smem.constant
    return meta


class BuildStore:
    """The engine's store. Use as a context manager: leaving it lets collections go on.

    `seen` are programs that an earlier build found built and whole, with the stamps
    of their libraries: one that still has its stamp is not read again.
    """

    def __init__(self, cache: Cache, seen: Mapping[str, Stamp] | None = None) -> None:
        self._cache = cache
        self._seen = seen or {}
        self._guard = threading.Lock()
        self._kept = ExitStack()
        self._in_use = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._kept.close()

    def lookup(self, program: str, /) -> Entry | None:
        path = self._cache.program_path(program)
        stamp = self._seen.get(program)
        # meta.json is what makes a directory an entry: without it there is none, whatever the
        # library says.
        same = stamp is not None and stamp_of(os.path.join(path, LIBRARY)) == stamp
        if same and os.path.exists(os.path.join(path, META)):
            return Entry(program, path, Status.BUILT, {})
        return self._cache.lookup(program)

    def locked(self, program: str, /, wait: bool) -> AbstractContextManager[bool]:
        # From the first compile on, not from the start: a build that finds everything must not wait
        # for a collection, and must work in a cache that cannot be written.
        with self._guard:
            if not self._in_use:
                self._kept.enter_context(self._cache.in_use())
                self._in_use = True
        return self._cache.locked(program, wait)

    def stage(self) -> Stage:
        return self._cache.stage()

    def program_path(self, program: str, /) -> str:
        return self._cache.program_path(program)

    def log(self, program: str, /) -> str:
        return self._cache.log(program)


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


@contextmanager
def open_builder(
    project: Project,
    toolchain: Toolchain,
    config: BuildConfig,
    *,
    seen: Mapping[str, Stamp] | None = None,
) -> Iterator[Builder]:
    """Open everything that one build needs; `seen` is for the store. Raises `InputError`.

    The config is completed with the machine's limits, and with the cache's history where it has
    none.
    """
    with (
        open_resources(project.settings, project.environment, project.runner) as limits,
        BuildStore(project.cache, seen) as store,
    ):
        compiler = ProgramCompiler(
            project.cache,
            toolchain,
            project.runner,
            timeout=project.manifest.build.timeout,
            prefix=project.launcher(),
            nice=limits.nice,
            makeflags=limits.makeflags,
        )
        whole = replace(
            config,
            history=config.history or History(project.cache.state_path),
            admission=limits.admission,
            tokens=limits.tokens,
            warnings=limits.warnings,
        )
        yield Builder(store, compiler, whole)
