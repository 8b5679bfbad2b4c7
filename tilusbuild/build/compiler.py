"""The engine's compiler: lays out headers, fills the module directory, compiles, reports resources.

Called from several threads. A directory of headers, or of a launcher, is published before the first
program that needs it is compiled, and every program that shares it finds it there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from tilusbuild.cache.cache import Cache
from tilusbuild.compile import (
    LauncherStore,
    Outcome,
    compile_program,
    launcher_directory,
    launcher_object,
    module_files,
)
from tilusbuild.compile.pipelines.nvcc import FIRST_RELEASE, ThreadsRunner
from tilusbuild.engine.interfaces import Compiled, Job, Stage
from tilusbuild.plan.script_instance import RenderedProgram
from tilusbuild.process.base import PrefixRunner, Runner
from tilusbuild.process.local import LocalRunner
from tilusbuild.process.resident import ResidentPool
from tilusbuild.render.closure import layout
from tilusbuild.toolchain import Toolchain


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
        self._running: dict[str, Runner] = {}
        self._launchers = LauncherStore(os.path.join(cache.state_path, "launchers"))
        nvrtc = toolchain.nvrtc
        self._residents = None if nvrtc is None or prefix else ResidentPool(runner, nvrtc.command)

    def compile(self, job: Job, work: RenderedProgram, stage: Stage, /) -> Compiled:
        """Fill `stage`. Raises `CancelledError` and `OSError`."""
        runner = self._running[job.hash] = self._scope()
        try:
            outcome = self._compile(work, stage.path, runner)
        finally:
            del self._running[job.hash]
        return Compiled(
            status=outcome.status,
            cause=outcome.cause,
            meta=described(work, outcome),
            log=outcome.log,
            reason=outcome.reason,
            seconds=outcome.seconds,
            peak_rss=outcome.peak_rss,
        )

    def _scope(self) -> Runner:
        """Return a runner for one program, whose commands can be cancelled alone."""
        scope = self._runner.scope()
        runner: Runner = scope
        if self._residents is not None:
            runner = self._residents.runner(scope)
        if self._prefix or self._nice:
            runner = PrefixRunner(self._prefix, runner, self._nice)
        cuda = self._toolchain.cuda
        if self._makeflags and not self._prefix and cuda and cuda.release >= FIRST_RELEASE:
            runner = ThreadsRunner(cuda.nvcc, self._makeflags, runner)
        return runner

    def _compile(self, work: RenderedProgram, stage: str, runner: Runner) -> Outcome:
        recipe = work.recipe
        module = os.path.join(stage, "module")
        os.makedirs(module)
        made: bytes | None = None
        if recipe.pipeline.ships_launcher:
            answer = launcher_object(
                recipe, self._toolchain, stage, runner, self._launchers, self._timeout
            )
            if isinstance(answer, Outcome):
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
        """Kill what runs for one program."""
        if (scope := self._running.get(job.hash)) is not None:
            scope.cancel()


def described(work: RenderedProgram, outcome: Outcome) -> Mapping[str, Any]:
    """Return what `meta.json` says of a program: its answer, what the binary holds, what it needs.

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
