"""The remote of a build before it is needed: nothing is imported, started or connected until a
program is missing here, and nothing of a remote cache can end the build."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from tilusbuild.cache.tree import Tree
from tilusbuild.engine import events
from tilusbuild.engine.inbox import Remote
from tilusbuild.engine.interfaces import Job, Store
from tilusbuild.process.base import Runner
from tilusbuild.remote.settings import RemoteSettings
from tilusbuild.rooms import find_contributions, import_value
from tilusbuild.status import Compiled

if TYPE_CHECKING:
    from tilusbuild.remote.archive import Archive
    from tilusbuild.remote.client import RemoteCache
    from tilusbuild.toolchain import Toolchain


class Executors(Protocol):
    """The workers that compile for a build, from an optional room.

    The class is called with the settings, a runner for its own commands, a function that returns
    how many compiles run on this machine at once, and a function that receives events.
    """

    def make_runner(self, inner: Runner, job: Job, toolchain: Toolchain) -> Runner:
        """Return a runner that runs a job's commands on `inner` or on a worker."""

    def make_counts(self) -> Mapping[str, Any]:
        """Return the fields of `events.RemoteSummary` that count the workers' compiles; empty
        without any."""

    def close(self) -> None:
        """Cancel all commands, and disconnect."""


class LazyRemote(Remote):
    """The remote of a build; without settings it has no program. As a context manager it ends the
    remote's threads."""

    def __init__(
        self,
        settings: RemoteSettings | None,
        store: Store,
        cache: Tree,
        verify: Callable[[str, Archive], str | None] | None = None,
    ) -> None:
        """`verify` is that of a `Fetcher`."""
        self._settings = settings
        self._store = store
        self._cache = cache
        self._verify = verify
        self._client: RemoteCache | None = None
        self._opened = False
        self._listen: Callable[[Any], None] = lambda _: None
        self._executors: Executors | None = None

    def __enter__(self) -> LazyRemote:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._executors is not None:
            self._executors.close()
        if self._client is not None:
            self._client.close()

    @property
    def patience(self) -> float:
        return 0.0 if self._settings is None else self._settings.patience

    def ask(self, jobs: Sequence[Job], listen: Callable[[Any], None], /) -> Collection[str]:
        """Start to fetch the programs of these jobs. Return the hashes of those for which `listen`
        gets an answer; none without a remote cache.

        The first call with jobs opens the remote; later events go to the `listen` of the last call.
        """
        self._listen = listen
        if jobs and not self._opened and self._settings is not None:
            self._opened = True  # a remote that cannot be opened is not tried again
            self._open_client(self._settings, listen)
        if self._client is None:
            return ()
        return self._client.request_programs({job.hash: job.label for job in jobs})

    def add_built(self, job: Job, compiled: Compiled, /) -> None:
        # What was compiled was asked for before, so the client is there if there can be one.
        if self._client is not None and not job.kept_here:
            self._client.record_built(job.hash, compiled.seconds)

    def is_busy(self) -> bool:
        return self._client is not None and self._client.is_busy()

    def stop(self) -> None:
        if self._client is not None:
            self._client.stop_transfers()

    def summary(self) -> events.RemoteSummary | None:
        """Return the counts of the remote cache and of the workers; None if neither was used."""
        summary = None if self._client is None else self._client.make_summary()
        counts = {} if self._executors is None else self._executors.make_counts()
        if not counts:
            return summary
        # An executor without a remote cache: all that a cache counts is 0.
        names = ("hits", "misses", "refused", "sent", "unsent", "fetched_bytes", "sent_bytes")
        zeros: dict[str, Any] = dict.fromkeys(names, 0)
        unused_cache = events.RemoteSummary(counts["executor"], saved_seconds=0.0, **zeros)
        return replace(summary or unused_cache, **counts)

    def open_executors(
        self, settings: RemoteSettings, runner: Runner, limit: Callable[[], int]
    ) -> Callable[[Runner, Job, Toolchain], Runner] | None:
        """Open the workers of a server. Return the function that makes a job's runner; None if no
        room speaks the address' protocol. `limit` returns how many compiles run on this machine at
        once."""
        class_path = find_contributions("remote executor").get(settings.scheme)
        if class_path is None:
            return None
        executors: Executors = import_value(class_path)(
            settings, runner, limit, lambda event: self._listen(event)
        )
        self._executors = executors
        return executors.make_runner

    def _open_client(self, settings: RemoteSettings, listen: Callable[[Any], None]) -> None:
        """Open the remote cache; if that fails, warn, and leave `_client` None."""
        from tilusbuild.remote.backend import RemoteTroubleError
        from tilusbuild.remote.client import RemoteCache

        try:
            self._client = RemoteCache(settings, self._store, self._cache, listen, self._verify)
        except RemoteTroubleError as error:
            listen(events.Warned(f"remote cache: {error}; this build does not use it"))
