"""A package as a `.tar.zst`: one tar in concatenated zstd frames, which plain `tar` reads.

The first frame has the list and the attestations, so that a reader knows everything before it
unpacks anything; then comes a frame for each layer; the last frame has the end of the tar. Equal
contents give equal bytes, whatever the number of cores; only the version of the zstd library shows.

A frame is a header and blocks that say how long they are (RFC 8878, sections 3.1.1 and 3.1.1.2), so
a frame that is truncated, or asks for a window that is too large, is detected before anything is
decompressed, and a frame that is not needed costs a few seeks. Decompressing holds one window and
two small buffers in memory. Of a tar, any other archiver's freedom is refused: links, devices,
directories, sparse files, global headers, numbers that are not octal. Of an extended header (pax)
only `path` and `size` are taken, and it is small.
"""

from __future__ import annotations

import os
import re
import struct
import tarfile
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from typing import IO, BinaryIO, NamedTuple, cast

from tilusbuild.package import names
from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import (
    no_package,
    over_limit,
    truncated,
    unlisted,
    unsafe_entry,
    unsafe_name,
)
from tilusbuild.package.formats.directory import finish, open_plain
from tilusbuild.package.listing import MAX_LIST_SIZE, layers
from tilusbuild.package.model import MAX_ATTESTATION_SIZE, READ_SIZE, ContainerFile, mode_of

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


Read = Callable[[int], bytes]
"""Return the next bytes, at most so many, and fewer only at the end."""


class _Section:
    """The bytes of a file between two offsets, read in order: what follows a frame is not its."""

    def __init__(self, handle: int, offset: int, size: int) -> None:
        self._handle, self._at, self._end = handle, offset, offset + size

    def read(self, count: int) -> bytes:
        data = os.pread(self._handle, min(count, self._end - self._at), self._at)
        self._at += len(data)
        return data


def unpacked(handle: int, frame: Frame) -> Read:
    """Return what reads the content of a frame. It raises `PackageError`."""
    import zstandard

    section = cast("IO[bytes]", _Section(handle, *frame))
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    stream = decompressor.stream_reader(section, read_size=_READ_SIZE)

    def read(count: int) -> bytes:
        try:
            data: bytes = stream.read(count)
        except zstandard.ZstdError as error:
            raise truncated(f"its compressed data is corrupt: {error}") from None
        except OSError as error:
            raise truncated(f"it cannot be read: {error.strerror}") from None
        return data

    return read


def frames(handle: int, size: int, limit: int) -> list[Frame]:
    """Return the frames of a file of `size` bytes, at most `limit`. Raises `PackageError`."""
    found: list[Frame] = []
    at = blocks = 0
    while at < size:
        # A frame without content takes nine bytes: a small file could make a very long list.
        if len(found) >= limit:
            raise over_limit(f"it has more than {limit} parts")
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
        raise truncated(f"no zstd frame at byte {at}: {error}") from None
    # zstandard takes skippable frames too, in which anything can hide.
    if not head.startswith(MAGIC):
        raise truncated(f"no zstd frame at byte {at}")
    # The window is allocated before a byte of content is seen: a header may ask for terabytes.
    if known.window_size > _MAX_WINDOW:
        raise over_limit(f"it asks for a window of {known.window_size} bytes to unpack it")
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
                truncated("it is truncated") if len(start) < 3 else over_limit("too many blocks")
            )
        value = int.from_bytes(start, "little")
        last, kind = bool(value & 1), value >> 1 & 3
        if kind == _RESERVED:
            raise truncated(f"a corrupt block at byte {at}")
        at += 3 + (1 if kind == _RLE else value >> 3)
    at += 4 if known.has_checksum else 0
    if at > size:
        raise truncated("it is truncated")
    return at, blocks


# Tar.


BLOCK = 512
_ZEROS = bytes(BLOCK)
_OCTAL = re.compile(rb"[0-7]+")
_PAX_RECORD = re.compile(rb"([1-9][0-9]{0,5}) (path|size)=")
_MAX_PAX_SIZE = 64 << 10  # an extended header is held in memory
_MAX_PADDING = 1 << 20


