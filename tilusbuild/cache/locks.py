"""Locks of a cache: whole files in `locks/`, held by the kernel for an open file description.

- A lock vanishes with its holder, however the holder dies: none is ever stale.
- A holder is an open of the file, not a process: two threads exclude each other.
- The files are never removed, so no process locks one that is no longer there, and they are few:
  names are striped by their first three digits. Two that share a stripe wait for each other without
  need.
- They work over NFS, where a lock of a directory does not.

Exclusive locks are `filelock`'s, shared ones the same call of the kernel with `LOCK_SH`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from tilusbuild.runtime.reader_lock import LOCKS, stripe
from tilusbuild.runtime.regular import open_regular

Kind = Literal["use", "index", "program", "include", "script", "stage", "read"]

_POLL = 0.01
"""Seconds between two attempts at an exclusive lock that another process holds."""


class LockName(Struct, frozen=True):
    """One thing to lock. `name` is a hex number of 15 digits or more, of which the first count."""

    kind: Kind
    name: str = ""
    shared: bool = False

    @property
    def file(self) -> str:
        """The name in `locks/`."""
        return stripe(self.kind, self.name) if self.name else self.kind


class Held:
    """Locks in hand; released by `release`, at the end of a `with` block, or by our death."""

    def __init__(self, handles: Iterable[int] = ()) -> None:
        self._handles = list(handles)

    def add(self, other: Held) -> None:
        """Take over another's locks."""
        self._handles += other._handles
        other._handles = []

    def release(self) -> None:
        """Let go; a second time does nothing."""
        handles, self._handles = self._handles, []
        for handle in reversed(handles):
            # Unlock before closing: a forked child may hold the same open file description.
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.release()


class Locks:
    """The locks of the tree at `root`. The directory `locks/` is there; its files are made when
    they are first locked."""

    def __init__(self, root: str) -> None:
        self.path = os.path.join(root, LOCKS)

    def take(self, *names: LockName, wait: bool = True) -> Held | None:
        """Take all or, without `wait`, nothing (None) when another process holds one of them.

        Raises `OSError`: a file cannot be made, or the file system has no locks (ENOLCK).
        """
        held = Held()
        try:
            for name in names:
                taken = self._take(name, wait)
                if taken is None:
                    held.release()
                    return None
                held.add(taken)
        except BaseException:
            held.release()
            raise
        return held

    def is_free(self, name: LockName) -> bool:
        """Return whether it is free; nothing is written. Raises `OSError`."""
        held = Held()
        try:
            with suppress(FileNotFoundError):
                handle = self._open(name, os.O_RDWR)
                held.add(Held([handle]))
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            # EBADF: over NFS, a file that we may only read.
            if _is_taken(error) or error.errno == errno.EBADF:
                return False
            raise
        finally:
            held.release()

    def make(self, name: LockName) -> None:
        """Make a lock's file, for those who may only read. Raises `OSError`."""
        os.close(self._open(name))

    def _take(self, name: LockName, wait: bool) -> Held | None:
        while True:
            handle = self._open(name)
            held = Held([handle])
            try:
                if not lock_file(handle, shared=name.shared, wait=wait):
                    held.release()
                    return None
                if not self._is_current(handle, name):
                    held.release()  # the cache was deleted and made again while we waited
                    continue
                return held
            except BaseException:
                held.release()
                raise

    def _open(self, name: LockName, flags: int = os.O_RDWR | os.O_CREAT) -> int:
        path = os.path.join(self.path, name.file)
        try:
            return open_regular(path, flags, follow=False)
        except OSError:
            if not name.shared and flags & os.O_CREAT:
                raise
            with suppress(FileNotFoundError):
                return open_regular(path, follow=False)
            raise

    def _is_current(self, handle: int, name: LockName) -> bool:
        ours = os.fstat(handle)
        try:
            there = os.lstat(os.path.join(self.path, name.file))
        except FileNotFoundError:
            return False
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def lock_file(handle: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Lock a whole open file; return whether it is ours, which it is when we `wait`. An exclusive
    lock needs a file that is open for writing. Raises `OSError`."""
    if not shared:
        # Here, because a build that finds everything up to date takes no exclusive lock.
        from filelock import lock_descriptor

        return bool(lock_descriptor(handle, blocking=wait, poll_interval=_POLL))
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if _is_taken(error) and not wait:
            return False
        raise
    return True


def _is_taken(error: OSError) -> bool:
    return error.errno in (errno.EAGAIN, errno.EACCES)
