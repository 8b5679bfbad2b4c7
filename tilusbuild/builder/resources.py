"""What a build holds while it runs: its store, its compiler, and tokens of a jobserver.

`BuildStore` is the cache as one build sees it; the compiler is in `compiler.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.builder.compiler import ProgramCompiler, RunnerStack, WrapRunner
from tilusbuild.builder.project import Project
from tilusbuild.cache.entries import Entry, Stage, lookup_entry, read_compiler_log
from tilusbuild.cache.tree import Tree
from tilusbuild.engine.history import History
from tilusbuild.engine.running import (
    Admission,
    BuildConfig,
    MemoryLimit,
    SharedTokens,
    make_load_limit,
)
from tilusbuild.manifest import Settings
from tilusbuild.process.jobserver import Jobserver, JobserverError, find_jobserver
from tilusbuild.process.local import LocalRunner
from tilusbuild.remote.lazy import LazyRemote
from tilusbuild.remote.user_settings import choose_remote
from tilusbuild.rooms import load_contribution

if TYPE_CHECKING:
    from tilusbuild.remote.archive import Archive


class BuildStore:
    """The engine's store. Use as a context manager: leaving it lets collections go on."""

    def __init__(self, cache: Tree) -> None:
        self._cache = cache
        self._guard = threading.Lock()
        self._kept = ExitStack()
        self._in_use = False

    def __enter__(self) -> BuildStore:
        return self

    def __exit__(self, *raised: object) -> None:
        self._kept.close()

    def find_entry(self, program: str, /) -> Entry | None:
        return lookup_entry(self._cache, program)

    def lock_program(self, program: str, /, wait: bool) -> AbstractContextManager[bool]:
        """Return a context that holds a program's lock. From the first call until the store is
        closed, no garbage collection runs in the cache."""
        # The cache is held from the first compile on, and not from the start: a build that finds
        # everything must not wait for a collection, and must work in a cache that is read-only.
        with self._guard:
            if not self._in_use:
                self._kept.enter_context(self._cache.hold_use())
                self._in_use = True
        return self._cache.lock_program(program, wait)

    def open_stage(self) -> Stage:
        return Stage(self._cache)

    def program_path(self, program: str, /) -> str:
        return self._cache.program_path(program)

    def read_log(self, program: str, /) -> str:
        return read_compiler_log(self._cache, program)


@contextmanager
def open_resources(
    settings: Settings, environment: Mapping[str, str], runner: LocalRunner, config: BuildConfig
) -> Iterator[BuildConfig]:
    """Connect to make's jobserver, and yield the config with its tokens and the admission limits.

    A jobserver that cannot be used is a warning of the config. Every token is returned at the end.
    """
    # `MemoryLimit` measures the free memory when it is made, so it is made before any compile
    # starts.
    admissions: list[Admission] = [MemoryLimit().can_start]
    if (load := settings.load_average.value) is not None:
        admissions.append(make_load_limit(load))
    warnings: tuple[str, ...] = ()
    tokens: Jobserver | None = None
    with ExitStack() as stack:
        try:
            if (address := find_jobserver(environment)) is not None:
                tokens = stack.enter_context(Jobserver(address, runner.deposit_tokens))
        except JobserverError as error:
            warnings = (str(error),)
        yield replace(config, tokens=tokens, admissions=tuple(admissions), warnings=warnings)


class Builder(Struct, frozen=True):
    """What the engine needs to build programs of a project. The compiler is the user's to close."""

    store: BuildStore
    compiler: ProgramCompiler
    config: BuildConfig


def _list_unsafe_flags(project: Project) -> Iterator[str]:
    """Yield a warning where flags are passed on that may break every guarantee."""
    scripts = project.manifest.scripts.items()
    owners = ", ".join(f"script {name}" for name, script in scripts if script.unsafe_flags)
    # Those of `[build]` hold for all scripts.
    if project.manifest.build.unsafe_flags:
        owners = "[build]"
    if owners:
        yield f"{owners}: unsafe-flags: no hash covers what these flags run, read and write"


def _add_executor(
    project: Project, remote: LazyRemote, config: BuildConfig
) -> tuple[BuildConfig, WrapRunner | None]:
    """Open the remote executor, if the manifest or the environment names one.

    Return the config with the executor's tokens and jobs added to this machine's, and the function
    that wraps a job's runner. Without an executor, return the config as it is, and None. Raises
    `InputError`.
    """
    settings = choose_remote(project.manifest.remote, project.environment, "executor")
    if settings is None:
        return config, None
    slots = config.slots
    # There is one token less than there are local slots, as the first compile needs none.
    tokens = SharedTokens(config.tokens, slots - 1, settings.jobs)

    def count_local_slots() -> int:
        return min(slots, 1 + tokens.local_tokens)

    wrap_runner = remote.open_executors(settings, project.runner.open_scope(), count_local_slots)
    if wrap_runner is None:
        return config, None
    return replace(config, tokens=tokens, jobs=slots + settings.jobs), wrap_runner


def _make_lazy_verify(project: Project) -> Callable[[str, Archive], str | None]:
    """Return the function that compiles a remote's program again; that raises `InputError` without
    the room for it."""

    # Made at the first call: most builds verify nothing.
    @cache
    def make_verify() -> Callable[[str, Archive], str | None]:
        make_rebuilder = load_contribution("rebuild", "programs", "compiles programs again")
        verify: Callable[[str, Archive], str | None]
        verify = make_rebuilder(project.cache.root, project.runner).verify_archive
        return verify

    return lambda program, archive: make_verify()(program, archive)


@contextmanager
def open_builder(project: Project, config: BuildConfig) -> Iterator[Builder]:
    """Open everything that one build needs. Raises `InputError`.

    The config is completed with the machine's limits, and with the cache's history where it has
    none.
    """
    with (
        open_resources(project.settings, project.environment, project.runner, config) as limited,
        BuildStore(project.cache) as store,
        LazyRemote(
            choose_remote(project.manifest.remote, project.environment),
            store,
            project.cache,
            _make_lazy_verify(project),
        ) as remote,
    ):
        shared_config, wrap_runner = _add_executor(project, remote, limited)
        runners = RunnerStack(
            project.runner,
            project.find_launcher(),
            project.environment,
            project.settings.nice.value,
            wrap_runner,
        )
        compiler = ProgramCompiler(project.cache, runners, project.manifest.build.timeout)
        full_config = replace(
            shared_config,
            history=config.history or History(project.cache.state_path),
            remote=remote,
            warnings=(*shared_config.warnings, *_list_unsafe_flags(project)),
        )
        yield Builder(store, compiler, full_config)
