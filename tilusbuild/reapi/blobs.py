"""Content of the Remote Execution API: named by its sha256 and its size."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.files import sha256_bytes


class Blob(NamedTuple):
    """The name of a content: its sha256 and its size in bytes."""

    digest: str
    size: int


class BlobError(ValueError):
    """A message that names content in a way that is not of the protocol, or too large."""


Source: TypeAlias = bytes | str
"""Content, or the path of the file that it is in."""
Sources: TypeAlias = dict[Blob, Source]
Keep: TypeAlias = Callable[[Blob, Iterable[bytes]], None]
"""Takes the content of a blob, in pieces, and no more of it than that has."""


class BlobReader(Protocol):
    """A server that has blobs."""

    def fetch_blobs(self, wanted: Collection[Blob], keep: Keep) -> None:
        """Call `keep` with the content of each blob that the server has, unchecked. Raises
        `RemoteTroubleError`, and the exceptions of `keep`."""


def make_blob(data: bytes) -> Blob:
    """Return the blob with this content."""
    return Blob(sha256_bytes(data), len(data))


def read_source(source: Source) -> bytes:
    """Return the content of a source. Raises `OSError`."""
    return source if isinstance(source, bytes) else read_bytes(source)


def read_blobs(server: BlobReader, wanted: Collection[Blob]) -> Mapping[Blob, bytes]:
    """Return the content of small blobs, unchecked."""
    contents: dict[Blob, bytes] = {}

    def keep_blob(blob: Blob, pieces: Iterable[bytes]) -> None:
        data = bytearray()
        for piece in pieces:
            data += piece[: blob.size + 1 - len(data)]
            if len(data) > blob.size:
                break
        contents[blob] = bytes(data)

    server.fetch_blobs(wanted, keep_blob)
    return contents


def write_blob(path: str, blob: Blob, pieces: Iterable[bytes]) -> bool:
    """Write content to a file and return whether it has the blob's size and digest. Stop at the
    piece that exceeds the size. Raises `OSError`."""
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for piece in pieces:
            size += len(piece)
            if size > blob.size:
                break
            digest.update(piece)
            file.write(piece)
    return size == blob.size and digest.hexdigest() == blob.digest
