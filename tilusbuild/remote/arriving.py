"""Blobs of a remote as files of a private directory, each asked for once, whoever needs it.

What came is written as it comes, compared with its size and its digest, and read again when it is
used: memory holds a piece of it. Small blobs stay until the end, as programs share them; a large
one until those have ended that need it. Price: a large file is written twice.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeAlias

from tilusbuild.cache.tree import Private, Tree
from tilusbuild.remote.backend import Backend, BrokenError, Guard
from tilusbuild.remote.record import Blob, RecordError

_KEPT = 1 << 20
"""Bytes of a blob that stays."""
_COMING, _HERE, _GONE, _WRONG = range(4)

Bring: TypeAlias = Callable[[Collection[Blob]], None]


class Arriving:
    """May be used from several threads."""

    def __init__(self, backend: Backend, guard: Guard, cache: Tree) -> None:
        self._backend = backend
        self._guard = guard
        self._cache = cache
        self._private: Private | None = None
        self._states: dict[Blob, int] = {}
        self._users: Counter[Blob] = Counter()
        self._changed = threading.Condition()
        self.bytes = 0
        """That came."""

    @contextmanager
    def together(self) -> Iterator[Bring]:
        """Give a function that returns when blobs are here, or known to be gone or wrong; they stay
        until the end. It raises `BrokenError`, `OSError`."""
        used: set[Blob] = set()

        def bring(wanted: Collection[Blob]) -> None:
            new = set(wanted) - used
            used.update(new)
            with self._changed:
                self._users.update(new)
                mine = [blob for blob in new if blob not in self._states]
                self._states.update(dict.fromkeys(mine, _COMING))
            self._fetch(mine)
            with self._changed:
                self._changed.wait_for(lambda: all(self._states.get(b) != _COMING for b in new))
                if not self._states.keys() >= new:
                    raise BrokenError  # who has asked for it could not

        try:
            yield bring
        finally:
            with self._changed:
                self._users.subtract(used)
                ended = [blob for blob in used if not self._users[blob] and blob.size > _KEPT]
                for blob in ended:
                    if self._states.pop(blob, _GONE) != _GONE:
                        with suppress(OSError):
                            os.unlink(self._path(blob))

    def path(self, blob: Blob, name: str) -> str | None:
        """Return where a blob is that was brought, as the content of `name`; None when it is gone.
        Raises `RecordError` when it is wrong."""
        state = self._states[blob]
        if state == _WRONG:
            raise RecordError(f"{name} has other bytes than its digest says")
        return self._path(blob) if state == _HERE else None

    def close(self) -> None:
        """Remove all."""
        if self._private is not None:
            self._private.discard()

    def _fetch(self, mine: Collection[Blob]) -> None:
        """Fetch blobs; once more what is wrong, which may be the line's fault."""
        kept: dict[Blob, bool] = {}

        def keep(blob: Blob, pieces: Iterable[bytes]) -> None:
            kept[blob], size = written(self._path(blob), blob, pieces)
            with self._changed:
                self.bytes += size

        try:
            left = mine
            for _ in range(2):
                if left:
                    self._guard.call(partial(self._backend.blobs, left, keep))
                left = [blob for blob, is_right in kept.items() if not is_right]
            for blob in mine:
                self._states[blob] = {True: _HERE, False: _WRONG}.get(kept.get(blob), _GONE)  # type: ignore[arg-type]
        finally:
            with self._changed:
                for blob in mine:
                    if self._states[blob] == _COMING:
                        del self._states[blob]
                self._changed.notify_all()

    def _path(self, blob: Blob) -> str:
        with self._changed:
            if self._private is None:
                self._private = self._cache.private()
        return os.path.join(self._private.path, f"{blob.digest}-{blob.size}")


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
