"""Landlock: restrict this thread, and all that it starts, to the files below some paths.

Standard library only, and imported by its path, since the warden and NVRTC's process stand alone. A
restriction cannot be lifted. So a child restricts itself just before it becomes a compiler, or a
thread that ends with its compile. Landlock needs Linux 5.13 and no privilege. It is checked when a
file is opened; `stat` still sees all files. From Linux 6.7 on it also denies connections by TCP.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PR_SET_NO_NEW_PRIVS = 38
_VERSION = 1
_RULE_PATH_BENEATH = 1
"""landlock.h: LANDLOCK_CREATE_RULESET_VERSION, LANDLOCK_RULE_PATH_BENEATH."""

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE = 1 << 14
# The first access right (a bit) that a version does not know. Rights of later versions concern
# devices, the network and signals, and are not used.
_FIRST_MISSING_RIGHT = {1: 1 << 13, 2: 1 << 14, 3: 1 << 15}
_BIND_TCP, _CONNECT_TCP = 1, 2

_LIBC = ctypes.CDLL(None, use_errno=True)


def find_version() -> int:
    """Return the version of Landlock that the kernel offers to this process, or 0."""
    try:
        return _call_kernel(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def restrict_files(read: Iterable[bytes | str], write: Iterable[bytes | str]) -> None:
    """Restrict this thread for good: it opens files below `read` to read and run them, files below
    `write` to read and change them, and no others. From version 4 on it has no TCP.

    A missing path is ignored. Raises `OSError`, also when the kernel offers no Landlock.
    """
    version = find_version()
    if not version:
        raise OSError(errno.EOPNOTSUPP, "this kernel offers no Landlock")
    # The rights that this version knows are the bits below the first missing one. The ruleset
    # denies each of them wherever no rule allows it.
    known_rights = _FIRST_MISSING_RIGHT[min(version, 3)] - 1
    # Zeros are allowed for attributes that a version does not know.
    attributes = struct.pack("<QQ", known_rights, _BIND_TCP | _CONNECT_TCP if version >= 4 else 0)
    ruleset = _call_kernel(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for path in read:
            _allow_path(ruleset, path, _EXECUTE | _READ_FILE | _READ_DIR)
        for path in write:
            _allow_path(ruleset, path, known_rights & ~_EXECUTE)
        # The kernel restricts an unprivileged process only if it can gain no privileges.
        _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _call_kernel(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow_path(ruleset: int, path: bytes | str, rights: int) -> None:
    """Add a rule to a ruleset that allows these rights (bits) below a path. Raises `OSError`."""
    # A path that cannot be opened cannot be opened by the compiler either.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            # The kernel refuses a rule that gives a file a right of directories.
            if not stat.S_ISDIR(os.fstat(handle).st_mode):
                rights &= _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
            rule = struct.pack("<Qi", rights, handle)
            _call_kernel(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
        finally:
            os.close(handle)


def _call_kernel(number: int, *arguments: object) -> int:
    """Make a system call by its number, and return its result. Raises `OSError`."""
    # ctypes would pass an integer as a C int, and a system call takes longs.
    values = [
        ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments
    ]
    result = int(_LIBC.syscall(ctypes.c_long(number), *values))
    if result < 0:
        error_number = ctypes.get_errno()
        raise OSError(error_number, f"Landlock: {os.strerror(error_number)}")
    return result
