"""The entries of a tar stream, as strict as our own writer: plain files, and nothing else.

Any other archiver's freedom is refused: links, devices, directories, sparse files, global headers,
numbers that are not octal. Of an extended header (pax) only `path` and `size` are taken, and it is
small. So a header costs 512 bytes of memory, and no field of it decides how much is read at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

from tilusbuild.package.errors import (
    OverLimitError,
    TruncatedError,
    UnsafeEntryError,
    UnsafeNameError,
)
from tilusbuild.package.model import Item

BLOCK = 512
_ZEROS = bytes(BLOCK)
_OCTAL = re.compile(rb"[0-7]+")
_PAX_RECORD = re.compile(rb"([1-9][0-9]{0,5}) (path|size)=")
_MAX_PAX_SIZE = 64 << 10  # an extended header is held in memory
_MAX_PADDING = 1 << 20
_KINDS = {
    b"1": "a hard link",
    b"2": "a link",
    b"3": "a device",
    b"4": "a device",
    b"5": "a directory",
    b"6": "a pipe",
    b"S": "a sparse file",
}


class ByteStream(Protocol):
    """A source that is read in order; it gives fewer bytes than asked for only at its end."""

    def read(self, count: int, /) -> bytes: ...


def entries(stream: ByteStream, *, ends: bool) -> Iterator[Item]:
    """Yield the files, to be read one after the other. What is left unread of one is skipped.

    `ends`: the end-of-archive mark must come, and nothing after it; without, it must not come.
    Raises `TruncatedError`, `UnsafeEntryError`, `UnsafeNameError`, `OverLimitError`.
    """
    while header := stream.read(BLOCK):
        if header == _ZEROS:
            if not ends:
                raise TruncatedError("the archive ends before its last part")
            _check_end(stream)
            return
        extended: dict[bytes, bytes] = {}
        if _kind(header) == b"x":
            # The header that follows is the file's: two extended headers in a row are refused
            # there.
            extended = _pax(_exactly(stream, _padded(_size(header, _MAX_PAX_SIZE))), header)
            header = _exactly(stream, BLOCK)
        yield from _file(stream, header, extended)
    if ends:
        raise TruncatedError("the archive has no end")


def _file(stream: ByteStream, header: bytes, extended: dict[bytes, bytes]) -> Iterator[Item]:
    kind = _kind(header)
    name = _name(extended.get(b"path") or _full_name(header))
    if kind not in (b"0", b"\0"):
        what = _KINDS.get(kind, f"an entry of type {kind!r}")
        raise UnsafeEntryError(f"{name!r:.200} is {what}, not a plain file")
    size = int(extended[b"size"]) if b"size" in extended else _size(header)
    left = size

    def read(count: int) -> bytes:
        nonlocal left
        data = _exactly(stream, min(count, left)) if left else b""
        left -= len(data)
        return data

    yield Item(name, size, read)
    while left:
        read(BLOCK * 256)
    # Bytes in the padding are in no file and no digest: a place to hide something in.
    if any(_exactly(stream, -size % BLOCK)):
        raise TruncatedError(f"{name!r:.200} is followed by bytes that belong to no file")


def _exactly(stream: ByteStream, count: int) -> bytes:
    data = stream.read(count) if count else b""
    if len(data) < count:
        raise TruncatedError("the archive is truncated")
    return data


def _check_end(stream: ByteStream) -> None:
    # GNU tar pads to a record of 10 KiB. Zeros compress a thousand times and more: padding without
    # end would keep a reader busy for as long as its maker likes.
    left = _MAX_PADDING
    second = _exactly(stream, BLOCK)
    while piece := second or stream.read(BLOCK):
        second = b""
        left -= len(piece)
        if left < 0 or any(piece):
            raise TruncatedError("bytes after the end of the archive")


def _kind(header: bytes) -> bytes:
    if len(header) < BLOCK:
        raise TruncatedError("the archive is truncated")
    claimed = _number(header[148:156])
    if claimed != sum(header[:148]) + 8 * 0x20 + sum(header[156:]):
        raise TruncatedError("the archive is damaged: a header has another checksum")
    return header[156:157]


def _size(header: bytes, limit: int | None = None) -> int:
    size = _number(header[124:136])
    if limit is not None and size > limit:
        raise OverLimitError(f"an extended header of {size} bytes")
    return size


def _number(field: bytes) -> int:
    digits = field.strip(b" \0")
    if not _OCTAL.fullmatch(digits):
        raise TruncatedError("the archive is damaged: a number in a header is not octal")
    return int(digits, 8)


def _padded(size: int) -> int:
    return size + -size % BLOCK


def _full_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _name(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise UnsafeNameError(f"{raw!r:.200} is not UTF-8") from None


def _pax(data: bytes, header: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    data = data[: _size(header)]
    at = 0
    while at < len(data):
        record = _PAX_RECORD.match(data, at)
        if record is None:
            raise TruncatedError("an extended header holds something else than a path or a size")
        end = at + int(record[1])
        value = data[record.end() : end - 1]
        # A record that counts itself shorter or longer than it is would be read as two names.
        whole = record.end() < end <= len(data) and data[end - 1 : end] == b"\n"
        if not whole or record[2] in found or (record[2] == b"size" and not _decimal(value)):
            raise TruncatedError("an extended header is damaged")
        found[record[2]] = value
        at = end
    return found


def _decimal(value: bytes) -> bool:
    return value.isdigit() and len(value) < 16
