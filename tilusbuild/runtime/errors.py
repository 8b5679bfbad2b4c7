"""The errors of loading and choosing a kernel.

    LoadError                there is no kernel to load
      CorruptCacheError      a file is missing, cut short, malformed or not what was built
      UnreadableError        this process may not read a file, or the disk fails
      NoExecError            no code may run from the file system of a library
      MissingLibraryError    a library needs another one that is not here
      ShortageError          too many open files, or too little memory
    DriverError              the CUDA driver is missing, or a call of it failed

A build mends a `CorruptCacheError`, and none of the others. Each message has a remedy. A library's
own errors about a call's arguments (`TypeError`, `ValueError`) are passed on unchanged.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Any


class LoadError(RuntimeError):
    """There is no kernel to load; the text gives a reason for each candidate."""

    remedy = ""
    """The last line of each message of the class."""

    def __init__(self, message: str, reasons: Iterable[str] = ()) -> None:
        # An error that was pickled has the remedy already.
        remedy = () if message.endswith(self.remedy) else (self.remedy,)
        super().__init__("\n  ".join([message, *reasons, *remedy]))


class CorruptCacheError(LoadError):
    """A file of the tree is cut short, malformed, or not what was built."""


class UnreadableError(LoadError):
    """The system does not let this process read a file, or the disk fails."""

    remedy = (
        "`namei -l` of the path shows who may read it; TILUSBUILD_CACHE_DIR names another cache"
    )


class NoExecError(LoadError):
    """No code may run from the file system that a library is on."""

    remedy = "mount it without noexec, or name a cache elsewhere by TILUSBUILD_CACHE_DIR"


class MissingLibraryError(LoadError):
    """A library, a version of it or a symbol that a program needs is not on this machine."""

    remedy = "install it, or add its directory to LD_LIBRARY_PATH before Python starts"


class ShortageError(LoadError):
    """The process has too many open files, or the machine too little memory."""

    remedy = "close files or end processes, or raise the limits (`ulimit -a` shows them)"


class DriverError(RuntimeError):
    """The CUDA driver is missing or refused a call; the text names the function and the error."""


def check_types(**arguments: tuple[Any, ...]) -> None:
    """Raise `TypeError` for an argument whose value, the first item, has none of the types, the
    others. None stands for its type."""
    for name, (value, *types) in arguments.items():
        known_types = tuple(type(None) if kind is None else kind for kind in types)
        if not isinstance(value, known_types):
            words = " or ".join(getattr(kind, "__name__", "None") for kind in types)
            raise TypeError(f"{name} takes {words}, not {type(value).__name__}")


# What is wrong with a file itself: each other error is one of the process or the machine.
_DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.EFBIG)
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def make_read_error(path: str, error: OSError) -> LoadError:
    """Return the error for a file or a directory that cannot be read."""
    problem = f"{path} cannot be read: {error.strerror}"
    if error.errno in SHORTAGES:
        return ShortageError(problem)
    return (CorruptCacheError if error.errno in _DAMAGE else UnreadableError)(problem)


MAX_LISTED = 24
"""Known words that a hint lists."""


def did_you_mean(
    word: str, known: Iterable[str], *, likeness: float = 0.6, max_listed: int = MAX_LISTED
) -> str | None:
    """Return a hint: the nearest known word, else a list of all if there are at most `max_listed`;
    None otherwise. A word is near when difflib's ratio is at least `likeness`."""
    candidates = sorted(set(known))
    near = find_nearest_word(word, candidates, likeness)
    if near is not None:
        return f'did you mean "{near}"?'
    return "known: " + ", ".join(candidates) if 0 < len(candidates) <= max_listed else None


def find_nearest_word(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known word with the highest ratio of difflib, at least `likeness`; None without
    one."""
    # Imported after a mistake only: it takes milliseconds.
    import difflib

    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=likeness)), None)
