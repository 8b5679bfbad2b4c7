"""When to look, and what has changed since the last look.

Hints of the system's events set the time; where there are no events it is a matter of the clock.
What has changed is found by looking at everything that is watched (`look.py`). Belongs to one
thread; only the observer's hints come from another one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilusbuild.watch import events
from tilusbuild.watch.look import Looker
from tilusbuild.watch.needs import Change, Needs, Part, affected
from tilusbuild.watch.observer import Observer, Watcher
from tilusbuild.watch.places import is_below, places, why_poll
from tilusbuild.watch.settle import Debounce

POLL = 0.5
"""Seconds between two looks where there are no events."""
SAFETY = 2.0
"""Seconds between two looks where there are: an event may be lost."""
ANYTHING: Part = ("anything",)
"""What a project is while nobody can say which part would mend it."""
_SMALL = 1 << 20
_SHOWN = 5

MakeWatcher = Callable[[Callable[[str], None], Callable[[], str]], Watcher]


@dataclass(frozen=True, slots=True)
class Hint:
    """Something happened to a path, or to any ("")."""

    path: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look found: the parts that changes are about, with their paths, and the changes."""

    parts: Mapping[Part, list[str]]
    changes: Mapping[str, Change]

    def event(self, root: str) -> events.Changed:
        """The same in words; paths relative to `root` where they lie in it."""
        shown: dict[str, None] = {}
        for path in dict.fromkeys(path for each in self.parts.values() for path in each):
            names = self.changes[path].names
            for each in sorted(os.path.join(path, n) for n in names) if names else (path,):
                shown[os.path.relpath(each, root) if is_below(each, root) else each] = None
        paths = tuple(shown)
        about = tuple(" ".join(part) for part in self.parts if part != ANYTHING)
        more = max(0, len(paths) - _SHOWN)
        return events.Changed(paths[:_SHOWN], more, about or ("the project",))


class Lookout:
    """Watches for one project. `heard` is to be called, on the owner's thread, with each hint."""

    def __init__(
        self,
        digest: Callable[[str], str],
        hint: Callable[[Hint], None],
        ignored: Callable[[], str],
        *,
        poll: bool,
        make_watcher: MakeWatcher = Observer,
        debounce: Debounce | None = None,
    ) -> None:
        self._looker = Looker(digest)
        self._watcher = make_watcher(lambda path: hint(Hint(path)), ignored)
        self._debounce = debounce or Debounce()
        self._hinted: set[str] = set()
        self._places: dict[str, bool] = {}
        self._looked = 0.0
        self._poll = poll
        self.polling: str | None = events.ASKED if poll else None
        """Why it is a matter of the clock; None where events serve."""

    @property
    def is_hinted(self) -> bool:
        """Whether something happened that was not looked at yet."""
        return self._debounce.due is not None

    @property
    def next_look(self) -> float:
        """By the monotonic clock."""
        regular = self._looked + (POLL if self.polling else SAFETY)
        return min(regular, self._debounce.due or regular)

    def heard(self, hint: Hint) -> None:
        self._hinted.add(hint.path)
        self._debounce.touch(time.monotonic())

    def due(self) -> float | None:
        """Whether it is time to look: since when there is something to look for. Else None."""
        now = time.monotonic()
        first = self._debounce.take(now)
        if first is not None:
            if not self._poll:
                # A folder may be another one under the same name by now.
                self._watcher.follow(self._places)
            return first
        return now if now >= self.next_look and not self.is_hinted else None

    def look(
        self, needs: Mapping[Part, Needs], wider: Needs | None = None, *, started: int | None = None
    ) -> Seen:
        """Look at all that is needed, and `wider`; `started` is when a plan began to read it, in
        nanoseconds of the wall clock, and None when this is no look after a plan."""
        every = dict(needs)
        if wider is not None:
            every[ANYTHING] = wider
        read = {path for each in needs.values() for path in each.paths}
        # What something happened to may be read by the next plan, and is looked at before that.
        hinted = {path for path in self._hinted if _is_small(path)}
        paths = read | hinted | (wider.paths if wider is not None else frozenset())
        changes = self._looker.look(sorted(paths), since=started, read=read)
        if wider is not None and started is None:
            around = {path for path in hinted if os.path.dirname(path) in wider.paths}
            changes.update({path: Change(path) for path in around})
            every[ANYTHING] = Needs(wider.paths | around)
        self._hinted.clear()
        self._looked = time.monotonic()
        return Seen(affected(every, changes), changes)

    def follow(self, paths: set[str], root: str, cache: str) -> None:
        """Wait for events of these; where there are none, look in turn."""
        if self._poll:
            return
        try:
            with open("/proc/mounts", encoding="utf-8", errors="surrogateescape") as file:
                mounts = file.read()
        except OSError:
            mounts = ""
        self._places = places(paths, root, cache)
        self._watcher.follow(self._places)
        self.polling = why_poll([root, *self._places], mounts) or self._watcher.trouble

    def close(self) -> None:
        """No hint comes after this."""
        self._watcher.close()


def _is_small(path: str) -> bool:
    """Whether a path is worth to be read before anybody asks for it."""
    try:
        return os.path.getsize(path) <= _SMALL
    except OSError:
        return bool(path)
