"""Opens and reads files that another user may have replaced by something else.

- Opening never waits: a FIFO without a writer, a socket or a device is an error, not a hang.
- The kind of a file is read from its descriptor, so it is that of the file that is read.
- Reading a whole file ends at a limit, also while another process appends to it.

Directories raise `IsADirectoryError`, as with `open`. Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from typing import BinaryIO

try:  # `hashlib` opens OpenSSL, which is a tenth of a `load`; `random` avoids it likewise.
    from _sha2 import sha256  # type: ignore[import-not-found]
except ImportError:
    try:  # before Python 3.12
        from _sha256 import sha256  # type: ignore[import-not-found]
    except ImportError:
        from hashlib import sha256

MAX_SIZE = 1 << 30
"""Bytes: the default limit of a file that is read whole."""
# Bytes. The first read is shorter, since its buffer costs time and most files are small.
_FIRST, _CHUNK = 1 << 16, 1 << 20
# Errors of opening a socket, a FIFO without a reader, or a device without a driver.
_NOT_OPENED = (errno.ENXIO, errno.ENODEV)


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
    """Return a descriptor of a regular file. Without `follow` the last name must not be a link.

    Raises `OSError`; `NotAFileError` and `IsADirectoryError` for anything but a file.
    """
    name = os.fspath(path)
    # O_NONBLOCK: opening a FIFO without a writer does not wait. O_NOCTTY: a terminal does not
    # become this process' controlling terminal.
    flags |= os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        handle = os.open(name, flags, 0o666, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise NotAFileError(name, "a link") from None
        if error.errno in _NOT_OPENED:
            raise NotAFileError(name) from None
        raise
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return handle
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    raise NotAFileError(name)


def append_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Append `data` to a regular file in one write, so that several processes may append to it. A
    missing file is made. End a last line that a kill has cut short. Raises `OSError` as
    `open_regular`."""
    handle = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            os.write(handle, b"\n")
        os.write(handle, data)
    finally:
        os.close(handle)


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Return a regular file, open for reading in pieces. Raises `OSError` as `open_regular`."""
    return open(open_regular(path), "rb")


def read_bytes(
    path: str | os.PathLike[str], limit: int = MAX_SIZE, *, follow: bool = True
) -> bytes:
    """Return the content of a regular file. Raises `OSError` as `open_regular`, and
    `FileTooLargeError` above `limit` bytes."""
    return b"".join(_read_pieces(path, limit, follow=follow))


def sha256_text(text: bytes) -> str:
    """Return the digest of a text in hexadecimal: 3 ms a megabyte, a sixth of OpenSSL's speed."""
    digest: str = sha256(text).hexdigest()
    return digest


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Return the digest of a regular file's content, read in pieces. Raises `OSError`."""
    import hashlib

    digest = hashlib.sha256()
    for piece in _read_pieces(path, sys.maxsize):
        digest.update(piece)
    return digest.hexdigest()


def read_text(path: str | os.PathLike[str], errors: str = "strict", limit: int = MAX_SIZE) -> str:
    """Return the text of a regular file in UTF-8, with `\\n` as the end of each line. Raises
    `OSError` as `read_bytes`, also for a file that is not UTF-8."""
    try:
        text = read_bytes(path, limit).decode("utf-8", errors)
    except UnicodeDecodeError:
        # Not a `ValueError`: callers catch the errors of files.
        raise OSError(errno.EILSEQ, "it is not UTF-8", os.fspath(path)) from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def try_read_bytes(
    path: str | os.PathLike[str], limit: int = MAX_SIZE, *, follow: bool = True
) -> bytes | None:
    """Return the content of a regular file; None when it cannot be read."""
    try:
        return read_bytes(path, limit, follow=follow)
    except (OSError, ValueError):  # ValueError: a name with a NUL character
        return None


def try_read_text(
    path: str | os.PathLike[str], errors: str = "strict", limit: int = MAX_SIZE
) -> str | None:
    """Return the text of a regular file in UTF-8; None when it cannot be read."""
    try:
        return read_text(path, errors, limit)
    except (OSError, ValueError):
        return None


def try_list(directory: str | os.PathLike[str]) -> list[str]:
    """Return the sorted names in a directory; none when it cannot be read."""
    try:
        return sorted(os.listdir(directory))
    except (OSError, ValueError):
        return []


def try_stat(path: str | os.PathLike[str], *, follow: bool = True) -> os.stat_result | None:
    """Return the status of a path, without `follow` that of the link itself; None without one."""
    try:
        return os.stat(path, follow_symlinks=follow)
    except (OSError, ValueError):
        return None


def _read_pieces(
    path: str | os.PathLike[str], limit: int, *, follow: bool = True
) -> Iterator[bytes]:
    """Yield the content of a regular file in pieces. Raises `OSError` as `open_regular`, and
    `FileTooLargeError` above `limit` bytes."""
    handle = open_regular(path, follow=follow)
    try:
        # Most files fit into the first, small piece.
        size, remaining = _FIRST, limit
        # One byte more than is allowed shows that the file is too large, whatever `stat` says: the
        # kernel's own files have the size 0.
        while piece := os.read(handle, min(size, remaining + 1)):
            remaining -= len(piece)
            if remaining < 0:
                raise FileTooLargeError(os.fspath(path), limit)
            yield piece
            size = _CHUNK
    finally:
        os.close(handle)
