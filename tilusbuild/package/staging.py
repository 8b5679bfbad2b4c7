"""Private directories beside a place, in which packages are made and caches are unpacked.

A private directory belongs to who holds the lock of its file `.lock`, which vanishes with its
holder. Who makes the next one there removes those without a holder: what a killed command left
does not stay. Where the file system has no locks, nothing is removed.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tilusbuild.cache.locks import lock_file
from tilusbuild.runtime.regular import open_regular
from tilusbuild.state.directories import below, names_below, remove

_RANDOM = r"[a-z0-9_]{8}"  # as `mkdtemp` names them
_LOCK = ".lock"


@contextmanager
def private_directory(place: str, prefix: str = ".tmp-") -> Iterator[str]:
    """Make a directory in the directory `place`, and remove it after the block. Raises `OSError`
    before the block."""
    _remove_abandoned(place, prefix)
    path, handle = _make(place, prefix)
    try:
        yield path
    finally:
        with suppress(OSError):
            _remove(path)
        os.close(handle)


def _make(place: str, prefix: str) -> tuple[str, int]:
    """Return a new directory and the open file whose lock says that it is ours."""
    while True:
        path = tempfile.mkdtemp(prefix=prefix, dir=place)
        try:
            # Before it is locked, it looks abandoned to others, and may go.
            with suppress(FileNotFoundError):
                handle = _lock(path)
                if handle is not None:
                    return path, handle
        except BaseException:
            with suppress(OSError):
                remove(path)
            raise


def _lock(path: str) -> int | None:
    """Return the open and locked file of a private directory, or None when another process has it
    or has removed it. Raises `OSError`."""
    handle = _open_lock(path, os.O_CREAT)
    try:
        try:
            held = lock_file(handle, wait=False)
        except OSError:
            held = True  # no locks here: then no process removes anything, either
        if held and os.path.samestat(os.fstat(handle), os.lstat(os.path.join(path, _LOCK))):
            return handle
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _open_lock(path: str, flags: int = 0) -> int:
    with below(os.path.dirname(path), os.path.basename(path)) as handle:
        return open_regular(_LOCK, os.O_RDWR | flags, 0o600, follow=False, dir_fd=handle)


def _remove_abandoned(place: str, prefix: str) -> None:
    """Remove the private directories in `place` without a holder; never raises."""
    ours = re.compile(re.escape(prefix) + _RANDOM, re.ASCII)
    with suppress(OSError):
        for name in filter(ours.fullmatch, os.listdir(place)):
            with suppress(OSError):
                _remove_unheld(os.path.join(place, name))


def _remove_unheld(path: str) -> None:
    names = names_below(path)
    if not names:  # killed before it was locked; a link is not a directory, and stays
        os.rmdir(path)
    if _LOCK not in names:
        return  # another user's
    handle = _open_lock(path)
    try:
        if lock_file(handle, wait=False):
            _remove(path)
    finally:
        os.close(handle)


def _remove(path: str) -> None:
    """Remove a private directory, its lock last: what is left of it is known for ours."""
    for name in names_below(path):
        if name != _LOCK:
            remove(os.path.join(path, name))
    remove(path)
