"""A look at everything that is watched: what is not what it was at the last look.

Events only say when to look. What has changed is decided here, by `stat` first and content then, so
that a lost event costs a moment and a `touch` costs nothing. A file that was changed just before a
look keeps its time stamps when it changes again within the file system's tick: such a one is read
at the next look, whatever its stamps say.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable

from tilusbuild.state.stamp import ABSENT, Observation, observe
from tilusbuild.watch.needs import Change, is_dropping


class Looker:
    """Remembers what was seen. `digest(path)` is of a file's content, and may raise `OSError`."""

    def __init__(self, digest: Callable[[str], str], now: Callable[[], int] = time.time_ns) -> None:
        self._digest = digest
        self._now = now
        self._seen: dict[str, Observation] = {}

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
            new = observe(path, self._digest, _names, before=old, now=self._now)
            self._seen[path] = new
            if old is None:
                if since is not None and path in read and _may_be_later(new, since):
                    changes[path] = Change(path)
            elif new.content != old.content:
                changes[path] = _change(path, old.content, new.content)
        return changes


def _names(folder: str) -> frozenset[str]:
    return frozenset(name for name in os.listdir(folder) if not is_dropping(name))


def _may_be_later(seen: Observation, moment: int) -> bool:
    """Return whether something may have changed after `moment`."""
    return seen.stamp != ABSENT and not seen.stamp.is_settled(moment)


def _change(
    path: str, old: str | frozenset[str] | None, new: str | frozenset[str] | None
) -> Change:
    if isinstance(old, frozenset) and isinstance(new, frozenset):
        return Change(path, old ^ new)
    return Change(path)
