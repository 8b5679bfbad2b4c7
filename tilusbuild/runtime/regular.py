"""The one way to open a file that another user may have put there.

- Opening never waits and never acts: a FIFO without a writer, a socket or a device where a file is
  expected is an error that says so, not a hang.
- What is opened is looked at by its descriptor, so it is what is read.
- No more is read than a limit, also of files whose size the system does not say (`/proc`).

Directories raise `IsADirectoryError`, as they do with `open`. Nothing here needs the builder.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from typing import BinaryIO

MAX_SIZE = 1 << 30
"""Bytes of a file that is read whole, unless the caller says something else."""
_CHUNK = 1 << 20
_NOT_OPENED = (errno.ENXIO, errno.ENODEV)
"""What opening a socket, a FIFO without a reader, or a device without a driver ends in."""


class NotAFileError(OSError):
    """Something that is not a regular file is where one is expected."""

    def __init__(self, path: str, kind: str = "a FIFO, a socket or a device") -> None:
        super().__init__(errno.EINVAL, f"it is {kind}, not a file", path)
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.filename} is {self.kind}, not a file"


class FileTooLargeError(OSError):
    """A file has more bytes than the reader allows."""

    def __init__(self, path: str, limit: int) -> None:
        super().__init__(errno.EFBIG, f"it has more than {limit} bytes", path)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def open_regular(
    path: str | os.PathLike[str],
    flags: int = os.O_RDONLY,
    *,
    follow: bool = True,
    dir_fd: int | None = None,
) -> int:
    """Return a descriptor of a regular file. Without `follow` the last name is not a link.

    Raises `OSError`, of which `NotAFileError` and `IsADirectoryError` for what is not a file.
    """
    return _opened(os.fspath(path), flags, follow, dir_fd)[0]


def _opened(
    name: str,
    flags: int = os.O_RDONLY,
    follow: bool = True,
    dir_fd: int | None = None,
) -> tuple[int, int]:
    """Return the descriptor of `open_regular`, and how many bytes the file has."""
    flags |= os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        handle = os.open(name, flags | os.O_NONBLOCK, 0o666, dir_fd=dir_fd)
    except BlockingIOError:
        # Another has a lease of it (file servers do): the kernel waits until it is given back.
        handle = os.open(name, flags, 0o666, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise NotAFileError(name, "a link") from None
        if error.errno in _NOT_OPENED:
            raise NotAFileError(name) from None
        raise
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode):
        return handle, found.st_size
    os.close(handle)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    raise NotAFileError(name)


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Return a regular file, open for reading in pieces."""
    name = os.fspath(path)
    handle, size = _opened(name)
    try:
        if size == 0:
            # Empty, or one of the kernel's, which may have no end and may wait for more.
            return io.BytesIO(_read(handle, size, name, MAX_SIZE))
        return open(os.dup(handle), "rb")
    finally:
        os.close(handle)


def read_bytes(
    path: str | os.PathLike[str], limit: int = MAX_SIZE, *, follow: bool = True
) -> bytes:
    """Return the content of a regular file. Raises `OSError`; `FileTooLargeError` above `limit`."""
    name = os.fspath(path)
    handle, size = _opened(name, follow=follow)
    try:
        return _read(handle, size, name, limit)
    finally:
        os.close(handle)


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Return the digest of a regular file's content, read in pieces. Raises `OSError`."""
    name = os.fspath(path)
    handle, size = _opened(name)
    try:
        if size <= _CHUNK:
            # One read for most; and the kernel's own may have no end, and may wait for more.
            return hashlib.sha256(_read(handle, size, name, MAX_SIZE)).hexdigest()
        found = hashlib.sha256()
        while piece := os.read(handle, _CHUNK):
            found.update(piece)
        return found.hexdigest()
    finally:
        os.close(handle)


def read_text(path: str | os.PathLike[str], errors: str = "strict", limit: int = MAX_SIZE) -> str:
    """Return the text of a regular file in UTF-8, every line's end as `\\n`, as `open` gives it.

    Raises `OSError`, also for what is not text: whoever reads a file thinks of that one.
    """
    try:
        text = read_bytes(path, limit).decode("utf-8", errors)
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "it is not UTF-8", os.fspath(path)) from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _read(handle: int, size: int, path: str, limit: int) -> bytes:
    pieces: list[bytes] = []
    left = limit + 1
    # One more than there is: the read that finds the end is spared where the size was right.
    wanted = size + 1
    while left > 0:
        asked = min(left, max(wanted, _CHUNK if pieces else 1 << 16))
        try:
            piece = os.read(handle, asked)
        except BlockingIOError:
            raise NotAFileError(path, "a stream that has no end") from None
        pieces.append(piece)
        left -= len(piece)
        wanted -= len(piece)
        if not piece or (wanted == 1 and len(piece) < asked):
            return b"".join(pieces)
    raise FileTooLargeError(path, limit)
