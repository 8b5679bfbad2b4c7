"""A package as a `.tar.zst`: one tar in concatenated zstd frames, which plain `tar` reads.

The list and the attestations come first, so that a reader knows everything before it unpacks
anything; then comes a frame for each layer; the last frame has the end of the tar. Equal contents
give equal bytes, whatever the number of cores; only the version of the zstd library shows.

Decompressing holds one window and two small buffers in memory, and no frame may ask for a larger
window. A header must be the bytes that `_make_header` returns for its name, size and time: links,
devices and all else that other archivers write are refused, and nothing can be hidden in it.
"""

from __future__ import annotations

import os
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import BinaryIO

from tilusbuild.package import names
from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import (
    damaged,
    no_package,
    over_limit,
    unlisted,
    unreadable,
    unsafe_entry,
)
from tilusbuild.package.formats import PackageFormat
from tilusbuild.package.formats.directory import open_plain, sync_public_file
from tilusbuild.package.listing import MAX_LIST_SIZE, split_layers
from tilusbuild.package.model import MAX_ATTESTATION_SIZE, READ_SIZE, ContainerFile, choose_mode

MAGIC = struct.pack("<I", 0xFD2FB528)
MAX_WINDOW_LOG = 27
"""The default limit of decoders: `zstd -d` and tar accept windows of 2**27 bytes."""
_STEP = 256
"""Bytes to unpack at a time: they make 8 MiB at most, since a block of 4 makes 128 KiB."""

Read = Callable[[int], bytes]
"""Return the next bytes, at most so many, and fewer only at the end."""


def open_frames(file: BinaryIO) -> Read:
    """Return a function that reads the content of zstd frames, and raises `PackageError`."""
    pieces, unread = _decompress_frames(file), bytearray()

    def read(count: int) -> bytes:
        """Return the next `count` bytes, fewer only at the end of the last frame."""
        while len(unread) < count:
            piece = next(pieces, None)
            if piece is None:
                break
            unread.extend(piece)
        content = bytes(unread[:count])
        del unread[:count]
        return content

    return read


