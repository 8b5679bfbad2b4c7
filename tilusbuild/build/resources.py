"""What a build holds while it runs: tokens of a jobserver, the store, the compiler.

Under make, a compile beside the first holds one of make's tokens. Elsewhere the tokens are of a
pool of our own, so that the threads of a compiler that asks for tokens
(`compile/pipelines/nvcc.py`) count as compiles do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from tilusbuild.build.compiler import ProgramCompiler
from tilusbuild.build.project import Project
from tilusbuild.build.store import BuildStore
from tilusbuild.engine.config import BuildConfig
from tilusbuild.engine.history import History
from tilusbuild.engine.resources import (
    Admission,
    AllOf,
    LoadLimit,
    MemoryLimit,
    TokenSource,
)
from tilusbuild.manifest import Settings
from tilusbuild.process.jobserver import (
    Jobserver,
    JobserverError,
    TokenPool,
    announced_jobserver,
)
from tilusbuild.process.local import LocalRunner
from tilusbuild.state.stamp import Stamp
from tilusbuild.toolchain import Toolchain


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
