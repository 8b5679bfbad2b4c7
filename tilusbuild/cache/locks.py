"""Locks of a cache: whole files in `locks/`, held by the kernel for an open file description.

- The kernel releases a lock when its holder dies: no lock is ever stale.
- The holder is an open file description, not a process: two threads exclude each other.
- Lock files are never removed, so that no process locks a removed one. They are few: names with the
  same first three digits share a file. The price: two such names wait for each other.
- File locks work over NFS; locks of a directory do not.

A free lock is taken by the kernel's call, which is also `filelock`'s. A wait for an exclusive one
is `filelock`'s, one for a shared one the kernel's.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import ExitStack, suppress
from typing import Literal

from msgspec import Struct

from tilusbuild.runtime.reader_lock import LOCKS, name_lock_file
from tilusbuild.runtime.regular import open_regular

LockKind = Literal["use", "index", "program", "include", "script", "stage", "read"]

# Seconds between two attempts at an exclusive lock that another process holds.
_POLL = 0.01


class LockName(Struct, frozen=True):
    """A lock: its kind and, for one of many, a hex number; its first digits choose the file."""

    kind: LockKind
    name: str = ""
    shared: bool = False

    @property
    def file(self) -> str:
        """The name of its file in `locks/`."""
        return name_lock_file(self.kind, self.name) if self.name else self.kind


def _release_handle(handle: int) -> None:
    # Closing is not enough: a forked child may hold the same open file description.
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


class Locks:
    """The locks of the tree at `root`. The directory `locks/` is there; its files are made when
    they are first locked."""

    def __init__(self, root: str) -> None:
        self.path = os.path.join(root, LOCKS)

    def take_locks(self, *names: LockName, wait: bool = True) -> ExitStack | None:
        """Take locks; return the stack that holds them until it is closed.

        Without `wait`, return None if another process holds one of them: then none is taken. Raises
        `OSError`, with the errno ENOLCK on a file system without locks.
        """
        # `use` comes first in all callers, so that no two of them wait for each other.
        with ExitStack() as stack:
            for name in names:
                if not self._take_lock(name, wait, stack):
                    return None
            return stack.pop_all()

    def is_lock_free(self, name: LockName) -> bool:
        """Return whether no process holds a lock; write nothing. Raises `OSError`."""
        try:
            # A lock that was never taken has no file.
            with suppress(FileNotFoundError), ExitStack() as stack:
                handle = self._open_lock_file(name, os.O_RDWR)
                stack.callback(_release_handle, handle)
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            # Over NFS, a file that is open for reading cannot be locked exclusively: EBADF. Whether
            # a process holds the lock is unknown then, so the entry must not count as free.
            if _is_held_elsewhere(error) or error.errno == errno.EBADF:
                return False
            raise

    def make_lock_file(self, name: LockName) -> None:
        """Make a lock's file: a process that may only read the cache cannot. Raises `OSError`."""
        os.close(self._open_lock_file(name))

    def _take_lock(self, name: LockName, wait: bool, stack: ExitStack) -> bool:
        """Take a lock, and push its release on `stack`.

        Return False, only without `wait`, if another process holds the lock. Raises `OSError`.
        """
        while True:
            with ExitStack() as opened:
                handle = self._open_lock_file(name)
                opened.callback(_release_handle, handle)
                if not lock_file(handle, shared=name.shared, wait=wait):
                    return False
                # If the cache was deleted and made again during the wait, the path has another
                # file. A lock on the old one excludes no process, so the new one is opened.
                if self._is_current_file(handle, name):
                    stack.push(opened.pop_all())
                    return True

    def _open_lock_file(self, name: LockName, flags: int = os.O_RDWR | os.O_CREAT) -> int:
        """Return an open descriptor of a lock's file. By default a missing file is made.

        The file of a shared lock is opened for reading if it cannot be opened with `flags`. Raises
        `OSError`.
        """
        path = os.path.join(self.path, name.file)
        try:
            return open_regular(path, flags, follow=False)
        except OSError:
            # In a cache that this process may only read, an existing file can still be shared. A
            # lock that is to be taken exclusively needs a file that is open for writing;
            # `is_lock_free`, which passes no O_CREAT, only asks.
            if not name.shared and flags & os.O_CREAT:
                raise
            with suppress(FileNotFoundError):
                return open_regular(path, follow=False)
            raise

    def _is_current_file(self, handle: int, name: LockName) -> bool:
        try:
            path_status = os.lstat(os.path.join(self.path, name.file))
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(handle), path_status)


def lock_file(handle: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file. Return False, only without `wait`, if another process holds the lock.

    An exclusive lock needs a file that is open for writing. Raises `OSError`.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
        return True
    except OSError as error:
        if not _is_held_elsewhere(error):
            raise
    if wait and shared:
        fcntl.flock(handle, kind)
    elif wait:
        # Imported late: this takes 10 ms, a twentieth of a build after an edit, and few wait.
        from filelock import lock_descriptor

        lock_descriptor(handle, poll_interval=_POLL)
    return wait


def _is_held_elsewhere(error: OSError) -> bool:
    # EACCES: POSIX allows it for the locks of `fcntl`, by which NFS emulates these.
    return error.errno in (errno.EAGAIN, errno.EACCES)
