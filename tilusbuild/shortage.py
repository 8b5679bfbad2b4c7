"""What a machine is short of, in words that say what to do: `strerror` of EAGAIN and of ENOSPC says
the same of things as different as a limit on processes and a lock, a full disk and one that has
room and no inodes."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple


class Shortage(NamedTuple):
    """What there is none left of, and what gives more."""

    what: str
    more: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.more}" if self.more else self.what


PROCESSES = Shortage(
    "no more processes and threads are allowed",
    "raise the limit (`ulimit -u`, `pids.max` of a container), or use fewer jobs",
)
INODES = Shortage("the file system has room, but no inodes left (`df -i`)", "remove files there")
_OF = {
    errno.EAGAIN: PROCESSES,
    errno.EMFILE: Shortage(
        "too many files are open", "raise the limit (`ulimit -n`), or use fewer jobs"
    ),
    errno.ENFILE: Shortage("too many files are open on this machine"),
    errno.ENOSPC: Shortage("the disk is full"),
    errno.EDQUOT: Shortage("the quota of the disk is used up"),
    errno.EFBIG: Shortage("no file may be as large", "raise the limit (`ulimit -f`)"),
}


def shortage_of(error: OSError) -> Shortage | None:
    """Return what a failed call of ours ran short of; None when it failed for another reason."""
    if error.errno == errno.ENOSPC and _is_without_inodes(error.filename2 or error.filename):
        return INODES
    return _OF.get(error.errno or 0)


def _is_without_inodes(path: object) -> bool:
    """Return whether there is room where a file could not be made."""
    if not isinstance(path, str | bytes):
        return False
    try:
        found = os.statvfs(os.path.dirname(path))
    except OSError:
        return False
    # File systems without a number of inodes say 0 of both.
    return found.f_files > 0 and found.f_favail == 0 and found.f_bavail > 0
