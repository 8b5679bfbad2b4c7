"""A package as a `.tar.zst`: one tar in concatenated zstd frames, which plain `tar` reads.

The first frame has the list and the attestations, so that a reader knows everything before it
unpacks anything; then comes a frame for each layer; the last frame has the end of the tar. Equal
contents give equal bytes, whatever the number of cores; only the version of the zstd library shows.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial

from tilusbuild.package import names
from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import NoPackageError, TruncatedError, UnlistedFileError
from tilusbuild.package.formats.directory import Sink, finish, open_plain
from tilusbuild.package.formats.streams import (
    BLOCK,
    MAX_WINDOW_LOG,
    FileSection,
    Frame,
    Unpacked,
    entries,
    frames,
)
from tilusbuild.package.listing import MAX_LIST_SIZE, Layer, named_layers
from tilusbuild.package.model import MAX_ATTESTATION_SIZE, ContainerFile, mode_of

LEVEL = 19
_END = bytes(2 * BLOCK)
"""The mark at the end of a tar."""
_MAX_FRAMES = 100_000

TarFile = tuple[str, int, Callable[[], bytes]]
"""A name, its size in bytes, and a function that reads it."""


# Writing.


def write_archive(contents: Contents, path: str, *, time: int) -> None:
    """Write the file. `time`: every entry's, in seconds since 1970. Raises `CannotPackError` and
    `OSError`."""
    with open(path, "xb") as out:
        heads = {names.LIST: contents.encoded, **dict(sorted(contents.beside.items()))}
        first = [(name, len(data), partial(bytes, data)) for name, data in heads.items()]
        write_frame(out, first, time=time, end=False)
        for layer in named_layers(contents.listed):
            write_layer(contents, layer, out, time=time, end=False)
        write_frame(out, (), time=time, end=True)
        finish(out)


def write_layer(contents: Contents, layer: Layer, out: Sink, *, time: int, end: bool) -> None:
    """Write a layer as one frame; with `end` it is a tar by itself. Raises `CannotPackError`,
    `OSError`."""
    files = contents.listed.files
    described = [(name, files[name].size, partial(contents.read, name)) for name in layer.paths]
    write_frame(out, described, time=time, end=end)


def write_frame(out: Sink, files: Iterable[TarFile], *, time: int, end: bool) -> None:
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
        for data in (header, read(), bytes(-size % BLOCK)):
            out.write(frame.compress(data))
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
    """The package in the file at `path`. Raises as `frames`, and `NoPackageError`.

    The frames are counted when the file is opened, so a truncated download is refused at once, and
    the frames of layers that are not needed are skipped without being decompressed.
    """

    kind = "archive"

    def __init__(self, path: str) -> None:
        self._handle = open_plain(path, os.path.basename(path))
        try:
            size = os.fstat(self._handle).st_size
            self.packed: int | None = size
            self._frames = frames(self._handle, size, _MAX_FRAMES)
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
            raise TruncatedError(f"it has {count} layers, and its list makes {layers}")
        for number, frame in enumerate(self._frames[1:-1]):
            if number not in skip:
                yield from entries(self._unpacked(frame), ends=False)
        yield from entries(self._unpacked(self._frames[-1]), ends=True)

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def _unpacked(self, frame: Frame) -> Unpacked:
        return Unpacked(FileSection(self._handle, frame.offset, frame.size))

    def _read_first(self) -> dict[str, bytes]:
        """Read the list and the attestations. Of any other file not one byte is read."""
        found: dict[str, bytes] = {}
        if not self._frames:
            raise TruncatedError("it is empty")
        for item in entries(self._unpacked(self._frames[0]), ends=False):
            if not found and item.path != names.LIST:
                raise NoPackageError(f"its first file is {item.path!r:.100}, not {names.LIST}")
            if found and item.path not in names.BESIDE:
                raise UnlistedFileError(f"{item.path!r:.200} is not listed in {names.LIST}")
            if item.path in found:
                raise UnlistedFileError(f"{item.path} is there twice")
            found[item.path] = item.content(MAX_ATTESTATION_SIZE if found else MAX_LIST_SIZE)
        if not found:
            raise NoPackageError(f"it does not begin with {names.LIST}")
        return found
