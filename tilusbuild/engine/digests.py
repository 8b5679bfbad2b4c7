"""Content digests that are remembered by `stat`, so that a file is not read twice.

A record counts only while size, mtime, ctime and inode are all what they were. That is not enough
for a file that was changed just before it was read: a further change within the same tick of the
file system's clock shows in none of the four. So a digest is remembered only when both of the
file's times were older, when reading began, than the coarsest tick of any file system in use; else
the file is read again the next time. A file that changes while it is read is read again at once.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from tilusbuild.digest import sha256_file
from tilusbuild.engine.state import StateFile

TICK_NS = 2_000_000_000
"""FAT keeps times to 2 s; everything else is finer."""
_TRIES = 3
_HEX = re.compile(r"[0-9a-f]{64}")


class RememberedDigests:
    """A digest memory that lasts. Safe for several threads; `save` writes what is new.

    `state_dir` is a folder of the cache, or None to remember only within this process. `now` is the
    time in nanoseconds since 1970, by the clock that file times come from.
    """

    def __init__(self, state_dir: str | None, now: Callable[[], int] = time.time_ns) -> None:
        path = os.path.join(state_dir, "digests") if state_dir is not None else None
        self._file = StateFile(path, "digests")
        self._now = now
        self._guard = threading.Lock()
        self.reads = 0
        """How many files were read."""

    def digest(self, path: str | os.PathLike[str]) -> str:
        """The sha256 of the file's content. Raises `OSError`."""
        name = os.path.abspath(path)
        stamp = _stamp(name)
        with self._guard:
            known = self._file.get(name)
        if _valid(known) and known[:4] == stamp:
            return str(known[4])
        return self._read(name)

    def save(self) -> None:
        """Write what is new; silently nothing where that is not possible."""
        with self._guard:
            self._file.save(keep=os.path.exists)

    def _read(self, name: str) -> str:
        for _ in range(_TRIES):
            began = self._now()
            before = _stamp(name)
            found = sha256_file(name)
            self.reads += 1
            if _stamp(name) == before:
                if max(before[1], before[2]) < began - TICK_NS:
                    with self._guard:
                        self._file.put(name, [*before, found])
                break
        return found


def _stamp(path: str) -> list[int]:
    """Size, mtime, ctime and inode: what must all be the same."""
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _valid(record: Any) -> bool:
    return (
        isinstance(record, list)
        and len(record) == 5
        and isinstance(record[4], str)
        and _HEX.fullmatch(record[4]) is not None
    )
