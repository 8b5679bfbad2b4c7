"""Report the paths of the operating system's file events, through watchdog.

Each is only a hint: events may come twice, late, or never.

The observer watches few directories, those of the paths that a plan depends on, and never the
cache. In the project it watches each directory at the top with everything below, so that it sees
what is moved away and back, or made again; but of one that holds the cache, only the parts that the
plan depends on. Outside it watches only the directories themselves.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from watchdog import events
from watchdog.observers import Observer as NativeObserver
from watchdog.observers.api import BaseObserver, ObservedWatch

from tilusbuild.process.base import convert_thread_errors
from tilusbuild.runtime.regular import try_stat
from tilusbuild.runtime.where import is_within

# watchdog only logs it when events were lost: no line of a person's terminal is for that.
logging.getLogger("watchdog").addHandler(logging.NullHandler())

# Changes below other directories wait for the next check.
MAX_ROOTS = 64

# Names that no ordinary file has. Others that editors use, as vim's 4913 and the sedAbC123 of
# `sed -i`, cost a check, which finds no change.
_EDITOR_TEMP_FILE = re.compile(
    r"""\..*\.sw[a-z]      # vim's swap files
    | .*~                  # backups
    | \.\#.* | \#.*\#      # Emacs' locks and autosaves
    | .*___jb_(?:tmp|old)___
    | \.goutputstream-.*
    | .*\.kate-swp
    """,
    re.VERBOSE,
)


def is_editor_temp_file(name: str) -> bool:
    """Return whether a file's name is one that editors give to files of their own."""
    return _EDITOR_TEMP_FILE.fullmatch(name) is not None


def choose_watch_roots(
    paths: Iterable[str],
    root: str,
    cache: str,
    is_directory: Callable[[str], bool] = os.path.isdir,
    resolve_links: Callable[[str], str] = os.path.realpath,
) -> dict[str, bool]:
    """Return the directories to watch for `paths`, at most `MAX_ROOTS`. The value of each is True
    if everything below it is watched, too.

    `root` is the project's directory, `cache` the cache's, in which nothing is watched. Of a link,
    the directory of its end is watched, too.
    """
    roots = {root: False}
    outside: set[str] = set()
    directories: set[str] = set()
    for path in paths:
        directories.add(path if is_directory(path) else os.path.dirname(path))
        if os.path.islink(path):
            directories.add(os.path.dirname(resolve_links(path)))
    for directory in sorted(directories):
        # Of a missing directory, the nearest one above that exists.
        existing = directory
        while not is_directory(existing) and existing != os.path.dirname(existing):
            existing = os.path.dirname(existing)
        for watched in {existing, resolve_links(existing)}:
            if is_within(watched, cache):
                continue
            if is_within(watched, root):
                _add_root_inside(roots, watched, root, cache)
            else:
                outside.add(watched)
    recursive_roots = [path for path, is_recursive in roots.items() if is_recursive]
    for directory in sorted(outside):
        if not any(is_within(directory, path) for path in recursive_roots):
            roots[directory] = False
    return dict(list(roots.items())[:MAX_ROOTS])


def _add_root_inside(roots: dict[str, bool], directory: str, root: str, cache: str) -> None:
    """Add to `roots` the directory at the top of the project that holds `directory`, with all that
    is below. If the cache is below, add each directory on the way to `directory` alone."""
    parts = os.path.relpath(directory, root).split("/")
    if parts == ["."]:
        return
    top = os.path.join(root, parts[0])
    if not is_within(cache, top):
        roots[top] = True
        return
    # Each directory on the way alone: everything below the top would include the cache.
    for depth in range(1, len(parts) + 1):
        roots.setdefault(os.path.join(root, *parts[:depth]), False)


# Not that a file was opened or read, of which each start of a program on PATH would give an event;
# and not that a directory changed, as each change in it has an event.
_CHANGES: list[type[events.FileSystemEvent]] = [
    *(events.DirCreatedEvent, events.DirDeletedEvent, events.DirMovedEvent),
    *(events.FileClosedEvent, events.FileCreatedEvent, events.FileDeletedEvent),
    *(events.FileModifiedEvent, events.FileMovedEvent),
]


class Observer:
    """Calls `report_hint(path)`, on a thread of its own, for events in the watched directories.

    Editors' temporary files and paths below `ignored_directory()` are not reported. Where the
    system gives no events, there are no hints.
    """

    def __init__(
        self, report_hint: Callable[[str], None], ignored_directory: Callable[[], str]
    ) -> None:
        self._report_hint = report_hint
        self._ignored_directory = ignored_directory
        self._handler = _Handler(self._report_path)
        self._watches: dict[str, tuple[ObservedWatch, tuple[object, ...]]] = {}
        self._native: BaseObserver | None = None

    def watch_roots(self, roots: Mapping[str, bool]) -> None:
        """Watch these directories and no others; the value of each is whether everything below it
        is watched, too. A directory that is missing or cannot be watched is left out."""
        # The key of a watch has the device and the inode: the system watches a directory and not
        # its name, under which there may be another directory by now.
        keys = {path: (below, *_read_device_and_inode(path)) for path, below in roots.items()}
        outdated = [path for path, (_, key) in self._watches.items() if keys.get(path) != key]
        for path in outdated:
            watch, _ = self._watches.pop(path)
            with suppress(KeyError, OSError):
                self._get_native().unschedule(watch)
        for path, key in keys.items():
            # A key without a device and an inode is that of a missing directory.
            if path not in self._watches and len(key) > 1:
                self._schedule_watch(path, key)

    def close(self) -> None:
        """Stop watching: no hint comes after this."""
        if self._native is not None:
            self._native.stop()
            self._native.join()

    def _schedule_watch(self, path: str, key: tuple[object, ...]) -> None:
        """Watch a directory and keep the watch with its key, whose first item is whether everything
        below is watched, too. Do nothing when the system refuses."""
        with suppress(OSError), convert_thread_errors():
            watch = self._get_native().schedule(
                self._handler, path, recursive=bool(key[0]), event_filter=_CHANGES
            )
            self._watches[path] = watch, key

    def _get_native(self) -> BaseObserver:
        """Return watchdog's observer, started at the first call. Raises `OSError`."""
        if self._native is None:
            observer = NativeObserver()
            with convert_thread_errors():
                observer.start()
            self._native = observer
        return self._native

    def _report_path(self, path: str) -> None:
        if not is_editor_temp_file(os.path.basename(path)) and not is_within(
            path, self._ignored_directory()
        ):
            self._report_hint(path)


class _Handler(events.FileSystemEventHandler):
    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report

    def on_any_event(self, event: events.FileSystemEvent) -> None:
        for path in (event.src_path, getattr(event, "dest_path", "")):
            if path:
                self._report(os.fsdecode(path))


def _read_device_and_inode(path: str) -> tuple[object, ...]:
    """Return the device and the inode of a path; () if it is missing."""
    status = try_stat(path)
    return () if status is None else (status.st_dev, status.st_ino)
