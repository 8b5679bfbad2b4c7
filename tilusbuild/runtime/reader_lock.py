"""Locks of loaded scripts against collection, shared by all kernels of a process.

A lock is on a whole file in a tree's `locks/`, shared by all readers; `tilusbuild.cache.locks` has
the exclusive ones. Scripts are striped by the first two digits of their hashes, and the kernels of
a process share an open file for each stripe: it has at most 256 files open for one tree.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from contextlib import suppress
from io import FileIO

from tilusbuild.runtime.process import process
from tilusbuild.runtime.regular import open_regular

LOCKS, READ = "locks", "read"
"""The directory of a tree's locks, and the kind of those of loaded scripts."""


def name_lock_file(kind: str, name: str) -> str:
    """Return the name of the lock file for an entry with a hex name."""
    digits = 2 if kind == READ else 3  # for 256 or 4,096 lock files
    return f"{kind}-{name[:digits]}"


class SharedFile(FileIO):
    """An open file that several locks of this process share; closed with the last of them. After a
    fork, parent and child share it, too. As any file of Python it cannot be copied, so that its
    descriptor is closed once."""

    def __del__(self) -> None:
        self.close()


def _open_shared_file(path: str) -> SharedFile:
    """Return the open file of a path. All locks of this process share it; a file that was replaced
    is opened again. Raises `OSError`."""
    shared: SharedFile | None = process.lock_files.get(path)
    # A tree that was deleted and made again has another file there, and a lock on the old one
    # would keep nothing.
    if shared is None or not os.path.samestat(os.fstat(shared.fileno()), os.lstat(path)):
        shared = process.lock_files[path] = SharedFile(open_regular(path, follow=False))
    return shared


class ReaderLock:
    """Keeps scripts of the tree `root`, by their hashes, from being collected while it lives.

    A kernel opens its libraries at the first call, long after it was loaded, so they must stay even
    if another build has replaced them. The build made the lock file: a reader writes nothing, and
    the system drops the lock however the process ends.

    The constructor waits for a collection that has begun, so look for the scripts afterwards.
    Nothing is raised.
    """

    def __init__(self, root: str, scripts: Iterable[str]) -> None:
        self._files: list[SharedFile] = []
        with process.reader_lock:
            for script in scripts:
                path = os.path.join(root, LOCKS, name_lock_file(READ, script))
                # A package has no lock files, and no `gc` removes its directory. On a file system
                # without locks nothing can be done.
                with suppress(OSError, ValueError):
                    file = _open_shared_file(path)
                    fcntl.flock(file, fcntl.LOCK_SH)
                    self._files.append(file)
