"""An entry of a cache as one file: the unit in which a remote cache holds programs and headers.

The file is one zstd frame. Its first line is JSON: the names and sizes of the files, in the order
in which their contents follow. So every limit is checked before anything is unpacked. Equal entries
give equal bytes; only the version of the zstd library shows. The names are not checked here
(`cache.checks`), and no file is written under its name. Price: an entry of which one byte differs
is sent whole.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping
from itertools import count
from typing import IO, Annotated

from msgspec import DecodeError, Meta, Struct, json

from tilusbuild.state.files import sha256_text

# Of the files in a remote cache. Another format is under other keys, and older clients miss.
FORMAT = 3
# Bytes of an entry, packed or unpacked.
MAX_BYTES = 1 << 30
MAX_FILES = 10_000
MAX_SECONDS = 1e6
# Bytes of the first line: 10,000 names of 400 bytes.
_MAX_HEAD = 4 << 20
# Bytes of an entry's files that are held in memory; the others are written to the disk.
_MAX_HELD = 1 << 20
# Bytes that a decoder may allocate. A frame of level 3 asks for 2 MiB at most.
_MAX_WINDOW = 4 << 20
# zstd's default.
_LEVEL = 3
_PIECE = 1 << 20


class ArchiveError(ValueError):
    """An archive, or an entry to be packed, that is malformed or too large."""


class _Head(Struct, forbid_unknown_fields=True):
    """The first line of an archive."""

    files: Annotated[
        dict[str, Annotated[int, Meta(ge=0, le=MAX_BYTES)]], Meta(max_length=MAX_FILES)
    ]
    """The size of each file by its name."""
    seconds: Annotated[float, Meta(ge=0, lt=MAX_SECONDS)] = 0.0
    """The seconds that the program's compile took, which no file of an entry has."""


# Made here: msgspec ends the process where two threads meet a type for the first time.
_HEAD = json.Decoder(_Head)


class Archive(Struct, frozen=True):
    """An unpacked entry."""

    files: Mapping[str, bytes | str]
    """The content of each file by its name, or the path of the file that has it."""
    seconds: float
    """The seconds that the program's compile took."""


def program_key(program: str) -> str:
    """Return the key of a program's entry."""
    return f"tilusbuild program {FORMAT} {program}"


def include_key(digest: str) -> str:
    """Return the key of an include directory."""
    return f"tilusbuild include {FORMAT} {digest}"


def key_digest(key: str) -> str:
    """Return the name of a key's file in a directory or on a web server."""
    return sha256_text(key)


def pack_entry(files: Mapping[str, bytes], seconds: float = 0.0) -> bytes:
    """Return the archive of an entry. Raises `ArchiveError` for one that no reader accepts."""
    from zstandard import ZstdCompressor

    sizes = {name: len(files[name]) for name in sorted(files)}
    if sum(sizes.values()) > MAX_BYTES or len(sizes) > MAX_FILES:
        raise ArchiveError(f"it has more than {MAX_BYTES >> 20} MiB or {MAX_FILES} files")
    # - 1: a reader accepts only a number below `MAX_SECONDS`.
    head = json.encode(_Head(sizes, min(seconds, MAX_SECONDS - 1)))
    content = b"".join((head, b"\n", *(files[name] for name in sizes)))
    return ZstdCompressor(level=_LEVEL, write_checksum=True).compress(content)


class Unpacker:
    """Unpacks archives; large files are written to a private directory. May be used from several
    threads."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._numbers = count()

    def unpack_entry(self, pieces: Iterable[bytes]) -> Archive:
        """Return the entry in an archive, which comes in pieces. Raises `ArchiveError` and
        `OSError`."""
        from zstandard import ZstdDecompressor, ZstdError

        decoder = ZstdDecompressor(max_window_size=_MAX_WINDOW)
        try:
            with decoder.stream_reader(_Source(pieces)) as content:  # type: ignore[arg-type]
                return self._read_entry(io.BufferedReader(content, _PIECE))
        except ZstdError as error:
            raise ArchiveError(f"it cannot be unpacked: {error!s:.200}") from None

    def _read_entry(self, content: IO[bytes]) -> Archive:
        """Return the entry in the unpacked bytes of an archive. The first `_MAX_HELD` bytes of its
        files stay in memory; later files are written. Raises `ArchiveError`, `OSError`."""
        line = content.readline(_MAX_HEAD)
        try:
            head = _HEAD.decode(line)
        except (DecodeError, RecursionError) as error:
            raise ArchiveError(f"its first line cannot be read: {error!s:.200}") from None
        if sum(head.files.values()) > MAX_BYTES:
            raise ArchiveError(f"it has more than {MAX_BYTES >> 20} MiB")
        files: dict[str, bytes | str] = {}
        total_size = 0
        for name, size in head.files.items():
            total_size += size
            # An empty file stays in memory, too: it cannot be mapped.
            if total_size <= _MAX_HELD or size == 0:
                files[name] = _read_bytes(content, size)
            else:
                files[name] = self._write_file(content, size)
        if content.read(1):
            raise ArchiveError("it has more bytes than its first line says")
        return Archive(files, head.seconds)

    def _write_file(self, content: IO[bytes], size: int) -> str:
        """Write the next bytes of an archive to a file; return its path."""
        # The name is a number, and never that in the archive: the archive's writer chose that one.
        path = os.path.join(self._directory, str(next(self._numbers)))
        with open(path, "xb") as file:
            while size:
                size -= file.write(_read_bytes(content, min(size, _PIECE)))
        return path


def _read_bytes(content: IO[bytes], size: int) -> bytes:
    data = content.read(size)
    if len(data) < size:
        raise ArchiveError("it is truncated")
    return data


class _Source:
    """A file of pieces that come one after the other, for a decoder."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest_of_piece = memoryview(b"")
        self._received_bytes = 0

    def read(self, size: int) -> memoryview:
        """Return the next bytes, `size` at most; none at the end. Raises `ArchiveError` for pieces
        of more than `MAX_BYTES` in all."""
        while not self._rest_of_piece:  # a piece may be empty
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._rest_of_piece = memoryview(piece)
            self._received_bytes += len(piece)
            if self._received_bytes > MAX_BYTES:
                raise ArchiveError(f"it has more than {MAX_BYTES >> 20} MiB")
        data = self._rest_of_piece[:size]
        self._rest_of_piece = self._rest_of_piece[size:]
        return data
