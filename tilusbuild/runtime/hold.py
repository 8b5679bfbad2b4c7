"""Telling garbage collection that scripts are in use: shared locks as long as their kernel lives.

A kernel opens its libraries when they are first called for, long after it was loaded, so they must
stay although another build has taken their place. A lock is of a byte of the tree's `lock` file,
one for each script: it writes nothing, and the system drops it however the process ends. A tree
without that file, or on a file system without locks, is used without: nobody collects a package's
directory, and who collects a cache that its readers cannot lock has to look out.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable

FILE = "lock"
REGION_BITS = 60
REGION = 6
"""Which range of offsets stands for scripts in use; `tilusbuild.cache.locks` has the others."""
FLOCK = struct.Struct("@hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, pid (0 for these locks)."""


def offset(region: int, name: str) -> int:
    """Return the byte that stands for a hex name of 15 digits or more, of which the first 15
    count."""
    return (region << REGION_BITS) + int(name[: REGION_BITS // 4], 16)


class ReaderLock:
    """Keeps scripts of the tree `root`, by their hashes, from being collected while it lives.

    Making it waits for a collection that is about to remove one, so look for them afterwards.
    Nothing is raised. After a fork, parent and child hold them both.
    """

    def __init__(self, root: str, scripts: Iterable[str]) -> None:
        self._handle = -1
        try:
            self._handle = os.open(os.path.join(root, FILE), os.O_RDONLY | os.O_CLOEXEC)
            for script in scripts:
                request = FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, offset(REGION, script), 1, 0)
                fcntl.fcntl(self._handle, fcntl.F_OFD_SETLKW, request)
        except (OSError, ValueError):
            return

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
