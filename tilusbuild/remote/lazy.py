"""The remote of a build before it is needed: nothing is imported, started or connected until a
program is missing here, and nothing of a remote cache can end the build."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from tilusbuild.cache.cache import Cache
from tilusbuild.engine import events
from tilusbuild.engine.interfaces import Job, Store
from tilusbuild.remote.settings import RemoteSettings

if TYPE_CHECKING:
    from typing_extensions import Self

    from tilusbuild.remote.client import RemoteCache


class LazyRemote:
    """Use as a context manager: leaving it ends the remote's threads. Without settings it has
    nothing."""

    def __init__(self, settings: RemoteSettings | None, store: Store, cache: Cache) -> None:
        self._settings = settings
        self._store = store
        self._cache = cache
        self._client: RemoteCache | None = None
        self._opened = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._client is not None:
            self._client.close()

    @property
    def patience(self) -> float:
        return 0.0 if self._settings is None else self._settings.patience

    @property
    def doubted(self) -> bool:
        return self._settings is not None and self._settings.verify > 0

    def ask(self, jobs: Sequence[Job], tell: Callable[[Any], None], /) -> Collection[str]:
        if not self._opened and self._settings is not None:
            self._opened = True  # whatever comes of it, once is enough
            self._open(self._settings, tell)
        return () if self._client is None else self._client.ask(jobs, tell)

    def built(self, program: str, seconds: float, /) -> None:
        # What was compiled was asked for before, so the client is there if there can be one.
        if self._client is not None:
            self._client.built(program, seconds)

    def busy(self) -> bool:
        return self._client is not None and self._client.busy()

    def stop(self) -> None:
        if self._client is not None:
            self._client.stop()

    def summary(self) -> events.RemoteSummary | None:
        return None if self._client is None else self._client.summary()

    def _open(self, settings: RemoteSettings, tell: Callable[[Any], None]) -> None:
        try:
            from tilusbuild.remote.backend import RemoteTroubleError
            from tilusbuild.remote.client import RemoteCache
        except ImportError as error:
            why = f"{error.name} is not installed: pip install 'tilusbuild[remote]'"
            tell(events.Warned(f"remote cache: {why}; this build does without it"))
            return
        try:
            self._client = RemoteCache(settings, self._store, self._cache, tell)
        except RemoteTroubleError as error:
            tell(events.Warned(f"remote cache: {error}; this build does without it"))
