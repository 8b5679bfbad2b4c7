"""Tar and zstd, written so that equal files are equal bytes.

An entry is a plain file with mode 0644 or 0755, user and group 0 without names, and one time for
all. A frame is compressed in one thread, so the number of cores does not show; what does show is
the version of the zstd library. The window is at most 128 MiB, which decoders take unasked.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable

from tilusbuild.package.formats.plain import Sink
from tilusbuild.package.purpose import is_executable

LEVEL = 19
WINDOW_LOG = 27
_BLOCK = 512
END = bytes(2 * _BLOCK)
"""The mark at the end of a tar."""

File = tuple[str, int, Callable[[], bytes]]
"""A name, its size in bytes, and a function that reads it."""


def write_frame(out: Sink, files: Iterable[File], *, time: int, end: bool) -> None:
    """One zstd frame with these files as tar entries, in this order. `time`: seconds since 1970;
    `end`: with the mark that ends a tar. Raises what reading a file raises, and `OSError`."""
    import zstandard

    headed = [(_header(name, size, time), size, read) for name, size, read in files]
    total = sum(len(header) + size + -size % _BLOCK for header, size, _ in headed)
    total += len(END) if end else 0
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL,
        source_size=total,
        window_log=WINDOW_LOG,
        enable_ldm=True,
        write_content_size=True,
        write_checksum=True,
        threads=0,
    )
    # Not the library's own writer: left by an error, it raises another for the size it was told.
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=total)
    for header, size, read in headed:
        for data in (header, read(), bytes(-size % _BLOCK)):
            out.write(frame.compress(data))
    out.write(frame.compress(END if end else b""))
    out.write(frame.flush())


def _header(name: str, size: int, time: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mtime = size, time
    info.mode = 0o755 if is_executable(name) else 0o644
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
    except (ValueError, UnicodeEncodeError):
        return info.tobuf(tarfile.PAX_FORMAT, "ascii", "strict")
