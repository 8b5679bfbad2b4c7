"""Loading the stat helper: C that checks a no-op record's files faster than Python's `os.stat`.

It exists for one row of what is promised: with 100,000 published entries, a build with nothing to
do is twice as fast with it, because it checks them without Python's share and in several threads.
For fewer than some thousand entries it is not worth loading, and it is never needed.

This module imports `os`, and `ctypes` only when a helper is loaded. A helper runs in our process:
it is loaded only from a directory and a file that belong to us and that nobody else may write, and
only while the file is the very one that was tried when the record was written.
`tilusbuild.builder.noop_record` compiles it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Same = Callable[[memoryview, memoryview], bool]
    """Whether the names of a group still have their stamps."""

SYMBOL = "tilusbuild_same"
_STAMP_SIZE = 32
"""Bytes: four numbers of eight."""


def directory(records: str) -> str:
    """Return where stat helpers are kept, beside the directory of records."""
    return os.path.join(os.path.dirname(records), "lookers")


def load(path: str, stamp: tuple[int, int, int, int]) -> Same | None:
    """Return the stat helper at `path`, when it is the file that had this stamp; else None."""
    try:
        found = os.stat(path, follow_symlinks=False)
        if not (_is_ours(found) and _is_ours(os.stat(os.path.dirname(path)))):
            return None
        if found.st_mode & 0o170000 != 0o100000:
            return None  # opening a FIFO waits for a writer
        if stamp != (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino):
            return None
        import ctypes

        function = getattr(ctypes.CDLL(path), SYMBOL)
    except (OSError, ImportError, AttributeError):
        return None
    function.argtypes = (ctypes.c_char_p, ctypes.c_size_t) * 2

    def same(names: memoryview, stamps: memoryview) -> bool:
        count = len(stamps) // _STAMP_SIZE
        return bool(function(bytes(names), len(names), bytes(stamps), count) == 1)

    return same


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022
