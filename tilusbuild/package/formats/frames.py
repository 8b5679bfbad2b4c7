"""Where the zstd frames of a file begin and end, found without decompressing any of them.

A frame is a header and blocks that say how long they are (RFC 8878, sections 3.1.1 and 3.1.1.2), so
a frame that is truncated, or asks for a window that is too large, is detected before anything is
read, and a frame that nobody needs costs a few seeks. Decompressing holds one window and two small
buffers in memory.
"""

from __future__ import annotations

import os
import struct
from typing import IO, NamedTuple, cast

from tilusbuild.package.errors import OverLimitError, TruncatedError

MAGIC = struct.pack("<I", 0xFD2FB528)
MAX_WINDOW_LOG = 27
"""What a decoder takes by default: `zstd -d` and tar accept windows of 2**27 bytes."""
_MAX_WINDOW = 1 << MAX_WINDOW_LOG
_MAX_BLOCKS = 1 << 20
_MAX_HEADER_SIZE = 18
_READ_SIZE = 1 << 17
_AHEAD = 4096
"""Bytes to read at a time while walking from block to block."""
_RAW, _RLE, _RESERVED = 0, 1, 3


class Frame(NamedTuple):
    """A frame: its offset in the file, and its compressed size in bytes."""

    offset: int
    size: int


class Section:
    """The bytes of a file between two offsets, read in order. Several sections may share the file:
    each keeps its own position."""

    def __init__(self, handle: int, offset: int, size: int) -> None:
        self._handle, self._at, self._end = handle, offset, offset + size

    def read(self, count: int = -1) -> bytes:
        left = self._end - self._at
        try:
            data = os.pread(self._handle, left if count < 0 else min(count, left), self._at)
        except OSError as error:
            raise TruncatedError(f"it cannot be read: {error.strerror}") from None
        self._at += len(data)
        return data


class Unpacked:
    """The content of a frame, read in order."""

    def __init__(self, section: Section) -> None:
        import zstandard

        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        self._broken = zstandard.ZstdError
        self._stream = decompressor.stream_reader(cast("IO[bytes]", section), read_size=_READ_SIZE)

    def read(self, count: int) -> bytes:
        """Return at most `count` bytes; fewer only at the end. Raises `TruncatedError`."""
        try:
            data: bytes = self._stream.read(count)
        except self._broken as error:
            raise TruncatedError(f"its compressed data is damaged: {error}") from None
        return data


def frames(handle: int, size: int, limit: int) -> list[Frame]:
    """Return the frames that a file of `size` bytes consists of, at most `limit`. Raises
    `TruncatedError` and `OverLimitError`."""
    found: list[Frame] = []
    at = blocks = 0
    while at < size:
        # A frame without content takes nine bytes: a small file could make a very long list.
        if len(found) >= limit:
            raise OverLimitError(f"it has more than {limit} parts")
        end, count = _frame_end(handle, at, size, _MAX_BLOCKS - blocks)
        blocks += count
        found.append(Frame(at, end - at))
        at = end
    return found


def _frame_end(handle: int, at: int, size: int, budget: int) -> tuple[int, int]:
    """Return where the frame at `at` ends, and how many blocks it has; `budget` are allowed."""
    import zstandard

    head = os.pread(handle, _MAX_HEADER_SIZE, at)
    try:
        header = zstandard.frame_header_size(head)
        known = zstandard.get_frame_parameters(head)
    except zstandard.ZstdError as error:
        raise TruncatedError(f"no zstd frame at byte {at}: {error}") from None
    # zstandard takes skippable frames too, in which anything can hide.
    if not head.startswith(MAGIC):
        raise TruncatedError(f"no zstd frame at byte {at}")
    # The window is allocated before a byte of content is seen: a header may ask for terabytes.
    if known.window_size > _MAX_WINDOW:
        raise OverLimitError(f"it asks for a window of {known.window_size} bytes to unpack it")
    at, blocks, last = at + header, 0, False
    begin, ahead = at, b""
    while not last:
        if not begin <= at <= begin + len(ahead) - 3:
            begin, ahead = at, os.pread(handle, _AHEAD, at)
        start = ahead[at - begin : at - begin + 3]
        blocks += 1
        # Empty blocks take three bytes each, and are walked one by one: their number is bounded.
        if len(start) < 3 or blocks > budget:
            raise (
                TruncatedError("it is truncated")
                if len(start) < 3
                else OverLimitError("too many blocks")
            )
        value = int.from_bytes(start, "little")
        last, kind = bool(value & 1), value >> 1 & 3
        if kind == _RESERVED:
            raise TruncatedError(f"a damaged block at byte {at}")
        at += 3 + (1 if kind == _RLE else value >> 3)
    at += 4 if known.has_checksum else 0
    if at > size:
        raise TruncatedError("it is truncated")
    return at, blocks
