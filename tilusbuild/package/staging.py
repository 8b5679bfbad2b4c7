"""Private directories beside a place, in which packages are made.

A private directory belongs to who holds the lock of its file `.lock`, which vanishes with its
holder. Who makes the next one there removes those that nobody holds: what a killed command left
does not stay. Where the file system has no locks, nothing is removed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PREFIX = ".tmp-"
_IS_OURS = re.compile(r"\.tmp-[a-z0-9_]{8}")  # as `mkdtemp` names them
_LOCK = ".lock"


@contextmanager
def private_directory(place: str) -> Iterator[str]:
    """Make a directory in the directory `place`, and remove it after the block. Raises `OSError`
    before the block."""
    _remove_abandoned(place)
    path, handle = _make(place)
    try:
        yield path
    finally:
        with suppress(OSError):
            _empty(path)
        os.close(handle)


def _make(place: str) -> tuple[str, int]:
    """Return a new directory and the open file whose lock says that it is ours."""
    while True:
        path = tempfile.mkdtemp(prefix=_PREFIX, dir=place)
        try:
            # Before it is locked, it looks abandoned to others, and may go.
            with suppress(FileNotFoundError):
                handle = _lock(path)
                if handle is not None:
                    return path, handle
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise


def _lock(path: str) -> int | None:
    """Return the open and locked file of a private directory, or None when somebody else has it or
    has removed it. Raises `OSError`."""
    name = os.path.join(path, _LOCK)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(name, flags, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        pass  # no locks here: then nobody removes anything, either
    try:
        if os.path.samestat(os.fstat(handle), os.lstat(name)):
            return handle
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _remove_abandoned(place: str) -> None:
    """Remove the private directories in `place` that nobody holds; never raises."""
    with suppress(OSError):
        for entry in list(os.scandir(place)):
            if _IS_OURS.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    _remove(entry.path)


def _remove(path: str) -> None:
    names = os.listdir(path)
    if not names:  # killed before it was locked
        os.rmdir(path)
    if _LOCK not in names:
        return  # somebody else's
    handle = os.open(
        os.path.join(path, _LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    )
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _empty(path)
    finally:
        os.close(handle)


def _empty(path: str) -> None:
    """Remove a private directory, its lock last: what is left of it is known for ours."""
    for name in os.listdir(path):
        inner = os.path.join(path, name)
        if os.path.isdir(inner) and not os.path.islink(inner):
            shutil.rmtree(inner)
        elif name != _LOCK:
            os.unlink(inner)
    os.unlink(os.path.join(path, _LOCK))
    os.rmdir(path)
