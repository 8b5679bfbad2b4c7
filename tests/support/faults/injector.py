"""The page through which a test and the preloaded `injector.c` talk, and how that is built.

    page = Page.make("/dev/shm/x/page")
    page.arm(kinds=CHANGES, roots=[cache], at=7, error=errno.ENOSPC)
    … run a command under `environment(library, page)` …
    page.fired, page.log

Without `call_number` the calls are only counted: `log` has the kind of each, in order.
"""

import ctypes
import errno
import mmap
import os
import subprocess
from collections.abc import Iterable, Sequence

_LOGGED = 65536
_ROOTS = 4
_PATH = 512

_CHANGES = "open write rename link symlink unlink mkdir rmdir truncate sync chmod utime copy lock"
_READS = "look opendir readdir read stat map"
_PROCESS = "thread spawn send socket pipe poll"
KINDS = {
    name: number
    for first, names in ((1, _CHANGES), (16, _READS), (24, _PROCESS))
    for number, name in enumerate(names.split(), first)
}
"""As `enum Kind`."""
NAMES = {number: name for name, number in KINDS.items()}
CHANGES = frozenset(_CHANGES.split())
"""What changes a tree, and locks."""
READS = frozenset(_READS.split())
PROCESS = frozenset(_PROCESS.split())

_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EROFS, errno.EACCES)
_FEW = (errno.EMFILE, errno.ENOMEM)
_NAMES_CHANGE = (*_FULL, *_DENIED, errno.EIO, errno.ENOMEM)
ERRORS: dict[str, tuple[int, ...]] = {
    "open": (*_FULL, *_DENIED, *_FEW, errno.EIO),
    "write": (*_FULL, errno.EIO, errno.ENOMEM),
    "rename": (*_NAMES_CHANGE, errno.EXDEV),
    "link": (*_NAMES_CHANGE, errno.EXDEV),
    "symlink": _NAMES_CHANGE,
    "unlink": (*_DENIED, errno.EIO, errno.ENOMEM),
    "mkdir": _NAMES_CHANGE,
    "rmdir": (*_DENIED, errno.EIO, errno.ENOMEM),
    "truncate": (*_FULL, *_DENIED, errno.EIO),
    "sync": (*_FULL, errno.EIO),
    "chmod": (*_DENIED, errno.EIO),
    "utime": (*_DENIED, errno.EIO),
    "copy": (*_FULL, errno.EIO, errno.ENOMEM, errno.EXDEV),
    "lock": (errno.ENOLCK, errno.EIO, errno.ENOMEM),
    "look": (*_FEW, errno.EIO, errno.EACCES),
    "opendir": (*_FEW, errno.EIO, errno.EACCES),
    "readdir": (errno.EIO, errno.ENOMEM),
    "read": (errno.EIO, errno.ENOMEM),
    "stat": (errno.EIO, errno.ENOMEM, errno.EACCES),
    "map": (errno.ENOMEM, errno.EACCES),
    "thread": (errno.EAGAIN,),
    "spawn": (errno.EAGAIN, errno.ENOMEM),
    "send": (errno.ENOMEM, errno.ENOBUFS, errno.EPIPE),
    "socket": (*_FEW, errno.ENFILE),
    "pipe": (*_FEW, errno.ENFILE),
    "poll": (errno.ENOMEM,),
}
"""The errors that each kind of call can end in."""


class _Layout(ctypes.Structure):
    """As `struct Page`."""

    _fields_ = (
        ("kinds", ctypes.c_uint64),
        ("failing", ctypes.c_uint64),
        ("at", ctypes.c_uint32),
        ("forever", ctypes.c_uint32),
        ("error", ctypes.c_int32),
        ("signal", ctypes.c_int32),
        ("ahead", ctypes.c_int64),
        ("half", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("fired", ctypes.c_uint32),
        ("first", ctypes.c_uint32),
        ("path", ctypes.c_char * _PATH),
        ("roots", (ctypes.c_char * _PATH) * _ROOTS),
        ("log", ctypes.c_uint8 * _LOGGED),
    )


def build(directory: str) -> str:
    """Compile the injector with gcc; returns the library's path."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "injector.c")
    library = os.path.join(directory, "injector.so")
    flags = ("-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden")
    subprocess.run(["gcc", *flags, "-o", library, source], check=True)
    return library


class Page:
    """The page in the file at `path`."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "wb") as file:
            file.truncate(ctypes.sizeof(_Layout))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), ctypes.sizeof(_Layout))
        self._page = _Layout.from_buffer(self._map)

    def arm(
        self,
        kinds: Iterable[str],
        roots: Sequence[str],
        *,
        call_number: int = 0,
        forever: bool = False,
        error: int = 0,
        signal: int = 0,
        half: bool = False,
    ) -> None:
        """Count these calls from now on, and fail the `call_number`-th; `forever`: and all after
        it. A call that cannot end in this error does not."""
        page = self._page
        self.disarm()
        ctypes.memset(ctypes.addressof(page), 0, ctypes.sizeof(_Layout))
        for number, root in enumerate(roots):
            page.roots[number].value = os.path.join(os.path.realpath(root), "").encode()
        page.at, page.error, page.signal = call_number, error, signal
        page.forever, page.half = forever, half
        page.failing = sum(
            1 << number for kind, number in KINDS.items() if signal or error in ERRORS[kind]
        )
        page.kinds = sum(1 << KINDS[kind] for kind in kinds)

    def set_clock(self, ahead: float) -> None:
        """Have those who have joined see a clock that is so many seconds ahead."""
        self._page.ahead = round(ahead * 1e9)

    def disarm(self) -> None:
        """Let every call pass, uncounted."""
        self._page.kinds = 0

    @property
    def log(self) -> list[str]:
        """The kinds of the calls that counted."""
        return [NAMES[kind] for kind in self._page.log[: min(self._page.count, _LOGGED)]]

    @property
    def fired(self) -> str:
        """The first call that failed: its kind and path; "" when none did."""
        page = self._page
        return f"{NAMES[page.first]} {os.fsdecode(page.path)}".strip() if page.fired else ""


def environment(library: str, page: Page) -> dict[str, str]:
    """Return the variables with which a process has the injector."""
    return {"LD_PRELOAD": library, "FAULTS_PAGE": page.path}
