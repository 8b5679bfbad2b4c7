"""Digests of libraries, checked once: a receipt outside the tree remembers that a file was right.

A receipt holds what `stat` said of the file when its content was read. It counts while size, mtime,
ctime, inode and device are the same, and only if the file was older than the file system's tick
when it was read. Receipts save reading and nothing else: without a place to keep them, every
process reads each library that it uses once.

The stamp and the rule are those of `tilusbuild.state.stamp`, which the runtime must not import: it
is shipped without the builder. `tests/state/test_stamp.py` compares the two.
"""

from __future__ import annotations

import hashlib
import os
import time

_TICK = 2_000_000_000
"""Nanoseconds: the coarsest time stamp of a file system in use."""


def sha256_of(path: str) -> str:
    """Return the digest of a file's content, from its receipt if it has one. Raises `OSError`."""
    place = _place(path)
    with open(path, "rb", buffering=0) as file:
        stamp = _stamp(os.fstat(file.fileno()))
        kept = _read(place)
        if kept is not None and kept[0] == stamp:
            return kept[1]
        hasher = hashlib.sha256()
        while piece := file.read(1 << 20):
            hasher.update(piece)
        found = os.fstat(file.fileno())
    digest = hasher.hexdigest()
    newest = max(found.st_mtime_ns, found.st_ctime_ns)
    if place is not None and _is_settled(newest, time.time_ns()) and _stamp(found) == stamp:
        _write(place, f"{stamp} {digest}\n")
    return digest


def _stamp(found: os.stat_result) -> str:
    numbers = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev)
    return " ".join(map(str, numbers))


def _is_settled(newest: int, at: int) -> bool:
    """Return whether something last changed at `newest` was old enough at `at` to be trusted."""
    return newest < at - _TICK


def _place(path: str) -> str | None:
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        home = os.environ.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    return os.path.join(base, "tilusbuild", "receipts", name)


def _read(place: str | None) -> tuple[str, str] | None:
    if place is None:
        return None
    try:
        with open(place, encoding="ascii") as file:
            words = file.read(1000).split()
    except (OSError, ValueError):
        return None
    return (" ".join(words[:-1]), words[-1]) if len(words) == 6 and len(words[-1]) == 64 else None


def _write(place: str, text: str) -> None:
    import tempfile

    try:
        directory = os.path.dirname(place)
        os.makedirs(directory, exist_ok=True)
        handle, made = tempfile.mkstemp(prefix=".tmp-", dir=directory)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
        os.replace(made, place)
    except OSError:
        return
