"""Where the zstd frames of a file begin and end, found without unpacking any of them.

A frame is a header and blocks that say how long they are (RFC 8878, sections 3.1.1 and 3.1.1.2), so
one that is cut short, or asks for a window that is too large, is found before anything is read, and
a frame that nobody needs costs a few seeks. Unpacking holds one window and two small buffers.
"""

from __future__ import annotations

import os
import struct
from typing import IO, NamedTuple, cast

from tilusbuild.package.errors import OverLimit, Truncated

MAGIC = struct.pack("<I", 0xFD2FB528)
LARGEST_WINDOW = 1 << 27
"""Bytes. What a decoder takes that was told nothing: `zstd -d` and tar accept 27 bits."""
_MOST_BLOCKS = 1 << 20
_LONGEST_HEADER = 18
_PIECE = 1 << 17
_AHEAD = 4096
_RAW, _RLE, _RESERVED = 0, 1, 3


class Frame(NamedTuple):
    """A frame: where it begins, and its size in bytes, packed."""

    offset: int
    size: int


class Section:
    """The bytes of a file between two offsets, read in order; several may share the file."""

    def __init__(self, handle: int, offset: int, size: int) -> None:
        self._handle, self._at, self._end = handle, offset, offset + size

    def read(self, count: int = -1) -> bytes:
        left = self._end - self._at
        try:
            data = os.pread(self._handle, left if count < 0 else min(count, left), self._at)
        except OSError as error:
            raise Truncated(f"it cannot be read: {error.strerror}") from None
        self._at += len(data)
        return data


class Unpacked:
    """What a frame holds, read in order."""

    def __init__(self, section: Section) -> None:
        import zstandard

        decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
        self._broken = zstandard.ZstdError
        self._stream = decompressor.stream_reader(cast("IO[bytes]", section), read_size=_PIECE)

    def read(self, count: int) -> bytes:
        """At most so many bytes; fewer only at the end. Raises `Truncated`."""
        try:
            data: bytes = self._stream.read(count)
        except self._broken as error:
            raise Truncated(f"its compressed data is damaged: {error}") from None
        return data


def frames(handle: int, size: int, most: int) -> list[Frame]:
    """The frames that a file of `size` bytes consists of. Raises `Truncated` and `OverLimit`."""
    found: list[Frame] = []
    at = blocks = 0
    while at < size:
        if len(found) >= most:
            raise OverLimit(f"it has more than {most} parts")
        end, count = _frame_end(handle, at, size, _MOST_BLOCKS - blocks)
        blocks += count
        found.append(Frame(at, end - at))
        at = end
    return found


def _frame_end(handle: int, at: int, size: int, budget: int) -> tuple[int, int]:
    """Where the frame at `at` ends, and how many blocks it has."""
    import zstandard

    head = os.pread(handle, _LONGEST_HEADER, at)
    try:
        header = zstandard.frame_header_size(head)
        known = zstandard.get_frame_parameters(head)
    except zstandard.ZstdError as error:
        raise Truncated(f"no zstd frame at byte {at}: {error}") from None
    if not head.startswith(MAGIC):
        raise Truncated(f"no zstd frame at byte {at}")
    if known.window_size > LARGEST_WINDOW:
        raise OverLimit(f"it asks for a window of {known.window_size} bytes to unpack it")
    at, blocks, last = at + header, 0, False
    begin, ahead = at, b""
    while not last:
        if not begin <= at <= begin + len(ahead) - 3:
            begin, ahead = at, os.pread(handle, _AHEAD, at)
        start = ahead[at - begin : at - begin + 3]
        blocks += 1
        if len(start) < 3 or blocks > budget:
            raise Truncated("it is cut short") if len(start) < 3 else OverLimit("too many blocks")
        value = int.from_bytes(start, "little")
        last, kind = bool(value & 1), value >> 1 & 3
        if kind == _RESERVED:
            raise Truncated(f"a damaged block at byte {at}")
        at += 3 + (1 if kind == _RLE else value >> 3)
    at += 4 if known.has_checksum else 0
    if at > size:
        raise Truncated("it is cut short")
    return at, blocks
