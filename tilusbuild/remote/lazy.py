"""The remote of a build before it is needed: nothing is imported, started or connected until a
program is missing here, and nothing of a remote cache can end the build."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from tilusbuild.cache import layout
from tilusbuild.cache.tree import Tree
from tilusbuild.engine import events
from tilusbuild.engine.inbox import Remote
from tilusbuild.engine.interfaces import Job, Store
from tilusbuild.process.base import Runner
from tilusbuild.remote.settings import RemoteSettings
from tilusbuild.rooms import brought, load
from tilusbuild.status import Compiled

if TYPE_CHECKING:
    from typing_extensions import Self

    from tilusbuild.remote.client import RemoteCache
    from tilusbuild.remote.origins import Origins
    from tilusbuild.toolchain import Toolchain


class Executors(Protocol):
    """The other machines that compile for a build, as an optional room brings them: it is made of
    the settings, a runner for its own commands, how many compile here at once, and a function that
    gets events."""

    def runner(self, inner: Runner, job: Job, toolchain: Toolchain, *, stays: bool) -> Runner:
        """Return what runs a job's commands on `inner`, or elsewhere; with `stays` here."""

    def counts(self) -> Mapping[str, Any]:
        """Return what of `events.RemoteSummary` is about them; empty if they did nothing."""

    def close(self) -> None:
        """Give everything up."""


class LazyRemote(Remote):
    """As a context manager it ends the remote's threads. Without settings it has nothing."""

    def __init__(self, settings: RemoteSettings | None, store: Store, cache: Tree) -> None:
        self._settings = settings
        self._store = store
        self._cache = cache
        self._client: RemoteCache | None = None
        self._opened = False
        self._listen: Callable[[Any], None] = _unheard
        self._executors: Executors | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._executors is not None:
            self._executors.close()
        if self._client is not None:
            self._client.close()
        if "_origins" in vars(self):
            self._origins.save()

    @property
    def patience(self) -> float:
        return 0.0 if self._settings is None else self._settings.patience

    @property
    def doubted(self) -> bool:
        return self._settings is not None and self._settings.verify > 0

    def ask(self, jobs: Sequence[Job], listen: Callable[[Any], None], /) -> Collection[str]:
        self._listen = listen
        if jobs and not self._opened and self._settings is not None:
            self._opened = True  # whatever comes of it, once is enough
            self._open(self._settings, listen)
        if self._client is None:
            return ()
        return self._client.ask({job.hash: job.label for job in jobs})

    def built(self, job: Job, compiled: Compiled, /) -> None:
        if self._client or self._executors or self._others_made_some:
            self._origins.made(job.hash, compiled.elsewhere)
        # What was compiled was asked for before, so the client is there if there can be one.
        if self._client is not None and not job.kept_here:
            self._client.built(job.hash, compiled.seconds)

    def busy(self) -> bool:
        return self._client is not None and self._client.busy()

    def stop(self) -> None:
        if self._client is not None:
            self._client.stop()

    def summary(self) -> events.RemoteSummary | None:
        found = None if self._client is None else self._client.summary()
        counts = {} if self._executors is None else self._executors.counts()
        if not counts:
            return found
        nothing = events.RemoteSummary(counts["executor"], 0, 0, 0, 0, 0, 0, 0, 0.0)
        return replace(found or nothing, **counts)

    def share(
        self, settings: RemoteSettings, runner: Runner, limit: Callable[[], int]
    ) -> Callable[[Runner, Job, Toolchain], Runner] | None:
        """Have programs compiled elsewhere, too; return what makes a job's runner, None where
        nothing is installed that speaks to such an address. `limit`: how many compile here."""
        kind = brought("remote executor").get(settings.scheme)
        if kind is None:
            return None
        executors: Executors = load(kind)(settings, runner, limit, lambda each: self._listen(each))
        self._executors = executors

        def shared(inner: Runner, job: Job, toolchain: Toolchain) -> Runner:
            # What is compared with the remote's is compiled here: there may be who answers here.
            measured = self._client is not None and self._client.measures(job.hash)
            return executors.runner(inner, job, toolchain, stays=measured)

        return shared

    @cached_property
    def _others_made_some(self) -> bool:
        """Whether other machines made something of this cache, also in earlier builds."""
        return os.path.exists(os.path.join(self._cache.state_path, layout.ORIGINS))

    @cached_property
    def _origins(self) -> Origins:
        from tilusbuild.remote.origins import Origins

        return Origins(self._cache)

    def _open(self, settings: RemoteSettings, listen: Callable[[Any], None]) -> None:
        from tilusbuild.remote.backend import RemoteTroubleError
        from tilusbuild.remote.client import RemoteCache

        try:
            self._client = RemoteCache(settings, self._store, self._cache, listen, self._origins)
        except RemoteTroubleError as error:
            listen(events.Warned(f"remote cache: {error}; this build does not use it"))


def _unheard(message: object) -> None: ...