def _decompress_frames(file: BinaryIO) -> Iterator[bytes]:
    """Yield the content of a file of zstd frames, in pieces. Raises `PackageError`."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << MAX_WINDOW_LOG)
    try:
        start = file.read(_STEP)
        while start:
            # zstandard takes skippable frames too, in which anything can hide.
            start += file.read(max(0, len(MAGIC) - len(start)))
            if not start.startswith(MAGIC):
                raise damaged("between its zstd frames is something else")
            frame = decompressor.decompressobj()
            yield frame.decompress(start)
            while not frame.eof:
                packed = file.read(_STEP)
                if not packed:
                    raise damaged("it is truncated")
                yield frame.decompress(packed)
            # Bytes that were read past the end of a frame begin the next one.
            start = frame.unused_data or file.read(_STEP)
    except zstandard.ZstdError as error:
        raise damaged(f"it cannot be unpacked: {error}") from None
    except OSError as error:
        raise unreadable(f"it cannot be read: {error.strerror}") from None


# Tar.


BLOCK = 512
"""Bytes of a header. A content is followed by `-size % BLOCK` bytes, up to a whole block."""
_MAX_PAX_SIZE = 64 << 10  # an extended header is held in memory
_MAX_PADDING = 1 << 20


def read_entries(read: Read) -> Iterator[ContainerFile]:
    """Yield the files of a tar, to be read one after the other; the unread rest of a file is
    skipped. Raises `PackageError`, also if the end-of-archive mark is missing or bytes other than
    zeros follow it."""
    # A block of zeros is the first half of the mark.
    while any(header := _read_exactly(read, BLOCK)):
        info = _parse_header(header, read)
        remaining = info.size

        def pieces() -> Iterator[bytes]:
            nonlocal remaining
            while remaining:
                piece = _read_exactly(read, min(READ_SIZE, remaining))
                remaining -= len(piece)
                yield piece

        yield ContainerFile(info.name, info.size, pieces())
        # A reader may leave a file unread, or stop within it: the next header comes after its end.
        for _ in pieces():
            pass
        # Bytes in the padding are in no file and no digest: a place to hide something in.
        if any(_read_exactly(read, -info.size % BLOCK)):
            raise damaged(f"{info.name!r:.200} is followed by bytes that belong to no file")
    # GNU tar pads to a record of 10 KiB. Zeros compress a thousand times and more: padding without
    # end would keep a reader busy for as long as its maker likes.
    mark_and_padding = _read_exactly(read, BLOCK) + read(_MAX_PADDING)
    if any(mark_and_padding) or read(1):
        raise damaged("bytes after the end of the archive")


def _parse_header(header: bytes, read: Read) -> tarfile.TarInfo:
    """Parse a header; for an extended one, read on to the header that follows. Raises
    `PackageError` unless it has the bytes that `_make_header` writes."""
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        if info.type == tarfile.XHDTYPE:
            if not 0 <= info.size <= _MAX_PAX_SIZE:
                raise over_limit(f"an extended header of {info.size} bytes")
            extended = _read_exactly(read, info.size + -info.size % BLOCK)
            file_header = _read_exactly(read, BLOCK)
            header += extended + file_header
            info = tarfile.TarInfo.frombuf(file_header, "utf-8", "strict")
            # A packer of ours writes one record, the name's: the comparison below sees any other.
            info.name = extended.partition(b"=")[2].partition(b"\n")[0].decode()
    except (tarfile.HeaderError, ValueError) as error:
        raise damaged(f"the archive is corrupt: {error}") from None
    if info.type != tarfile.REGTYPE:
        raise unsafe_entry(
            f"{info.name!r:.200} is an entry of type {info.type!r}, not a plain file"
        )
    # Every other field is a place to hide something in, or one that extractors read differently.
    if header != _make_header(info.name, info.size, int(info.mtime)):
        raise damaged(f"{info.name!r:.200} has a header that no packer writes")
    return info


def _read_exactly(read: Read, count: int) -> bytes:
    data = read(count)
    if len(data) < count:
        raise damaged("the archive is truncated")
    return data


# The package.


LEVEL = 19
_END = bytes(2 * BLOCK)
"""The mark at the end of a tar."""

TarFile = tuple[str, int, Callable[[], bytes]]
"""A name, its size in bytes, and a function that reads it."""


# Writing.


def write_archive(contents: Contents, path: str, *, time: int) -> None:
    """Write the archive to a new file. `time` is that of every entry, in seconds since 1970. Raises
    `PackageError`, `OSError`."""
    with open(path, "xb") as out:
        heads = {names.LIST: contents.encoded, **dict(sorted(contents.beside.items()))}
        first = [(name, len(data), partial(bytes, data)) for name, data in heads.items()]
        write_frame(out, first, time=time, end=False)
        for paths in split_layers(contents.listed).values():
            write_layer(contents, paths, out, time=time, end=False)
        write_frame(out, (), time=time, end=True)
        sync_public_file(out)


def write_layer(
    contents: Contents, paths: Iterable[str], out: BinaryIO, *, time: int, end: bool
) -> None:
    """Write the files `paths` as one zstd frame. With `end`, the frame is a whole tar. Raises
    `PackageError`, `OSError`."""
    files = contents.listed.files
    members = [(name, files[name].size, partial(contents.read_listed, name)) for name in paths]
    write_frame(out, members, time=time, end=end)


def write_frame(out: BinaryIO, files: Iterable[TarFile], *, time: int, end: bool) -> None:
    """Write one zstd frame with these files as tar entries, in this order. `time` is in seconds
    since 1970. With `end`, the mark that ends a tar follows. Raises `OSError` and the errors of the
    readers."""
    import zstandard

    entries = [(_make_header(name, size, time), size, read) for name, size, read in files]
    mark = _END if end else b""
    total = sum(len(header) + size + -size % BLOCK for header, size, _ in entries) + len(mark)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL,
        source_size=total,
        window_log=MAX_WINDOW_LOG,
        enable_ldm=True,
        write_content_size=True,
        write_checksum=True,
        # One thread: with several, how the input is cut, and so the bytes, depend on their number.
        threads=0,
    )
    # Not the library's own writer: left by an error, it raises another for the missing bytes.
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=total)
    for header, size, read in entries:
        padding = bytes(-size % BLOCK)
        out.writelines(frame.compress(data) for data in (header, read(), padding))
    out.write(frame.compress(mark))
    out.write(frame.flush())


def _make_header(name: str, size: int, time: int) -> bytes:
    """Return the tar header of a file: ustar, or pax for a name that ustar cannot hold."""
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, time, choose_mode(name)
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
    except (ValueError, UnicodeEncodeError):
        # A long or non-ASCII name: ustar has no place for it.
        return info.tobuf(tarfile.PAX_FORMAT, "ascii", "strict")


# Reading.


class ArchiveReader:
    """Reads the package in the file at `path`. Raises `PackageError`."""

    kind = "archive"

    def __init__(self, path: str) -> None:
        """Open the file, and read the list and the attestations."""
        self._file = os.fdopen(open_plain(path, os.path.basename(path)), "rb")
        self.packed: int | None = os.fstat(self._file.fileno()).st_size
        self._head: dict[str, bytes] = {}
        try:
            self._read_head()
        except BaseException:
            self.close()
            raise

    def list_bytes(self) -> bytes:
        return self._head[names.LIST]

    def attestations(self) -> dict[str, bytes]:
        return {name: data for name, data in self._head.items() if name != names.LIST}

    def stream(self) -> Iterator[ContainerFile]:
        yield from islice(self._read_files(), len(self._head), None)

    def close(self) -> None:
        self._file.close()

    def _read_files(self) -> Iterator[ContainerFile]:
        self._file.seek(0)
        return read_entries(open_frames(self._file))

    def _read_head(self) -> None:
        """Read the list and the attestations into `_head`, and no further file. Raises
        `PackageError` if the list is not the first file."""
        for item in self._read_files():
            if not self._head and item.path != names.LIST:
                raise no_package(f"its first file is {item.path!r:.100}, not {names.LIST}")
            if self._head and item.path not in names.BESIDE:
                return
            if item.path in self._head:
                raise unlisted(f"{item.path} appears twice")
            limit = MAX_ATTESTATION_SIZE if self._head else MAX_LIST_SIZE
            self._head[item.path] = item.read_content(limit)
        if not self._head:
            raise no_package(f"it does not begin with {names.LIST}")


FORMAT = PackageFormat(
    title="a .tar.zst",
    file_name=lambda stem, _: f"{stem}.tar.zst",
    write=write_archive,
    recognize=lambda _, start: start == MAGIC,
    read=ArchiveReader,
)
