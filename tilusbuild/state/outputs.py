"""The one writer of files that a user names (`-o FILE`, `--junit FILE`).

A regular file is replaced in one step, so that a reader never sees a part, and a link leads to the
file that it names. What is not a file is written to and never replaced: a FIFO, a device, a
descriptor of ours (`/dev/stdout`, the shell's `>(command)`). A FIFO without a reader is an error,
not a hang.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import BinaryIO

from tilusbuild.state.files import atomic

_MAX_LINKS = 40
_DESCRIPTOR = re.compile(r"[0-9]{1,9}", re.ASCII)


@contextmanager
def output(path: str) -> Iterator[BinaryIO]:
    """Open the output at `path` for a block that writes it. Raises `OSError`, which names `path`;
    a file is then as it was."""
    try:
        with _opened(_resolve(path)) as file:
            yield file
    except OSError as error:
        error.filename = path  # not the temporary file's
        raise


def write_output(path: str, data: bytes) -> None:
    """Write the output at `path`. Raises `OSError`."""
    with output(path) as file:
        file.write(data)


def _opened(place: str | int) -> AbstractContextManager[BinaryIO]:
    if isinstance(place, int):
        return os.fdopen(os.dup(place), "wb")
    try:
        found = os.lstat(place)
    except FileNotFoundError:
        return atomic(place)
    if stat.S_ISREG(found.st_mode):
        return atomic(place, mode=found.st_mode & 0o777)
    return os.fdopen(_open_special(place), "wb")


def _resolve(path: str) -> str | int:
    """Return where the links of `path` end: a path whose last name is not a link, or the number of
    one of our descriptors."""
    for _ in range(_MAX_LINKS):
        directory = os.path.realpath(os.path.dirname(path) or ".")
        name = os.path.basename(path)
        # Opened by its path, a descriptor's file would be written from its start, over what it has.
        if directory == f"/proc/{os.getpid()}/fd" and _DESCRIPTOR.fullmatch(name):
            return int(name)
        path = os.path.join(directory, name)
        if not os.path.islink(path):
            return path
        path = os.path.join(directory, os.readlink(path))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _open_special(path: str) -> int:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "no process reads from it", path) from None
        raise
    os.set_blocking(handle, True)
    return handle
