"""The one atomic writer and the one hasher.

A reader of a file sees the old content or the new, never a part, whoever is killed: it is written
beside its final place under a name that starts with `.tmp-`, synced, and renamed over it, and the
directory is synced too, so that the rename survives a power failure. Digests are sha256, always in
full, always as 64 lower-case hex digits.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash


def write_atomic(path: str | os.PathLike[str], data: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` by a file that holds `data`. Raises `OSError`; then nothing has changed."""
    directory = os.path.dirname(os.path.abspath(path))
    # In the same directory: a rename is atomic only within one file system.
    handle, temporary = tempfile.mkstemp(prefix=".tmp-", dir=directory)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)  # mkstemp gives 0o600, whatever the umask
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(directory)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make the names in a directory durable. Raises `OSError`."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_CHUNK = 1 << 20


def hasher() -> _Hash:
    """For content that comes in pieces: `update` it with each, then ask for its `hexdigest`."""
    return hashlib.sha256()


def sha256_bytes(data: bytes) -> str:
    """Return the digest of `data`."""
    return hashlib.sha256(data).hexdigest()


def sha256_text(text: str) -> str:
    """Return the digest of `text` in UTF-8, as `sha256sum` gives for a file that holds it."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Return the digest of a file's content, read in pieces. Raises `OSError`."""
    found = hasher()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
