"""One tuning a device at a time, whoever runs it: a lock that vanishes with its holder.

The lock is a file in the machine's folder for temporary files, so that it is the same for every
project and user. Containers that share a device and not that folder do not see each other.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def device_lock(device: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a device (its id); `waiting` is called once when it is taken. Raises
    `OSError`."""
    name = "".join(c if c.isalnum() or c == "-" else "_" for c in device)
    path = os.path.join(tempfile.gettempdir(), f"tilusbuild-tune-{name}.lock")
    handle = _open(path)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _open(path: str) -> int:
    # First without O_CREAT, which a sticky folder refuses for another user's file.
    with suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    handle = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with suppress(OSError):
        os.fchmod(handle, 0o666)
    return handle
