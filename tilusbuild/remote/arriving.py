"""Blobs of a remote as files of a private directory, each asked for once, whoever needs it.

What came is written as it comes, compared with its size and its digest, and read again when it is
used: memory holds a piece of it. Small blobs stay until the end, as programs share them; a large
one until those have ended that need it. Price: a large file is written twice.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Collection, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from itertools import count
from weakref import WeakValueDictionary, finalize

from tilusbuild.cache.tree import Private, Tree
from tilusbuild.remote.backend import Backend, BrokenError, Guard
from tilusbuild.remote.record import Blob, RecordError

_KEPT = 1 << 20
"""Bytes of a blob that stays."""


class GoneError(Exception):
    """A blob no longer exists."""


class Arriving:
    """May be used from several threads."""

    def __init__(self, backend: Backend, guard: Guard, cache: Tree) -> None:
        self._backend = backend
        self._guard = guard
        self._cache = cache
        self._private: Private | None = None
        self._numbers = count()
        self._known: WeakValueDictionary[Blob, Future[str]] = WeakValueDictionary()
        self._small: list[Future[str]] = []
        self._lock = threading.Lock()
        self.bytes = 0
        """That came."""

    def bring(self, wanted: Collection[Blob]) -> dict[Blob, Future[str]]:
        """Return where blobs are, all of them done: a file that stays while its future is held,
        or `GoneError`, or `RecordError` for one that is wrong. Raises `BrokenError`, `OSError`."""
        found: dict[Blob, Future[str]] = {}
        mine: dict[Blob, Future[str]] = {}
        with self._lock:
            for blob in wanted:
                if (known := self._known.get(blob)) is None:
                    mine[blob] = self._known[blob] = known = Future()
                    self._small += [known] if blob.size <= _KEPT else []
                found[blob] = known
            self._private = self._private or self._cache.private()
        try:
            self._fetch(mine, self._private.path)
        finally:
            for each in mine.values():
                if not each.done():
                    each.set_exception(BrokenError())  # for who waits for it
        wait(found.values())
        return found

    def close(self) -> None:
        """Remove all."""
        if self._private is not None:
            self._private.discard()

    def _fetch(self, mine: dict[Blob, Future[str]], place: str) -> None:
        """Fetch blobs; once more what is wrong, which may be the line's fault."""
        wrong: set[Blob] = set()

        def keep(blob: Blob, pieces: Iterable[bytes]) -> None:
            if mine[blob].done():  # a server may say it twice
                return
            path = os.path.join(place, str(next(self._numbers)))
            finalize(mine[blob], _remove, path)
            right, size = written(path, blob, pieces)
            with self._lock:
                self.bytes += size
            if right:
                mine[blob].set_result(path)
            else:
                wrong.add(blob)

        def ask(some: Collection[Blob]) -> None:
            self._backend.blobs([blob for blob in some if not mine[blob].done()], keep)

        for some in (mine, wrong):
            if some:
                self._guard.call(partial(ask, some))
        for blob, each in mine.items():
            if not each.done():
                why = f"{blob.digest} does not match its digest"
                each.set_exception(RecordError(why) if blob in wrong else GoneError())


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def written(path: str, blob: Blob, pieces: Iterable[bytes]) -> tuple[bool, int]:
    """Write what comes to a file; return whether it is the blob, and how much came. No more is
    taken than a piece beyond its size."""
    found, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for piece in pieces:
            size += len(piece)
            if size > blob.size:
                break
            found.update(piece)
            file.write(piece)
    return size == blob.size and found.hexdigest() == blob.digest, size
