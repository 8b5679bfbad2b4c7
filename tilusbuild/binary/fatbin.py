"""Find the GPU code in a file: a cubin, a fatbin, or a shared library that embeds either.

A fatbin is a sequence of containers (magic 0xBA55ED50). A container is a sequence of entries, each
PTX or a cubin, with an architecture's number and flags for its suffix and its compression. The
format is undocumented. A test compares this reader with cuobjdump and with nvcc's options, for
every architecture and compression mode of CUDA 13. A shared library is searched for containers and
bare cubins in all sections, since launchers may embed them anywhere; false matches are skipped.
"""

from __future__ import annotations

import re
import struct
from typing import Literal, NamedTuple

from msgspec import Struct

from tilusbuild.binary.cubin import open_cubin, read_cubin_arch
from tilusbuild.binary.elf import MACHINE_CUDA, MACHINES, MAGIC, BinaryError, Elf

_FATBIN_MAGIC = struct.pack("<I", 0xBA55ED50)
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, header size, size of what follows
# Kind, version, header size, payload size, -, PTX version (2), architecture, -, flags.
_ENTRY = struct.Struct("<HHIQQHHIQQ")
_UNPACKED_SIZE_OFFSET = 56  # the size before packing, 8 bytes, in headers that are long enough
# A container, or the start of a cubin: `e_machine` is at byte 18, 12 behind the magic number.
_IMAGE_STARTS = re.compile(
    re.escape(_FATBIN_MAGIC)
    + rb"|"
    + re.escape(MAGIC)
    + rb"(?=.{12}"
    + struct.pack("<H", MACHINE_CUDA)
    + rb")",
    re.DOTALL,
)
_PTX, _ELF = 1, 2  # kinds of an entry
_FLAG_LZ4, _FLAG_ZSTD, _FLAG_A, _FLAG_F = 0x2000, 0x8000, 0x100000, 0x200000
# Bounds on what a hostile file can cost; CUDA's own libraries stay far below.
MAX_ENTRIES = 4096
MAX_FAKES = 16
MAX_CUBIN_SIZE = 1 << 30
MAX_WINDOW_SIZE = 1 << 27  # of zstd: what its strongest level uses


class CodeImage(Struct, frozen=True):
    """One piece of GPU code. `arch` is "sm_90a" for PTX too. `size` is its bytes in the file."""

    kind: Literal["sass", "ptx"]
    arch: str
    size: int


class Cubin(Struct, frozen=True):
    """A cubin from a container: its entry, and its bytes after unpacking."""

    image: CodeImage
    data: bytes


class _ImageLocation(NamedTuple):
    """An image and its bytes in the file."""

    image: CodeImage
    offset: int
    flags: int = 0
    """Of the entry in a container; 0 for a bare cubin."""
    unpacked_size: int = 0
    """The bytes before packing; 0 if the entry does not say."""


def read_archs(data: bytes) -> tuple[CodeImage, ...]:
    """Return the code images of a cubin, a fatbin or an ELF library, in the file's order.

    A library without GPU code has none. Raises `BinaryError` for any other file.
    """
    return tuple(location.image for location in _find_images(data))


def extract_cubins(data: bytes) -> tuple[Cubin, ...]:
    """Return the cubins of a cubin, a fatbin or an ELF library, unpacked.

    Raises `BinaryError`, also for LZ4, the compression of CUDA 12.
    """
    return tuple(
        Cubin(location.image, _unpack_image(data, location))
        for location in _find_images(data)
        if location.image.kind == "sass"
    )


def _find_images(data: bytes) -> list[_ImageLocation]:
    """Return the images of a fatbin, a cubin or a library, in the order of the file. Raises
    `BinaryError`."""
    if data[: len(_FATBIN_MAGIC)] == _FATBIN_MAGIC:  # a mapped file has no `startswith`
        return _read_containers(data)
    elf = Elf(data)
    if elf.machine == MACHINE_CUDA:
        return [_read_bare_cubin(data, offset=0)]
    if elf.machine not in MACHINES:
        raise BinaryError(f"an ELF file for machine {elf.machine}, which is not supported")
    return _search_library(data)


