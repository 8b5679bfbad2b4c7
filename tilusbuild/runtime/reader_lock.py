"""Locks that keep what a process has loaded from being collected, shared by all its kernels.

A lock is of a whole file in a tree's `locks/`, shared by all readers; `tilusbuild.cache.locks` has
the exclusive ones. Scripts are striped by the first digits of their hashes, and the kernels of a
process share an open file for each stripe: a process that loads a thousand kernels has at most 256
files open for one tree, and each load takes one lock.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from contextlib import suppress

from tilusbuild.runtime.process import process
from tilusbuild.runtime.regular import open_regular

LOCKS, READ = "locks", "read"
"""Where a tree has its locks, and of which kind those of scripts in use are."""


def name_lock_file(kind: str, name: str) -> str:
    """Return the name of the file that is locked for a thing with a hex name."""
    return f"{kind}-{name[: 2 if kind == READ else 3]}"


class SharedFile:
    """An open file that several locks of this process share; closed with the last of them. After a
    fork, parent and child share it, too."""

    __slots__ = ("__weakref__", "handle")

    def __init__(self, path: str) -> None:
        self.handle = -1
        self.handle = open_regular(path, follow=False)

    def __del__(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)


def _open_shared_file(path: str) -> SharedFile:
    """Return the file at a path, opened once: not an earlier one. Raises `OSError`."""
    shared: SharedFile | None = process.lock_files.get(path)
    if shared is not None:
        open_status, path_status = os.fstat(shared.handle), os.stat(path, follow_symlinks=False)
        if (open_status.st_dev, open_status.st_ino) == (path_status.st_dev, path_status.st_ino):
            return shared
    file = SharedFile(path)
    process.lock_files[path] = file
    return file


class ReaderLock:
    """Keeps scripts of the tree `root`, by their hashes, from being collected while it lives.

    A kernel opens its libraries when they are first called for, long after it was loaded, so they
    must stay although another build has taken their place. The lock's file was made by the build:
    a reader writes nothing, and the system drops the lock however the process ends. A tree without
    that file, or on a file system without locks, is used without: no `gc` removes a package's
    directory.

    Making it waits for a collection that is about to remove one, so look for them afterwards.
    Nothing is raised.
    """

    def __init__(self, root: str, scripts: Iterable[str]) -> None:
        self._files: list[SharedFile] = []
        with process.reader_lock:
            for script in scripts:
                self._lock_script(root, script)

    def _lock_script(self, root: str, script: str) -> None:
        with suppress(OSError, ValueError):
            file = _open_shared_file(os.path.join(root, LOCKS, name_lock_file(READ, script)))
            fcntl.flock(file.handle, fcntl.LOCK_SH)  # nothing, if it is locked
            self._files.append(file)
