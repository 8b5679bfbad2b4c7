"""Which GPU code a file holds: from a cubin, a fatbin, or a shared library that embeds either.

A fatbin is one or more containers (magic 0xBA55ED50), each a row of entries: PTX or cubin, an
architecture number, flags that hold the `a` or `f`, maybe compressed. The format is undocumented;
a test holds this reader to cuobjdump and to what nvcc was asked for, over every architecture and
every compression mode of CUDA 13. A shared library is searched for containers and bare cubins in
any section, as launchers embed them where they like; what only looks like one is passed over.
"""

from __future__ import annotations

import re
import struct
from typing import Literal, TypeAlias

from msgspec import Struct

from tilusbuild.binary.cubin import cubin_arch, open_cubin
from tilusbuild.binary.elf import MACHINE_CUDA, MACHINES, MAGIC, BinaryError, Elf

_FATBIN_MAGIC = struct.pack("<I", 0xBA55ED50)
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, header size, size of what follows
# Kind, version, header size, payload size, -, PTX version (2), architecture, -, flags.
_ENTRY = struct.Struct("<HHIQQHHIQQ")
_UNPACKED_AT = 56  # the size before packing, in headers that are long enough
_STARTS = re.compile(
    re.escape(_FATBIN_MAGIC)
    + rb"|"
    + re.escape(MAGIC)
    + rb"(?=.{12}"
    + struct.pack("<H", MACHINE_CUDA)
    + rb")",
    re.DOTALL,
)
_PTX, _ELF = 1, 2
_FLAG_LZ4, _FLAG_ZSTD, _FLAG_A, _FLAG_F = 0x2000, 0x8000, 0x100000, 0x200000
MAX_ENTRIES = 4096
MAX_FAKES = 16
MAX_CUBIN_SIZE = 1 << 30
MAX_WINDOW_SIZE = 1 << 27


class CodeImage(Struct, frozen=True):
    """One piece of GPU code: `arch` is "sm_90a" for PTX too. `size` is the bytes it takes,
    packed."""

    kind: Literal["sass", "ptx"]
    arch: str
    size: int


class Cubin(Struct, frozen=True):
    """A cubin taken out of its container: what the container says of it, and its bytes."""

    image: CodeImage
    data: bytes


_Found: TypeAlias = tuple[CodeImage, int, int, int]
"""An image, where it starts, its entry's flags, and its size before packing."""


def read_archs(data: bytes) -> tuple[CodeImage, ...]:
    """Return the code images of a cubin, a fatbin or an ELF library, in the file's order.

    A library without GPU code has none. Raises `BinaryError` for any other file.
    """
    return tuple(image for image, *_ in _find(data))


def extract_cubins(data: bytes) -> tuple[Cubin, ...]:
    """Return the cubins of such a file, unpacked. Raises `BinaryError`, also for CUDA 12's LZ4."""
    return tuple(
        Cubin(found[0], _unpacked(data, found)) for found in _find(data) if found[0].kind == "sass"
    )


def _find(data: bytes) -> list[_Found]:
    if data[: len(_FATBIN_MAGIC)] == _FATBIN_MAGIC:  # it may be a mapped file
        return _containers(data)
    elf = Elf(data)
    if elf.machine == MACHINE_CUDA:
        return [_bare(data, 0)]
    if elf.machine not in MACHINES:
        raise BinaryError(f"an ELF file for machine {elf.machine}, which is not supported")
    return _search(data)


def _containers(data: bytes) -> list[_Found]:
    """Return a file that is nothing but containers, one after the other."""
    found: list[_Found] = []
    at = 0
    while data[at : at + len(_FATBIN_MAGIC)] == _FATBIN_MAGIC:
        entries, at = _container(data, at)
        found += entries
        while at < len(data) and data[at] == 0:
            at += 1
    if at < len(data):
        raise BinaryError("the fatbin is followed by bytes that do not belong to it")
    return found


def _search(data: bytes) -> list[_Found]:
    found: list[_Found] = []
    past = fakes = 0
    for match in _STARTS.finditer(data, len(MAGIC)):
        at = match.start()
        if at < past:
            continue
        try:
            if match[0] == _FATBIN_MAGIC:
                entries, past = _container(data, at)
                found += entries
            else:
                found.append(_bare(data, at))
                past = at + found[-1][0].size
        except BinaryError:
            # The CUDA runtime's own code holds the magic number; a hostile file holds many.
            fakes += 1
        if fakes > MAX_FAKES or len(found) > MAX_ENTRIES:
            raise BinaryError("more parts look like GPU code than a library can hold")
    return found


def _bare(data: bytes, at: int) -> _Found:
    elf = open_cubin(data, at)
    return CodeImage("sass", cubin_arch(elf), elf.size), at, 0, 0


def _container(data: bytes, at: int) -> tuple[list[_Found], int]:
    """Return the entries of the container at `at`, and where it ends."""
    if at + _CONTAINER.size > len(data):
        raise BinaryError("the fatbin is cut off")
    _, version, header, size = _CONTAINER.unpack_from(data, at)
    end = at + header + size
    if version != 1 or header < _CONTAINER.size or end > len(data):
        raise BinaryError("the fatbin is damaged, cut off, or of an unknown version")
    at += header
    found: list[_Found] = []
    while at < end:
        if at + _ENTRY.size > end or len(found) >= MAX_ENTRIES:
            raise BinaryError("an entry of the fatbin is damaged")
        kind, _, header, size, _, _, _, number, _, flags = _ENTRY.unpack_from(data, at)
        start = at + header
        if header < _ENTRY.size or start + size > end:
            raise BinaryError("an entry of the fatbin is damaged")
        if kind in (_PTX, _ELF):
            suffix = "a" if flags & _FLAG_A else "f" if flags & _FLAG_F else ""
            image = CodeImage("ptx" if kind == _PTX else "sass", f"sm_{number}{suffix}", size)
            unpacked = data[at + _UNPACKED_AT : min(at + _UNPACKED_AT + 8, start)]
            found.append((image, start, flags, int.from_bytes(unpacked, "little")))
        at = start + size
    return found, end


def _unpacked(data: bytes, found: _Found) -> bytes:
    image, offset, flags, unpacked = found
    packed = data[offset : offset + image.size]
    if flags & _FLAG_LZ4:
        raise BinaryError("the code is packed with LZ4; compile with -compress-mode=none or size")
    if not flags & _FLAG_ZSTD:
        return packed
    import zstandard

    if not 0 < unpacked <= MAX_CUBIN_SIZE:
        raise BinaryError("packed code of an impossible size")
    try:
        frame = zstandard.get_frame_parameters(packed)
        if frame.content_size > unpacked:  # also when the frame does not say
            raise BinaryError("packed code that is larger than it says")
        plain = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_SIZE).decompress(packed)
    except zstandard.ZstdError as error:
        raise BinaryError(f"packed code is damaged: {error}") from error
    return plain
