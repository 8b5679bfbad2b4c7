"""The one writer of files that a user names (`-o FILE`, `--junit FILE`).

A regular file is replaced in one step, so that a reader never sees a part, and a link leads to the
file that it names. Anything else is appended to and never replaced: a FIFO, a device, a descriptor
of ours (`/dev/stdout`, the shell's `>(command)`).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import BinaryIO

from tilusbuild.state.files import open_atomic

_STANDARD = {"/dev/stdout": "/dev/fd/1", "/dev/stderr": "/dev/fd/2"}
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})", re.ASCII)


@contextmanager
def open_output(path: str) -> Iterator[BinaryIO]:
    """Open the output at `path` for a block to write. Raise `OSError` that names `path`; a regular
    file then stays as it was."""
    try:
        with _open_target(path) as file:
            yield file
    except OSError as error:
        error.filename = path  # not the temporary file's
        raise


def write_output(path: str, data: bytes) -> None:
    """Write the output at `path`. Raises `OSError`."""
    with open_output(path) as file:
        file.write(data)


def _open_target(path: str) -> AbstractContextManager[BinaryIO]:
    descriptor = _DESCRIPTOR.fullmatch(_STANDARD.get(path, path))
    if descriptor is not None:
        # Opened by its path, its file would be written from the start, over what it has.
        return os.fdopen(os.dup(int(descriptor[1])), "wb")
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return open_atomic(os.path.realpath(path))
    if stat.S_ISREG(mode):
        return open_atomic(os.path.realpath(path), mode=mode & 0o777)
    return os.fdopen(_open_special(path), "wb")


def _open_special(path: str) -> int:
    """Return a descriptor of a device or a FIFO. Raise `OSError` if no process reads the FIFO."""
    # Without O_NONBLOCK, opening a FIFO waits for a reader, perhaps for ever.
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "no process reads from it", path) from None
        raise
    os.set_blocking(descriptor, True)
    return descriptor
