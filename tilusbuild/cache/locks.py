"""Locks of a cache: byte ranges of one file, held by the kernel for an open file description.

- A lock vanishes with its holder, however the holder dies: none is ever stale.
- A holder is an open of the file, not a process: two threads exclude each other, and closing one
  file does not drop the locks of another, as it would with classic POSIX locks.
- There is one file, whatever is locked: no litter. It is empty; offsets stand for things.
- They work over NFS, where `flock` on a directory does not.

Two things that share an offset (60 bits of a sha256) wait for each other without need, no more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from tilusbuild.runtime.places import FLOCK, SCRIPTS_IN_USE, lock_offset
from tilusbuild.runtime.regular import open_regular

Kind = Literal["use", "index", "program", "include", "script", "stage", "read"]

_REGION = {
    "use": 0,
    "index": 1,
    "program": 2,
    "include": 3,
    "script": 4,
    "stage": 5,
    "read": SCRIPTS_IN_USE,
}


@dataclass(frozen=True, slots=True)
class LockRange:
    """One thing to lock. `name` is a hex number of 15 digits or more; the rest is ignored."""

    kind: Kind
    name: str = "0" * 15
    shared: bool = False

    @property
    def offset(self) -> int:
        return lock_offset(_REGION[self.kind], self.name)


class Held:
    """Locks in hand; released by `release`, at the end of a `with` block, or by our death."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def release(self) -> None:
        """Let go; a second time does nothing."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            # Unlock before closing: a forked child may hold the same open file description.
            with contextlib.suppress(OSError):
                fcntl.fcntl(handle, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_UNLCK, 0, 0, 0, 0))
            os.close(handle)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class LockFile:
    """The file at `path`, made when a lock is first taken."""

    def __init__(self, path: str) -> None:
        self.path = path

    def take(self, *spans: LockRange, wait: bool = True) -> Held | None:
        """Take all or, without `wait`, nothing (None) when somebody has one of them.

        Raises `OSError`: the file cannot be made, or the file system has no locks (ENOLCK).
        """
        while True:
            handle = self._open(all(span.shared for span in spans))
            held = Held(handle)
            try:
                if not all(_lock(handle, span, wait) for span in spans):
                    held.release()
                    return None
                if self._is_current(handle):
                    return held
            except BaseException:
                held.release()
                raise
            held.release()  # the cache was deleted and made again while we waited

    def take_free(self, spans: Iterable[LockRange]) -> tuple[Held, set[LockRange]]:
        """Take, without waiting, those that nobody has: which they are, in one hand.

        Raises `OSError`.
        """
        handle = self._open(shared=False)
        held = Held(handle)
        try:
            return held, {span for span in spans if _lock(handle, span, wait=False)}
        except BaseException:
            held.release()
            raise

    def is_free(self, span: LockRange) -> bool:
        """Return whether nobody has it, without taking it. Raises `OSError`."""
        try:
            handle = open_regular(self.path, follow=False)
        except FileNotFoundError:
            return True
        try:
            asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, span.offset, 1, 0)
            found = FLOCK.unpack(fcntl.fcntl(handle, fcntl.F_OFD_GETLK, asked))
            return bool(found[0] == fcntl.F_UNLCK)
        finally:
            os.close(handle)

    def _open(self, shared: bool) -> int:
        try:
            return open_regular(self.path, os.O_RDWR | os.O_CREAT, follow=False)
        except OSError:
            if not shared:
                raise
            return open_regular(self.path, follow=False)

    def _is_current(self, handle: int) -> bool:
        ours = os.fstat(handle)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _lock(handle: int, span: LockRange, wait: bool) -> bool:
    kind = fcntl.F_RDLCK if span.shared else fcntl.F_WRLCK
    request = FLOCK.pack(kind, os.SEEK_SET, span.offset, 1, 0)
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, request)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES) and not wait:
            return False
        raise
    return True
