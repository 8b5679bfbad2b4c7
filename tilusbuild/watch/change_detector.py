"""Decide when to check the files for changes, and find what has changed since the last check.

The system's events are hints for the time of a check. There is also one now and then, as hints come
late, get lost, or do not exist: of changes by another machine on NFS. A check compares `stat` first
and content then, so that a lost hint costs a moment and a `touch` nothing. Belongs to one thread;
only the observer's hints come from another one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator

from msgspec import Struct

from tilusbuild.runtime.regular import try_stat
from tilusbuild.state.clock import FileTime
from tilusbuild.state.stamp import PathContent, read_path_content
from tilusbuild.watch.observer import Observer, choose_watch_roots, is_editor_temp_file

# Seconds without a hint before a check: an editor that writes beside and renames is done in a few
# milliseconds.
QUIET = 0.03
# Seconds after which files are checked although hints keep coming.
MAX_DELAY = 1.0
# Seconds between two checks without a hint: 3 % of a core for 10,000 files.
INTERVAL = 1.0
# Bytes of a hinted file that is read though no plan has read it.
_MAX_HINTED_SIZE = 1 << 20

MakeObserver = Callable[[Callable[[str], None], Callable[[], str]], Observer]


class Change(Struct, frozen=True):
    """A path that is not what it was. `names` came to a directory or went from it; None for a file,
    and for what became a file or a directory."""

    path: str
    names: frozenset[str] | None = None

    @property
    def paths(self) -> Iterator[str]:
        """The path itself, or those of the names."""
        if self.names is None:
            yield self.path
        else:
            yield from sorted(os.path.join(self.path, name) for name in self.names)

    def concerns_any(self, names: frozenset[str] | None) -> bool:
        """Return whether the change is of one of these names in a directory (None: of any name), or
        of the path itself."""
        return self.names is None or names is None or not names.isdisjoint(self.names)


class PathStates:
    """Remembers the state of each path. `digest(path)` returns the digest of a file's content, and
    may raise `OSError`."""

    def __init__(self, digest: Callable[[str], str], now: Callable[[], FileTime]) -> None:
        self._digest = digest
        self._now = now
        self._observations: dict[str, PathContent] = {}

    def find_changes(
        self, paths: Iterable[str], *, since: FileTime | None = None, read: Collection[str] = ()
    ) -> dict[str, Change]:
        """Return the changes of `paths` since the last call, by path. Forget all other paths.

        A path seen for the first time is a change only if `since` is given, a plan has read the
        path (`read`), and the file may have changed after `since`, the time when the plan began.
        """
        previous, self._observations = self._observations, {}
        changes: dict[str, Change] = {}
        for path in paths:
            old = previous.get(path)
            # If the stamp is very young, the content is read again although the stamp is the old
            # one: a file that changes twice within the file system's tick keeps its stamp.
            new = read_path_content(path, self._digest, _list_names, before=old, now=self._now)
            self._observations[path] = new
            if old is None:
                if since is not None and path in read and new.may_have_changed_since(since):
                    changes[path] = Change(path)
            elif new.content != old.content:
                changed_names: frozenset[str] | None = None
                # The content of a directory is the set of its names.
                if isinstance(old.content, frozenset) and isinstance(new.content, frozenset):
                    changed_names = old.content ^ new.content
                changes[path] = Change(path, changed_names)
        return changes


def _list_names(directory: str) -> frozenset[str]:
    """Return the names that count: none of a path that ends with a slash."""
    names = [] if directory.endswith(os.sep) else os.listdir(directory)
    return frozenset(name for name in names if not is_editor_temp_file(name))


class ChangeDetector:
    """Finds changes of one project's files. The owner calls `add_hint`, on its own thread, with
    each hint: the path of a change, "" for any path."""

    def __init__(
        self,
        digest: Callable[[str], str],
        report_hint: Callable[[str], None],
        ignored_directory: Callable[[], str],
        *,
        now: Callable[[], FileTime],
        make_observer: MakeObserver = Observer,
    ) -> None:
        self._states = PathStates(digest, now)
        self._observer = make_observer(report_hint, ignored_directory)
        self._hinted_paths: set[str] = set()
        self._first_hint_at: float | None = None
        """The monotonic time of the first hint since the last check; None without one."""
        self._last_hint_at = 0.0
        self._watch_roots: dict[str, bool] = {}
        self._checked_at = 0.0

    @property
    def is_hinted(self) -> bool:
        """Whether a hint has come since the last check."""
        return self._first_hint_at is not None

    @property
    def next_check(self) -> float:
        """The monotonic time of the next check. After a hint it is set by the hints alone: an
        earlier time would have the owner ask again and again until the hints pause."""
        if self._first_hint_at is None:
            return self._checked_at + INTERVAL
        return min(self._last_hint_at + QUIET, self._first_hint_at + MAX_DELAY)

    def add_hint(self, path: str) -> None:
        """Record a hint that came now."""
        self._hinted_paths.add(path)
        self._last_hint_at = time.monotonic()
        self._first_hint_at = self._first_hint_at or self._last_hint_at

    def take_due_check(self) -> float | None:
        """Return None when no check is due now. Else return the monotonic time of the first hint
        since the last check; now, if there was none.

        The hints count as checked then, and the observer is given the directories again.
        """
        now = time.monotonic()
        if now < self.next_check:
            return None
        if self._first_hint_at is None:
            return now
        first_hint_at, self._first_hint_at = self._first_hint_at, None
        # A directory may have been replaced under the same name: the observer then watches the new
        # one.
        self._observer.watch_roots(self._watch_roots)
        return first_hint_at

    def find_changes(
        self, watched: Collection[str], *, started: FileTime | None = None
    ) -> dict[str, Change]:
        """Return the changes of the watched paths since the last check, by path. Drop the hints.

        `started` is the time when a plan began to read the paths; None when this check does not
        follow a plan.
        """
        # The next plan may read a hinted path for the first time. The state of the path is
        # remembered now, before that plan: else the path would count as changed after the plan.
        hinted = {path for path in self._hinted_paths if _is_small(path)}
        paths = sorted(hinted.union(watched))
        changes = self._states.find_changes(paths, since=started, read=watched)
        self._hinted_paths.clear()
        self._checked_at = time.monotonic()
        return {path: change for path, change in changes.items() if path in watched}

    def watch_paths(self, paths: Collection[str], root: str, cache: str) -> None:
        """Ask the system for events of these paths, and of no others."""
        self._watch_roots = choose_watch_roots(paths, root, cache)
        self._observer.watch_roots(self._watch_roots)

    def close(self) -> None:
        """Stop watching: no hint comes after this."""
        self._observer.close()


def _is_small(path: str) -> bool:
    """Return whether a path is small enough to be read before a plan has read it."""
    status = try_stat(path)
    # A path that is gone is small. "" is a hint without a path.
    return bool(path) if status is None else status.st_size <= _MAX_HINTED_SIZE
