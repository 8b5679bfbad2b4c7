"""The one hasher: sha256, always in full, always as 64 lower-case hex digits."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

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