def entries(read: Read, *, ends: bool) -> Iterator[ContainerFile]:
    """Yield the files, to be read one after the other. What is left unread of one is skipped.

    `ends`: the end-of-archive mark must come, and nothing after it; without, it must not come.
    Raises `PackageError`.
    """
    while header := read(BLOCK):
        if header == _ZEROS:
            if not ends:
                raise truncated("the archive ends before its last part")
            _check_end(read)
            return
        extended: dict[bytes, bytes] = {}
        if _kind(header) == b"x":
            # The header that follows is the file's: two extended headers in a row are refused
            # there.
            size = _size(header, _MAX_PAX_SIZE)
            extended = _pax(_exactly(read, size + -size % BLOCK)[:size])
            header = _exactly(read, BLOCK)
        yield from _file(read, header, extended)
    if ends:
        raise truncated("the archive has no end")


def _file(read: Read, header: bytes, extended: dict[bytes, bytes]) -> Iterator[ContainerFile]:
    kind = _kind(header)
    name = _name(extended.get(b"path") or _full_name(header))
    if kind not in (b"0", b"\0"):
        raise unsafe_entry(f"{name!r:.200} is an entry of type {kind!r}, not a plain file")
    size = int(extended[b"size"]) if b"size" in extended else _size(header)
    left = size

    def pieces() -> Iterator[bytes]:
        nonlocal left
        while left:
            data = _exactly(read, min(READ_SIZE, left))
            left -= len(data)
            yield data

    yield ContainerFile(name, size, pieces())
    for _ in pieces():  # what was left unread
        pass
    # Bytes in the padding are in no file and no digest: a place to hide something in.
    if any(_exactly(read, -size % BLOCK)):
        raise truncated(f"{name!r:.200} is followed by bytes that belong to no file")


def _exactly(read: Read, count: int) -> bytes:
    data = read(count) if count else b""
    if len(data) < count:
        raise truncated("the archive is truncated")
    return data


def _check_end(read: Read) -> None:
    # GNU tar pads to a record of 10 KiB. Zeros compress a thousand times and more: padding without
    # end would keep a reader busy for as long as its maker likes.
    left = _MAX_PADDING
    second = _exactly(read, BLOCK)
    while piece := second or read(BLOCK):
        second = b""
        left -= len(piece)
        if left < 0 or any(piece):
            raise truncated("bytes after the end of the archive")


def _kind(header: bytes) -> bytes:
    if len(header) < BLOCK:
        raise truncated("the archive is truncated")
    claimed = _number(header[148:156])
    if claimed != sum(header[:148]) + 8 * 0x20 + sum(header[156:]):
        raise truncated("the archive is corrupt: a header has another checksum")
    return header[156:157]


def _size(header: bytes, limit: int | None = None) -> int:
    size = _number(header[124:136])
    if limit is not None and size > limit:
        raise over_limit(f"an extended header of {size} bytes")
    return size


def _number(field: bytes) -> int:
    digits = field.strip(b" \0")
    if not _OCTAL.fullmatch(digits):
        raise truncated("the archive is corrupt: a number in a header is not octal")
    return int(digits, 8)


