"""The seam through which a package is read, whatever carries it.

A reader knows its container and nothing else. It hands over names and bytes as it finds them, in
the container's order, and `arriving` believes none of them. What a reader itself refuses: entries
that are no plain files, containers that are cut short or damaged, headers and windows that would
take more memory than they may. It never reads an entry whole unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import NamedTuple, Protocol

LARGEST_BESIDE = 16 << 20
"""Bytes of a signature, a provenance or an SBOM."""


class Item(NamedTuple):
    """A file in a container, with the name and the size in bytes that the container gives it."""

    path: str
    size: int
    read: Callable[[int], bytes]
    """The next bytes, at most so many; b"" at the end. Good until the next item is asked for."""


class Reader(Protocol):
    """A package in its container. Every method raises `PackageError`."""

    kind: str
    """What the container is, for people."""
    packed: int | None
    """Bytes of the container; None where nothing is compressed."""

    def list_bytes(self) -> bytes:
        """`tilus-package.json`, of at most `listing.MOST_BYTES`."""
        ...

    def attestations(self) -> Mapping[str, bytes]:
        """What there is of `names.BESIDE`, by name; each of at most `LARGEST_BESIDE`."""
        ...

    def stream(self, layers: int, skip: Container[int]) -> Iterator[Item]:
        """Every file, but for the list, the attestations, and layers that can be left out.

        `layers` is how many the list makes; those whose numbers are in `skip` need not be read.
        """
        ...

    def close(self) -> None:
        """Let go of the container."""
        ...
