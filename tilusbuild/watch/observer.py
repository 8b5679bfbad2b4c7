"""The edge to the operating system's file events, through watchdog: every event is only a hint.

What is told is a path that something happened to. Nothing rests on it: events may come twice, late,
or never. When the system's queue of events overflows, that is one more hint.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer as NativeObserver
from watchdog.observers.api import BaseObserver, ObservedWatch

from tilusbuild.watch.needs import is_dropping
from tilusbuild.watch.places import is_below

_CHANGES: list[type[FileSystemEvent]] = [
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
]
"""What the system is asked for. Not among them: that a file was opened or read, of which each start
of a program on PATH would tell; and that a folder changed, as what happens in it has an event."""


_LIMITS = {
    errno.ENOSPC: " (sysctl fs.inotify.max_user_watches)",
    errno.EMFILE: " (sysctl fs.inotify.max_user_instances)",
}


class Watcher(Protocol):
    """What a session needs of an observer."""

    trouble: str | None

    def follow(self, places: Mapping[str, bool]) -> None: ...

    def close(self) -> None: ...


class Observer:
    """Calls `hint(path)`, on a thread of its own, for what happens in the places that it follows.

    Nothing is told of editors' droppings and of what lies below `ignored`. `trouble` says in words
    why events are not to be had.
    """

    def __init__(self, hint: Callable[[str], None], ignored: Callable[[], str]) -> None:
        self._hint = hint
        self._ignored = ignored
        self._handler = _Handler(self._tell)
        self._watches: dict[str, tuple[ObservedWatch, tuple[object, ...]]] = {}
        self._log = _Overflow(lambda: hint(""))
        self._logger = logging.getLogger("watchdog")
        self._logger.addHandler(self._log)
        self._propagated, self._logger.propagate = self._logger.propagate, False
        self._observer: BaseObserver | None = None
        self.trouble: str | None = None

    def follow(self, places: Mapping[str, bool]) -> None:
        """Watch these folders, each with everything below it or not, and no others.

        A folder that is another one than before under the same name is watched anew.
        """
        wanted = {path: (below, *_identity(path)) for path, below in places.items()}
        for path in [p for p, (_, key) in self._watches.items() if wanted.get(p) != key]:
            watch, _ = self._watches.pop(path)
            with suppress(KeyError, OSError):
                self._started().unschedule(watch)
        for path, key in wanted.items():
            if path not in self._watches and len(key) > 1:
                self._schedule(path, key)

    def close(self) -> None:
        """No hint comes after this."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()
        self._logger.removeHandler(self._log)
        self._logger.propagate = self._propagated

    def _schedule(self, path: str, key: tuple[object, ...]) -> None:
        try:
            watch = self._started().schedule(
                self._handler, path, recursive=bool(key[0]), event_filter=_CHANGES
            )
            self._watches[path] = watch, key
        except FileNotFoundError:
            return  # gone meanwhile: the look that follows sees that
        except OSError as error:
            limit = _LIMITS.get(error.errno or 0, "")
            self.trouble = f"no events for {path}: {error.strerror or error}{limit}"

    def _started(self) -> BaseObserver:
        if self._observer is None:
            self._observer = NativeObserver()
            self._observer.start()
        return self._observer

    def _tell(self, path: str) -> None:
        if not is_dropping(os.path.basename(path)) and not is_below(path, self._ignored()):
            self._hint(path)


class _Handler(FileSystemEventHandler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def on_any_event(self, event: FileSystemEvent) -> None:
        for path in (event.src_path, getattr(event, "dest_path", "")):
            if path:
                self._tell(os.fsdecode(path))


class _Overflow(logging.Handler):
    """watchdog only logs it when events were lost."""

    def __init__(self, lost: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self._lost = lost

    def emit(self, record: logging.LogRecord) -> None:
        self._lost()


def _identity(path: str) -> tuple[object, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino
