"""Pieces of GPU code: as a package's list writes them, and as a file has them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tilusbuild.binary import BinaryError, read_archs, read_needs
from tilusbuild.package.values import Field

LARGEST = 256 << 20
"""Bytes of a library of another system's, which is read whole."""


@dataclass(frozen=True, slots=True)
class Image:
    """A piece of GPU code in a library, as the binary itself says. Unlike `binary.CodeImage`,
    without its size."""

    kind: Literal["sass", "ptx"]
    arch: str


def values(images: Iterable[Image]) -> list[dict[str, str]]:
    """What stands in the list."""
    return [{"kind": image.kind, "arch": image.arch} for image in images]


def read(field: Field) -> tuple[Image, ...]:
    """What a list says. Raises `ListMalformed`."""
    return tuple(_image(each) for each in field.items())


def _image(field: Field) -> Image:
    kind, arch = field.table("kind", "arch")
    return Image(kind.one_of("sass", "ptx"), arch.name())


def code_of(data: bytes) -> tuple[tuple[Image, ...], str | None]:
    """What code a file holds: its pieces for GPUs, and the machine that its host code is for."""
    try:
        images = tuple(dict.fromkeys(Image(i.kind, i.arch) for i in read_archs(data)))
    except BinaryError:
        images = ()
    try:
        return images, read_needs(data).machine
    except BinaryError:
        return images, None
