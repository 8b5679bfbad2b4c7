"""The cache as one build sees it: from its first compile on, garbage collection waits for its end.

What a build publishes belongs to no project before the index says so, and a collection in between
would take it away. A build that finds everything takes no lock at all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

from tilusbuild.cache.cache import Cache
from tilusbuild.cache.entries import Entry
from tilusbuild.cache.layout import LIBRARY, META
from tilusbuild.cache.stage import Stage
from tilusbuild.state.stamp import Stamp, stamp_of
from tilusbuild.status import Status

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