def _read_containers(data: bytes) -> list[_ImageLocation]:
    """Return the images of a file that consists of containers only. Raises `BinaryError`."""
    images: list[_ImageLocation] = []
    offset = 0
    while data[offset : offset + len(_FATBIN_MAGIC)] == _FATBIN_MAGIC:
        entries, offset = _read_container(data, offset)
        images += entries
        while offset < len(data) and data[offset] == 0:  # alignment
            offset += 1
    if offset < len(data):
        raise BinaryError("the fatbin is followed by bytes that do not belong to it")
    return images


def _search_library(data: bytes) -> list[_ImageLocation]:
    """Return the images that any section of a library holds. Up to `MAX_FAKES` damaged ones are
    skipped; more raise `BinaryError`."""
    images: list[_ImageLocation] = []
    image_end = damaged_count = 0
    for match in _IMAGE_STARTS.finditer(data, len(MAGIC)):
        offset = match.start()
        # A cubin inside of a container was read with the container.
        if offset < image_end:
            continue
        try:
            if match[0] == _FATBIN_MAGIC:
                entries, image_end = _read_container(data, offset)
                images += entries
            else:
                images.append(_read_bare_cubin(data, offset))
                image_end = offset + images[-1].image.size
        except BinaryError:
            # The CUDA runtime's own code holds the magic number; a hostile file holds many.
            damaged_count += 1
        if damaged_count > MAX_FAKES or len(images) > MAX_ENTRIES:
            raise BinaryError("more parts look like GPU code than a library can hold")
    return images


def _read_bare_cubin(data: bytes, offset: int) -> _ImageLocation:
    elf = open_cubin(data, offset)
    return _ImageLocation(CodeImage("sass", read_cubin_arch(elf), elf.size), offset)


def _read_container(data: bytes, offset: int) -> tuple[list[_ImageLocation], int]:
    """Return the images of the container at an offset, and the offset of its end. Other kinds of
    entries are skipped. Raises `BinaryError`."""
    if offset + _CONTAINER.size > len(data):
        raise BinaryError("the fatbin is cut off")
    _, version, container_header_size, content_size = _CONTAINER.unpack_from(data, offset)
    end = offset + container_header_size + content_size
    if version != 1 or container_header_size < _CONTAINER.size or end > len(data):
        raise BinaryError("the fatbin is damaged, cut off, or of an unknown version")
    offset += container_header_size
    images: list[_ImageLocation] = []
    while offset < end:
        if offset + _ENTRY.size > end or len(images) >= MAX_ENTRIES:
            raise BinaryError("an entry of the fatbin is damaged")
        kind, _, header_size, size, _, _, _, number, _, flags = _ENTRY.unpack_from(data, offset)
        start = offset + header_size
        if header_size < _ENTRY.size or start + size > end:
            raise BinaryError("an entry of the fatbin is damaged")
        if kind in (_PTX, _ELF):
            suffix = "a" if flags & _FLAG_A else "f" if flags & _FLAG_F else ""
            image = CodeImage("ptx" if kind == _PTX else "sass", f"sm_{number}{suffix}", size)
            # A short header ends before this field: then the size is 0, for unknown.
            field_start = offset + _UNPACKED_SIZE_OFFSET
            field = data[field_start : min(field_start + 8, start)]
            unpacked_size = int.from_bytes(field, "little")
            images.append(_ImageLocation(image, start, flags, unpacked_size))
        offset = start + size
    return images, end


def _unpack_image(data: bytes, location: _ImageLocation) -> bytes:
    """Return the bytes of an image before packing. Raises `BinaryError`."""
    image, offset, flags, unpacked_size = location
    packed = data[offset : offset + image.size]
    if flags & _FLAG_LZ4:
        raise BinaryError("the code is packed with LZ4; compile with -compress-mode=none or size")
    if not flags & _FLAG_ZSTD:
        return packed
    import zstandard

    if not 0 < unpacked_size <= MAX_CUBIN_SIZE:
        raise BinaryError("packed code of an impossible size")
    try:
        frame = zstandard.get_frame_parameters(packed)
        # If the frame does not record its size, this is the largest number, which is refused too.
        if frame.content_size > unpacked_size:
            raise BinaryError("packed code that is larger than it says")
        plain = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_SIZE).decompress(packed)
    except zstandard.ZstdError as error:
        raise BinaryError(f"packed code is damaged: {error}") from error
    return plain
