"""What a machine is short of, in words that say what to do: `strerror` of EAGAIN is the same for a
limit on processes and for a lock, and that of ENOSPC for a full disk and for one that has room and
no inodes."""

from __future__ import annotations

import errno
from typing import NamedTuple


class Shortage(NamedTuple):
    """What there is none left of, and what gives more."""

    what: str
    more: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.more}" if self.more else self.what


PROCESSES = Shortage(
    "no more processes and threads are allowed (`ulimit -u`; `pids.max` of a container)",
    "raise the limit, or use fewer jobs",
)
_OF = {
    errno.EAGAIN: PROCESSES,
    errno.EMFILE: Shortage(
        "too many files are open", "raise the limit (`ulimit -n`), or use fewer jobs"
    ),
    errno.ENFILE: Shortage("too many files are open on this machine"),
    # Which of the two is not known later: what was begun is removed before anything is said.
    errno.ENOSPC: Shortage("the disk is full, or has no inodes left (`df -i`)"),
    errno.EDQUOT: Shortage("the quota of the disk is used up"),
    errno.EFBIG: Shortage("the file is too large", "raise the limit (`ulimit -f`)"),
}


def shortage_of(error: OSError) -> Shortage | None:
    """Return what a failed call of ours ran short of; None when it failed for another reason."""
    return _OF.get(error.errno or 0)
