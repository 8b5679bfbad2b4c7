"""The entries of a tar stream, as strict as our own writer: plain files, and nothing else.

Any other archiver's freedom is refused: links, devices, folders, sparse files, global headers,
numbers that are not octal. Of an extended header (pax) only `path` and `size` are taken, and it is
small. So a header costs 512 bytes of memory, and no field of it decides how much is read at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

from tilusbuild.package.errors import OverLimit, Truncated, UnsafeEntry, UnsafeName
from tilusbuild.package.reader import Item

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_OCTAL = re.compile(rb"[0-7]+")
_PAX_RECORD = re.compile(rb"([1-9][0-9]{0,5}) (path|size)=")
_LONGEST_PAX = 64 << 10
_MOST_PADDING = 1 << 20
_KINDS = {
    b"1": "a hard link",
    b"2": "a link",
    b"3": "a device",
    b"4": "a device",
    b"5": "a folder",
    b"6": "a pipe",
    b"S": "a sparse file",
}


class Stream(Protocol):
    """Something to read in order; fewer bytes than asked for come only at its end."""

    def read(self, count: int, /) -> bytes: ...


def entries(stream: Stream, *, ends: bool) -> Iterator[Item]:
    """The files, to be read one after the other. What is left unread of one is passed over.

    `ends`: the end-of-archive mark must come, and nothing after it; without, it must not come.
    Raises `Truncated`, `UnsafeEntry`, `UnsafeName`, `OverLimit`.
    """
    while header := stream.read(_BLOCK):
        if header == _ZEROS:
            if not ends:
                raise Truncated("the archive ends before its last part")
            _check_end(stream)
            return
        extended: dict[bytes, bytes] = {}
        if _kind(header) == b"x":
            extended = _pax(_exactly(stream, _padded(_size(header, _LONGEST_PAX))), header)
            header = _exactly(stream, _BLOCK)
        yield from _file(stream, header, extended)
    if ends:
        raise Truncated("the archive has no end")


def _file(stream: Stream, header: bytes, extended: dict[bytes, bytes]) -> Iterator[Item]:
    kind = _kind(header)
    name = _name(extended.get(b"path") or _full_name(header))
    if kind not in (b"0", b"\0"):
        what = _KINDS.get(kind, f"an entry of type {kind!r}")
        raise UnsafeEntry(f"{name!r:.200} is {what}, not a plain file")
    size = int(extended[b"size"]) if b"size" in extended else _size(header)
    left = size

    def read(count: int) -> bytes:
        nonlocal left
        data = _exactly(stream, min(count, left)) if left else b""
        left -= len(data)
        return data

    yield Item(name, size, read)
    while left:
        read(_BLOCK * 256)
    if any(_exactly(stream, -size % _BLOCK)):
        raise Truncated(f"{name!r:.200} is followed by bytes that belong to no file")


def _exactly(stream: Stream, count: int) -> bytes:
    data = stream.read(count) if count else b""
    if len(data) < count:
        raise Truncated("the archive is cut short")
    return data


def _check_end(stream: Stream) -> None:
    left = _MOST_PADDING
    second = _exactly(stream, _BLOCK)
    while piece := second or stream.read(_BLOCK):
        second = b""
        left -= len(piece)
        if left < 0 or any(piece):
            raise Truncated("bytes after the end of the archive")


def _kind(header: bytes) -> bytes:
    if len(header) < _BLOCK:
        raise Truncated("the archive is cut short")
    claimed = _number(header[148:156])
    if claimed != sum(header[:148]) + 8 * 0x20 + sum(header[156:]):
        raise Truncated("the archive is damaged: a header has another checksum")
    return header[156:157]


def _size(header: bytes, most: int | None = None) -> int:
    size = _number(header[124:136])
    if most is not None and size > most:
        raise OverLimit(f"an extended header of {size} bytes")
    return size


def _number(field: bytes) -> int:
    digits = field.strip(b" \0")
    if not _OCTAL.fullmatch(digits):
        raise Truncated("the archive is damaged: a header's number is none")
    return int(digits, 8)


def _padded(size: int) -> int:
    return size + -size % _BLOCK


def _full_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _name(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise UnsafeName(f"{raw!r:.200} is no UTF-8") from None


def _pax(data: bytes, header: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    data = data[: _size(header)]
    at = 0
    while at < len(data):
        record = _PAX_RECORD.match(data, at)
        if record is None:
            raise Truncated("an extended header holds something else than a path or a size")
        end = at + int(record[1])
        value = data[record.end() : end - 1]
        whole = record.end() < end <= len(data) and data[end - 1 : end] == b"\n"
        if not whole or record[2] in found or (record[2] == b"size" and not _decimal(value)):
            raise Truncated("an extended header is damaged")
        found[record[2]] = value
        at = end
    return found


def _decimal(value: bytes) -> bool:
    return value.isdigit() and len(value) < 16
