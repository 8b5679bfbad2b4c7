"""How a program can end, and why: the two enumerations that all parts of a build share.

A `Status` is what users see, in events, reports and `meta.json`; its values are a contract. A
`Cause` is the fact behind a status that is not "built", and is what code decides by: no decision is
taken on the text of a message. Both are strings, so that JSON holds their values.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

if TYPE_CHECKING:
    from tilusbuild.binary.cubin import PtxasUsage
    from tilusbuild.binary.fatbin import CodeImage
    from tilusbuild.process.base import WorkerRun


class Status(str, Enum):
    """How a program ended."""

    BUILT = "built"
    FAILED = "failed"
    """It does not compile."""
    PRUNED = "pruned"
    """It compiles, and exceeds a limit of the manifest."""

    CRASHED = "crashed"
    KILLED = "killed"
    TIMED_OUT = "timed_out"
    NO_OUTPUT = "no_output"
    CHANGED = "changed"
    """An input changed while it was compiled."""

    SKIPPED = "skipped"
    """The build stopped before its turn."""
    MISSING = "missing"
    """In reports about a cache: it is to be compiled."""

    __str__ = str.__str__  # Python 3.10 would print "Status.BUILT" in f-strings


# The same inputs give them every time, so they are published and not retried.
RECORDED = (Status.BUILT, Status.FAILED, Status.PRUNED)
"""The statuses that are results."""

# Of the machine, and not of the program: the next build retries.
ACCIDENTS = (Status.CRASHED, Status.KILLED, Status.TIMED_OUT, Status.NO_OUTPUT, Status.CHANGED)
"""The statuses that are not results."""

KNOWN_IN_CACHE = (*RECORDED, Status.MISSING)
"""The statuses that a reader of a cache, who builds nothing, can find."""
STATUS_WORDS: Mapping[str, str] = {
    Status.FAILED: "does not compile",
    Status.PRUNED: "is pruned",
    Status.CRASHED: "was not compiled",
    Status.KILLED: "was killed",
    Status.TIMED_OUT: "takes too long to compile",
    Status.NO_OUTPUT: "makes the compiler write nothing",
    Status.CHANGED: "changed while it was built",
}
"""In words, as of a program or a schedule."""


class Cause(str, Enum):
    """Why a compile did not give a library."""

    SOURCE = "source"
    """A tool says that the program is wrong."""
    CHECK = "check"
    """The program does not do what the manifest declares, as our own checks found."""
    LIMIT = "limit"
    """The compiled code exceeds one of the manifest's limits."""
    CRASH = "crash"
    """A tool failed, and not because of the program."""
    KILLED = "killed"
    """SIGKILL ended a tool, and we did not send it: mostly the kernel did, as memory ran out."""
    MEMORY = "memory"
    """A tool could not allocate memory."""
    DISK = "disk"
    """A tool could not read or write: the disk is full or broken."""
    TIME = "time"
    """A tool exceeded the time limit and was stopped."""
    OUTPUT = "output"
    """A tool reported success, and its output is missing or cannot be read."""
    TOOL = "tool"
    """A tool could not be started."""
    OUTSIDE = "outside"
    """The source names a file that the program's hash does not cover."""

    __str__ = str.__str__

    @property
    def status(self) -> Status:
        """Return the status of a program whose compile ended for this cause."""
        return _STATUSES.get(self, Status.CRASHED)


_STATUSES = {
    Cause.SOURCE: Status.FAILED,
    Cause.CHECK: Status.FAILED,
    Cause.LIMIT: Status.PRUNED,
    Cause.TIME: Status.TIMED_OUT,
    Cause.OUTPUT: Status.NO_OUTPUT,
}


class Compiled(Struct, frozen=True):
    """The result of one compile."""

    status: Status
    """One of `RECORDED` is published; the others are accidents: the next build tries again."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The entry's meta.json, but for what the store itself writes there."""
    log: str = ""
    """What the compilers printed, free of times and temporary names."""
    commands: tuple[str, ...] = ()
    """The command lines that were run."""
    reason: str = ""
    """One line for people: why it is not "built". For a failure best its first error."""
    cause: Cause | None = None
    """What code decides by, where the status alone does not say enough; None: it was made."""
    seconds: float = 0.0
    peak_rss: int = 0
    """Bytes: the largest of the compile's processes."""
    elsewhere: WorkerRun | None = None
    """Another machine that did a part."""
    ptxas: tuple[PtxasUsage, ...] = ()
    images: tuple[CodeImage, ...] = ()

    @classmethod
    def stopped(cls, cause: Cause, log: str, reason: str) -> Compiled:
        """Return the end of a compile that did not begin, or had nothing measured."""
        return cls(cause.status, cause=cause, log=log, reason=reason)