def _full_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _name(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise unsafe_name(f"{raw!r:.200} is not UTF-8") from None


def _pax(data: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        record = _PAX_RECORD.match(data, at)
        if record is None:
            raise truncated("an extended header holds something else than a path or a size")
        end = at + int(record[1])
        value = data[record.end() : end - 1]
        # A record that counts itself shorter or longer than it is would be read as two names.
        whole = record.end() < end <= len(data) and data[end - 1 : end] == b"\n"
        wrong = record[2] == b"size" and not (value.isdigit() and len(value) < 16)
        if not whole or record[2] in found or wrong:
            raise truncated("an extended header is corrupt")
        found[record[2]] = value
        at = end
    return found


# The package.


LEVEL = 19
_END = bytes(2 * BLOCK)
"""The mark at the end of a tar."""
_MAX_FRAMES = 100_000

TarFile = tuple[str, int, Callable[[], bytes]]
"""A name, its size in bytes, and a function that reads it."""


# Writing.


def write_archive(contents: Contents, path: str, *, time: int) -> None:
    """Write the file. `time`: every entry's, in seconds since 1970. Raises `PackageError` and
    `OSError`."""
    with open(path, "xb") as out:
        heads = {names.LIST: contents.encoded, **dict(sorted(contents.beside.items()))}
        first = [(name, len(data), partial(bytes, data)) for name, data in heads.items()]
        write_frame(out, first, time=time, end=False)
        for paths in layers(contents.listed):
            write_layer(contents, paths, out, time=time, end=False)
        write_frame(out, (), time=time, end=True)
        finish(out)


def write_layer(
    contents: Contents, paths: Iterable[str], out: BinaryIO, *, time: int, end: bool
) -> None:
    """Write a layer as one frame; with `end` a tar by itself. Raises `PackageError`, `OSError`."""
    files = contents.listed.files
    described = [(name, files[name].size, partial(contents.read, name)) for name in paths]
    write_frame(out, described, time=time, end=end)


def write_frame(out: BinaryIO, files: Iterable[TarFile], *, time: int, end: bool) -> None:
    """Write one zstd frame with these files as tar entries, in this order. `time`: seconds since
    1970; `end`: with the mark that ends a tar. Raises what reading a file raises, and `OSError`."""
    import zstandard

    headed = [(_header(name, size, time), size, read) for name, size, read in files]
    total = sum(len(header) + size + -size % BLOCK for header, size, _ in headed)
    total += len(_END) if end else 0
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
    for header, size, read in headed:
        out.writelines(frame.compress(data) for data in (header, read(), bytes(-size % BLOCK)))
    out.write(frame.compress(_END if end else b""))
    out.write(frame.flush())


def _header(name: str, size: int, time: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, time, mode_of(name)
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
    except (ValueError, UnicodeEncodeError):
        # A long or non-ASCII name, or a size beyond 8 GiB: ustar has no place for it.
        return info.tobuf(tarfile.PAX_FORMAT, "ascii", "strict")


# Reading.


class ArchiveReader:
    """The package in the file at `path`. Raises `PackageError`.

    The frames are counted when the file is opened, so a truncated download is refused at once, and
    the frames of layers that are not needed are skipped without being decompressed.
    """

    kind = "archive"

    def __init__(self, path: str) -> None:
        self._file = os.fdopen(open_plain(path, os.path.basename(path)), "rb", buffering=0)
        try:
            handle = self._file.fileno()
            self.packed: int | None = os.fstat(handle).st_size
            self._frames = frames(handle, self.packed, _MAX_FRAMES)
            self._first = self._read_first()
        except BaseException:
            self.close()
            raise

    def list_bytes(self) -> bytes:
        return self._first[names.LIST]

    def attestations(self) -> dict[str, bytes]:
        return {name: data for name, data in self._first.items() if name != names.LIST}

    def stream(self, layers: int, skip: Container[int]) -> Iterator[ContainerFile]:
        if len(self._frames) != layers + 2:
            count = max(0, len(self._frames) - 2)
            raise truncated(f"it has {count} layers, and its list makes {layers}")
        for number, frame in enumerate(self._frames[1:-1]):
            if number not in skip:
                yield from entries(self._unpacked(frame), ends=False)
        yield from entries(self._unpacked(self._frames[-1]), ends=True)

    def close(self) -> None:
        self._file.close()

    def _unpacked(self, frame: Frame) -> Read:
        return unpacked(self._file.fileno(), frame)

    def _read_first(self) -> dict[str, bytes]:
        """Read the list and the attestations. Of any other file not one byte is read."""
        found: dict[str, bytes] = {}
        if not self._frames:
            raise truncated("it is empty")
        for item in entries(self._unpacked(self._frames[0]), ends=False):
            if not found and item.path != names.LIST:
                raise no_package(f"its first file is {item.path!r:.100}, not {names.LIST}")
            if found and item.path not in names.BESIDE:
                raise unlisted(f"{item.path!r:.200} is not listed in {names.LIST}")
            if item.path in found:
                raise unlisted(f"{item.path} appears twice")
            found[item.path] = item.content(MAX_ATTESTATION_SIZE if found else MAX_LIST_SIZE)
        if not found:
            raise no_package(f"it does not begin with {names.LIST}")
        return found
