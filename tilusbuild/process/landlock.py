"""Landlock: this thread, and all that it starts, reads and writes below given paths only.

Standard library only, and imported by its path: the warden and NVRTC's process stand alone. What is
given up is given up for good, so it is called in a child that is about to become a compiler, or in
a thread that ends with its compile. Landlock needs no privilege and Linux 5.13. It decides when a
file is opened: whether a file exists can still be asked (`stat`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import stat
import struct
from collections.abc import Iterable

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_PR_SET_NO_NEW_PRIVS = 38
_VERSION = 1
_BELOW = 1
"""landlock.h: LANDLOCK_CREATE_RULESET_VERSION, LANDLOCK_RULE_PATH_BENEATH."""

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE = 1 << 14
_BY_ABI = {1: 1 << 13, 2: 1 << 14, 3: 1 << 15}
"""The first bit that each version does not have yet; later versions have devices, the network and
signals, which are of no concern here."""

_LIBC = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """Return the version of Landlock that the kernel offers to this process; 0 for none."""
    if platform.system() != "Linux":
        return 0
    try:
        return max(0, _call(_CREATE, None, 0, _VERSION))
    except OSError:
        return 0


def restrict(read: Iterable[bytes | str], write: Iterable[bytes | str]) -> None:
    """Leave this thread the files below `read`, to read and to run, and those below `write`, to
    read and to change. A path that does not exist is left out. Raises `OSError`."""
    offered = version()
    if not offered:
        raise OSError(errno.EOPNOTSUPP, "this kernel offers no Landlock")
    handled = _BY_ABI[min(offered, 3)] - 1
    ruleset = _call(_CREATE, struct.pack("<Q", handled), 8, 0)
    try:
        for path in read:
            _allow(ruleset, path, _EXECUTE | _READ_FILE | _READ_DIR)
        for path in write:
            _allow(ruleset, path, handled & ~_EXECUTE)
        _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _call(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: bytes | str, rights: int) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(handle).st_mode):
                rights &= _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
            _call(_ADD_RULE, ruleset, _BELOW, struct.pack("<Qi", rights, handle), 0)
        finally:
            os.close(handle)


def _call(number: int, *arguments: object) -> int:
    words = [
        ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments
    ]
    result = int(_LIBC.syscall(ctypes.c_long(number), *words))
    if result < 0:
        reason = ctypes.get_errno()
        raise OSError(reason, f"Landlock: {os.strerror(reason)}")
    return result
