"""Blobs as zstd frames, the one compression of the Remote Execution API that servers offer.

What a frame says of its size is not believed: no more than a blob's size is ever unpacked.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Protocol

import zstandard

COMPRESSOR = 1
"""Its number in the protocol."""
WORTH = 1 << 10
"""Bytes of a blob that is compressed; smaller ones gain nothing on the line."""
_WINDOW = 128 << 20


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


def compressed(data: bytes) -> bytes:
    """Return content as one frame."""
    return zstandard.ZstdCompressor(level=3).compress(data)


def decompressed(frames: bytes | _Readable, size: int) -> bytes:
    """Return what is in frames, at most one byte more than `size`; of what is none, as far as it
    was one. So the digest decides."""
    source = io.BytesIO(frames) if isinstance(frames, bytes) else frames
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(
        source,  # type: ignore[arg-type]
        read_across_frames=True,
    )
    pieces: list[bytes] = []
    left = size + 1
    try:
        while left > 0 and (piece := reader.read(left)):
            pieces.append(piece)
            left -= len(piece)
    except zstandard.ZstdError:
        pass
    return b"".join(pieces)


class Pieces:
    """A file of the pieces of a stream, each of which is read when it is needed."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int = -1, /) -> bytes:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = piece
        if size < 0:
            size = len(self._rest)
        data, self._rest = self._rest[:size], self._rest[size:]
        return data
