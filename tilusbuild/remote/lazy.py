"""The remote of a build before it is needed: nothing is imported, started or connected until a
program is missing here, and nothing of a remote cache can end the build."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tilusbuild.cache import layout
from tilusbuild.cache.tree import Tree
from tilusbuild.engine import events
from tilusbuild.engine.interfaces import Job, Store
from tilusbuild.process.elsewhere import HERE, WAITING, Executor, NobodyElse, Tell
from tilusbuild.remote.settings import RemoteSettings, not_installed
from tilusbuild.status import Compiled

if TYPE_CHECKING:
    from typing_extensions import Self

    from tilusbuild.process.base import Command, CompletedCommand, Runner
    from tilusbuild.remote.client import RemoteCache
    from tilusbuild.remote.execute import Executed, RemoteExecutor
    from tilusbuild.remote.origins import Origins
    from tilusbuild.toolchain import Toolchain


class LazyRemote:
    """Use as a context manager: leaving it ends the remote's threads. Without settings it has
    nothing."""

    def __init__(self, settings: RemoteSettings | None, store: Store, cache: Tree) -> None:
        self._settings = settings
        self._store = store
        self._cache = cache
        self._client: RemoteCache | None = None
        self._opened = False
        self._origins: Origins | None = None
        self._tell: Callable[[Any], None] = _nobody
        self._address = ""
        self._share: Callable[[Toolchain], LazyExecutor] | None = None
        self._executors: list[tuple[Toolchain, LazyExecutor]] = []
        """One for each toolchain: what a worker has is compared with what is here."""
        self._guard = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for _, executor in self._executors:
            executor.close()
        if self._client is not None:
            self._client.close()
        if self._origins is not None:
            self._origins.save()

    @property
    def patience(self) -> float:
        return 0.0 if self._settings is None else self._settings.patience

    @property
    def doubted(self) -> bool:
        return self._settings is not None and self._settings.verify > 0

    def ask(self, jobs: Sequence[Job], tell: Callable[[Any], None], /) -> Collection[str]:
        self._tell = tell
        if jobs and not self._opened and self._settings is not None:
            self._opened = True  # whatever comes of it, once is enough
            self._open(self._settings, tell)
        return () if self._client is None else self._client.ask(jobs, tell)

    def built(self, job: Job, compiled: Compiled, /) -> None:
        if self._client is not None or self._share is not None or self._others_made_some:
            self._known_origins().made(job.hash, compiled.elsewhere)
        # What was compiled was asked for before, so the client is there if there can be one.
        if self._client is not None and not job.kept_here:
            self._client.built(job.hash, compiled.seconds)

    @cached_property
    def _others_made_some(self) -> bool:
        """Whether other machines made something of this cache, also in earlier builds."""
        return os.path.exists(os.path.join(self._cache.state_path, layout.ORIGINS))

    def _known_origins(self) -> Origins:
        if self._origins is None:
            from tilusbuild.remote.origins import Origins

            self._origins = Origins(self._cache)
        return self._origins

    def busy(self) -> bool:
        return self._client is not None and self._client.busy()

    def stop(self) -> None:
        if self._client is not None:
            self._client.stop()

    def summary(self) -> events.RemoteSummary | None:
        found = None if self._client is None else self._client.summary()
        opened = (executor.executed for _, executor in self._executors)
        done = [each for each in opened if each is not None and each.commands]
        if not done:
            return found
        return replace(
            found or events.RemoteSummary(self._address, 0, 0, 0, 0, 0, 0, 0, 0.0),
            executed=sum(each.commands for each in done),
            executor=self._address,
            remembered=sum(each.remembered for each in done),
            executed_seconds=sum(each.seconds for each in done),
            inputs_bytes=sum(each.inputs for each in done),
            outputs_bytes=sum(each.outputs for each in done),
        )

    def share(self, settings: RemoteSettings, runner: Runner) -> None:
        """Have programs compiled elsewhere, too; errors are reported as those of the cache are."""

        def warn(why: str) -> None:
            self._tell(events.Warned(f"remote execution: {why}"))

        self._address = settings.address
        self._share = lambda toolchain: LazyExecutor(settings, toolchain, runner, warn)

    def executor_for(self, job: Job, toolchain: Toolchain) -> Executor:
        """Return the executor of a program: none, where it is to be compared with what the
        cache has. Who answers there may also be who executes."""
        measured = self._client is not None and self._client.measures(job.hash)
        if measured or self._share is None:
            return NobodyElse()
        with self._guard:
            for known, executor in self._executors:
                if known is toolchain or known == toolchain:
                    return executor
            made = self._share(toolchain)
            self._executors.append((toolchain, made))
            return made

    def follow(self, job: Job) -> Tell:
        """Return what is called with the place of a job's commands."""

        def tell(place: str, worker: str) -> None:
            where = "" if place in (WAITING, HERE) else self._address
            self._tell(events.Placed(job.hash, job.label, place, where, worker))

        return tell

    def _open(self, settings: RemoteSettings, tell: Callable[[Any], None]) -> None:
        try:
            from tilusbuild.remote.backend import RemoteTroubleError
            from tilusbuild.remote.client import RemoteCache
        except ImportError as error:
            why = not_installed(error)
            tell(events.Warned(f"remote cache: {why}; this build does without it"))
            return
        try:
            origins = self._known_origins()
            self._client = RemoteCache(settings, self._store, self._cache, tell, origins)
        except RemoteTroubleError as error:
            tell(events.Warned(f"remote cache: {error}; this build does without it"))


def _nobody(message: object) -> None: ...


class LazyExecutor:
    """An `elsewhere.Executor` that is opened when this machine's places are taken."""

    def __init__(
        self,
        settings: RemoteSettings,
        toolchain: Toolchain,
        runner: Runner,
        warn: Callable[[str], None],
    ) -> None:
        """`runner` runs the probe's part here, and nothing else."""
        self._settings = settings
        self._sends = settings.toolchain == "inputs"
        self._toolchain = toolchain
        self._runner = runner
        self._warn = warn
        self._lock = threading.Lock()
        self._opened = False
        self._executor: RemoteExecutor | None = None

    @property
    def address(self) -> str:
        return self._settings.address

    @property
    def executed(self) -> Executed | None:
        return None if self._executor is None else self._executor.executed

    def ready(self) -> bool:
        with self._lock:
            if not self._opened:
                self._opened = True
                self._open()
        return self._executor is not None and self._executor.ready()

    def run(
        self, command: Command, cancelled: threading.Event, tell: Tell
    ) -> CompletedCommand | None:
        return None if self._executor is None else self._executor.run(command, cancelled, tell)

    def cancel(self, cancelled: threading.Event) -> None:
        if self._executor is not None:
            self._executor.cancel(cancelled)

    def close(self) -> None:
        self._runner.cancel()
        if self._executor is not None:
            self._executor.close()

    def _open(self) -> None:
        try:
            from tilusbuild.remote.backend import RemoteTroubleError
            from tilusbuild.remote.execute import RemoteExecutor
            from tilusbuild.remote.probe import probe
            from tilusbuild.remote.toolkit import toolkit
        except ImportError as error:
            self._warn(not_installed(error))
            return
        sent = (lambda: toolkit(self._toolchain, self._runner)) if self._sends else None
        try:
            self._executor = RemoteExecutor(
                self._settings,
                lambda there: probe(self._toolchain, self._runner, there),
                self._warn,
                sent,
            )
        except RemoteTroubleError as error:
            self._warn(str(error))
