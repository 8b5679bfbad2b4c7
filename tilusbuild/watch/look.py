"""A look at everything that is watched: what is not what it was at the last look.

Events only say when to look. What has changed is decided here, by `stat` first and content then, so
that a lost event costs a moment and a `touch` costs nothing. A file that was changed just before a
look keeps its time stamps when it changes again within the file system's tick: such a one is read
at the next look, whatever its stamps say.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from tilusbuild.watch.needs import Change, is_dropping

TICK = 50_000_000
"""Nanoseconds. Linux stamps files with the time of its last timer tick, at most 10 ms ago."""
_COARSE_TICK = 2_000_000_000


@dataclass(frozen=True, slots=True)
class _Seen:
    stamp: tuple[int, ...]
    content: str | frozenset[str] | None
    """A file's digest, the names in a folder, None for nothing."""
    sure: bool
    """Whether equal stamps mean equal content."""


class Looker:
    """Remembers what was seen. `digest(path)` is of a file's content, and may raise `OSError`."""

    def __init__(self, digest: Callable[[str], str], now: Callable[[], int] = time.time_ns) -> None:
        self._digest = digest
        self._now = now
        self._seen: dict[str, _Seen] = {}

    def look(
        self, paths: Iterable[str], *, since: int | None = None, read: Collection[str] = ()
    ) -> dict[str, Change]:
        """What changed among `paths`, which from now on are those that are remembered.

        A path that is looked at for the first time counts as changed when it is among those that
        were `read` since `since` (ns of the wall clock), and may have changed after that.
        """
        before, self._seen = self._seen, {}
        changes: dict[str, Change] = {}
        for path in paths:
            old = before.get(path)
            new = self._seen[path] = self._see(path, old)
            if old is None:
                if since is not None and path in read and _later(new.stamp, since):
                    changes[path] = Change(path)
            elif new.content != old.content:
                changes[path] = _change(path, old.content, new.content)
        return changes

    def _see(self, path: str, old: _Seen | None) -> _Seen:
        at = self._now()
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return _Seen((), None, True)
        folder = stat.S_ISDIR(status.st_mode)
        size = 0 if folder else status.st_size
        stamp = (size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
        if old is not None and old.sure and old.stamp == stamp:
            return old
        try:
            content = _names(path) if folder else self._digest(path)
        except OSError:
            return _Seen(stamp, None, False)
        return _Seen(stamp, content, not _later(stamp, at))


def _names(folder: str) -> frozenset[str]:
    return frozenset(name for name in os.listdir(folder) if not is_dropping(name))


def _later(stamp: tuple[int, ...], moment: int) -> bool:
    """Whether something with these stamps may have changed after a moment."""
    if not stamp:
        return False
    _, mtime, ctime, *_ = stamp
    coarse = mtime % 1_000_000_000 == 0 and ctime % 1_000_000_000 == 0
    return max(mtime, ctime) > moment - (_COARSE_TICK if coarse else TICK)


def _change(
    path: str, old: str | frozenset[str] | None, new: str | frozenset[str] | None
) -> Change:
    if isinstance(old, frozenset) and isinstance(new, frozenset):
        return Change(path, old ^ new)
    return Change(path)
