"""Files as they come out of a package: each is listed, comes once, and is what the list says.

Everything that reads a package's files reads them here. What a container says is compared with the
list before any of it is read, and the limits are compared with the list before that; so a package
can ask for no more memory, disk or time than its list admits, and the list for no more than
`Limits` allow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from tilusbuild.cache import layout
from tilusbuild.package import names
from tilusbuild.package.errors import (
    FileChanged,
    FileMissing,
    FileUnlisted,
    OverLimit,
    PackageError,
)
from tilusbuild.package.listing import FileEntry, FileList
from tilusbuild.package.reader import Item, Reader
from tilusbuild.state.hashing import hasher

_PIECE = 1 << 18
_LARGEST_OF_SCRIPT = 32 << 20
"""Bytes of a file of a script: the list of 200,000 programs, say."""
_LARGEST_SCRIPTS = 1 << 30
"""Bytes of all files of all scripts, which whoever looks at a package unpacks."""

Refuse = Callable[[PackageError], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a package may ask for, in bytes: of all files together, and unpacked for each packed.

    Packages of nearly equal kernels shrink a few hundred times; a bomb shrinks 30,000 times.
    """

    total: int = 64 << 30
    ratio: int = 1000
    free: int = 256 << 20
    """What is not held against the ratio."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A listed file that came. Its pieces are read once, before the next file is asked for."""

    path: str
    entry: FileEntry
    _item: Item

    def pieces(self) -> Iterator[bytes]:
        """The content. Raises `FileChanged` after the last piece when it is not what is listed, and
        what the reader raises."""
        found, left = hasher(), self.entry.size
        while piece := self._item.read(min(_PIECE, left) or 1):
            left -= len(piece)
            found.update(piece)
            if left < 0:
                break
            yield piece
        if left:
            raise FileChanged(
                f"{self.path} has another size than the {self.entry.size} bytes listed"
            )
        if found.hexdigest() != self.entry.sha256:
            raise FileChanged(
                f"{self.path} was modified: sha256 {found.hexdigest()}, listed {self.entry.sha256}"
            )


def written(arrival: Arrival, folder: str) -> Iterator[bytes]:
    """The pieces, each after it was written to the file's place below `folder`. Raises as `pieces`,
    and `OSError`. The folder is private, so that nothing in it leads out."""
    path = os.path.join(folder, arrival.path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(handle, "wb") as file:
        for piece in arrival.pieces():
            file.write(piece)
            yield piece


def raising(error: PackageError) -> NoReturn:
    """The usual way to take an error."""
    raise error


def check_limits(listing: FileList, reader: Reader, limits: Limits) -> None:
    """Raises `OverLimit` before anything is unpacked."""
    if listing.size > limits.total:
        raise OverLimit(
            f"it holds {listing.size} bytes, more than {limits.total}",
            hint="--max-size allows more",
        )
    scripts = [(e.size, p) for p, e in listing.files.items() if p.startswith(layout.SCRIPTS)]
    largest, path = max(scripts, default=(0, ""))
    if sum(size for size, _ in scripts) > _LARGEST_SCRIPTS or largest > _LARGEST_OF_SCRIPT:
        raise OverLimit(f"{path} is larger than what a script has")
    packed = reader.packed
    if packed is not None and listing.size > limits.free + limits.ratio * packed:
        raise OverLimit(
            f"{packed} bytes would unpack to {listing.size}, more than {limits.ratio} times as many"
        )


def arrivals(
    reader: Reader,
    listing: FileList,
    layers: Sequence[Sequence[str]],
    skip: Container[int] = frozenset(),
    refuse: Refuse = raising,
) -> Iterator[Arrival]:
    """The listed files in the container's order, but for those of layers to skip.

    `layers` are the paths of each. `refuse` is told of `UnsafeName`, `FileUnlisted`, `FileChanged`
    (another size) and `FileMissing`, and may return: the file is left out then. Raises what the
    reader raises.
    """
    waiting = {path for number, layer in enumerate(layers) if number not in skip for path in layer}
    seen: set[str] = set()
    for item in reader.stream(len(layers), skip):
        error = _problem(item, listing.files, seen)
        seen.add(item.path)
        if error is not None:
            refuse(error)
            continue
        yield Arrival(item.path, listing.files[item.path], item)
    for path in sorted(waiting - seen):
        refuse(FileMissing(f"{path} is listed, and not there"))


def _problem(item: Item, files: Mapping[str, FileEntry], seen: set[str]) -> PackageError | None:
    try:
        names.check_path(item.path)
    except PackageError as error:
        return error
    entry = files.get(item.path)
    if entry is None:
        return FileUnlisted(f"{item.path!r:.200} is there, and not listed")
    if item.path in seen:
        return FileUnlisted(f"{item.path} is there twice")
    if item.size != entry.size:
        return FileChanged(f"{item.path} has {item.size} bytes, listed are {entry.size}")
    return None
