"""A zip file that can be read in one way only.

Zip says every fact twice, in an entry's own header and in the directory at the end, and readers
differ in which they believe; between entries, behind their data and in extra fields there is room
for what only some of them see. So the two must agree in every field, entries must follow each other
without a gap from the first byte to the directory, an entry's data must end where it says and be
what its size and CRC say, and nothing may be in extra fields but the sizes of large files. That is
how zip files of tilusbuild are written. An entry is read in pieces: no more memory is taken than is
asked for.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import IO

from tilusbuild.package.errors import TruncatedError

_HEADER = struct.Struct("<4s5H3L2H")
_LARGE = 0xFFFFFFFF
_UTF8 = 0x800
"""The one flag that an entry may have: its name is not ASCII."""
_PIECE = 1 << 16


def check_headers(file: IO[bytes], infos: Sequence[zipfile.ZipInfo], directory: int) -> None:
    """Compare the header of each entry with the directory, which begins at `directory`; `infos` are
    in the order of their bytes. Raises `TruncatedError`."""
    end = 0
    for info in infos:
        name = f"{info.orig_filename!r:.200}"
        if info.header_offset != end:
            raise TruncatedError(f"{name}: bytes that belong to no entry stand before it")
        file.seek(end)
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            raise TruncatedError(f"{name} has no header")
        *_, name_size, extra_size = _HEADER.unpack(head)
        rest = file.read(name_size + extra_size)
        if not _agrees(info, head, rest[:name_size], rest[name_size:]):
            raise TruncatedError(f"{name}: its header and the directory disagree")
        end += _HEADER.size + name_size + extra_size + info.compress_size
    if end != directory:
        raise TruncatedError("bytes that belong to no entry stand before the zip's directory")


def _agrees(info: zipfile.ZipInfo, head: bytes, name: bytes, extra: bytes) -> bool:
    magic, _, flags, method, time, date, crc, packed, size, *_ = _HEADER.unpack(head)
    sizes, wanted = (packed, size), (info.compress_size, info.file_size)
    if len(extra) == 20 and extra.startswith(b"\1\0\20\0") and sizes == (_LARGE, _LARGE):
        size, packed = struct.unpack_from("<QQ", extra, 4)
        sizes, extra = (packed, size), b""
    year, month, day, hour, minute, second = info.date_time
    own_date = (year - 1980) << 9 | month << 5 | day
    own_time = hour << 11 | minute << 5 | second // 2
    return (
        magic == b"PK\3\4"
        and not extra
        and _is_large_only(info.extra)
        and not info.comment
        and flags == info.flag_bits
        and flags in (0, _UTF8)
        and (method, crc) == (info.compress_type, info.CRC)
        and (date, time) == (own_date, own_time)
        and sizes == wanted
        and name == info.orig_filename.encode("utf-8" if flags else "ascii", "replace")
    )


def _is_large_only(extra: bytes) -> bool:
    """Return whether a directory's extra field holds sizes of a large file alone, or nothing."""
    if len(extra) < 4:
        return not extra
    return struct.unpack("<2H", extra[:4]) == (1, len(extra) - 4)


def open_entry(file: IO[bytes], info: zipfile.ZipInfo) -> Callable[[int], bytes]:
    """Return what reads an entry whose header was checked: a function from a number of bytes to at
    most so many, none at the end. It raises `TruncatedError` as soon as the data is not all of what
    the sizes and the CRC say, `zlib.error` and `OSError`."""
    return _Content(file, info).read


class _Content:
    def __init__(self, file: IO[bytes], info: zipfile.ZipInfo) -> None:
        self._file = file
        self._info = info
        self._at = info.header_offset + _HEADER.size
        file.seek(info.header_offset + _HEADER.size - 4)
        self._at += sum(struct.unpack("<2H", file.read(4)))
        self._packed = info.compress_size
        self._left = info.file_size
        self._crc = 0
        deflated = info.compress_type == zipfile.ZIP_DEFLATED
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS) if deflated else None
        self._rest = b""
        self._checked = False

    def read(self, count: int) -> bytes:
        if not self._left:
            self._check_end()
            return b""
        data = self._next(max(1, min(count, self._left)))
        self._left -= len(data)
        self._crc = zlib.crc32(data, self._crc)
        if not self._left:
            self._check_end()
        return data

    def _next(self, count: int) -> bytes:
        if self._inflate is None:
            return self._raw(count) or self._cut()
        while not self._inflate.eof:
            if not self._rest:
                self._rest = self._raw(_PIECE)
            data = self._inflate.decompress(self._rest, count)
            is_stuck = not self._rest and not self._packed and not data
            self._rest = self._inflate.unconsumed_tail
            if data:
                return data
            if is_stuck:
                break
        return self._cut()

    def _raw(self, count: int) -> bytes:
        count = min(count, self._packed)
        self._file.seek(self._at)
        data = self._file.read(count)
        if len(data) < count:
            self._cut()
        self._at += count
        self._packed -= count
        return data

    def _cut(self) -> bytes:
        raise TruncatedError(f"{self._info.orig_filename!r:.200} holds less than it says")

    def _check_end(self) -> None:
        """Raise for data behind what the size says, or of another CRC."""
        if self._checked:
            return
        self._checked = True
        name = f"{self._info.orig_filename!r:.200}"
        if self._inflate is not None:
            while not self._inflate.eof and (self._rest or self._packed):
                self._rest = self._rest or self._raw(_PIECE)
                if self._inflate.decompress(self._rest, 1):
                    raise TruncatedError(f"{name} holds more than it says")
                self._rest = self._inflate.unconsumed_tail
            if not self._inflate.eof:
                self._cut()
            self._rest = self._inflate.unused_data
        if self._rest or self._packed:
            raise TruncatedError(f"{name}: bytes follow its data")
        if self._crc != self._info.CRC:
            raise TruncatedError(f"{name} is not what its CRC says")
