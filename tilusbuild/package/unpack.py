"""Some files of a package as a folder that is laid out like a cache, for those who only look.

The folder is temporary and somebody else's content: every file in it was listed, and had the size
and the digest that the list gives. Nothing else of the package was checked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tilusbuild.cache import layout
from tilusbuild.package import names
from tilusbuild.package.arriving import Limits, arrivals, check_limits, written
from tilusbuild.package.layers import layers
from tilusbuild.package.listing import FileList, parse
from tilusbuild.package.opening import opened


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A list, and the folder that holds the files that were asked for."""

    listing: FileList
    folder: str


@contextmanager
def unpacked(path: str, wanted: Callable[[str], bool], limits: Limits) -> Iterator[Unpacked]:
    """Unpack the files whose paths are wanted; they are gone after the block.

    Raises `PackageError`s.
    """
    with (
        opened(path) as reader,
        tempfile.TemporaryDirectory(prefix="tilusbuild-package-") as folder,
    ):
        listing = parse(reader.list_bytes())
        check_limits(listing, reader, limits)
        parts = layers(listing)
        skip = {number for number, part in enumerate(parts) if not any(map(wanted, part))}
        for arrival in arrivals(reader, listing, parts, skip):
            if wanted(arrival.path):
                for _ in written(arrival, folder):
                    pass
        yield Unpacked(listing, folder)


def of_scripts(path: str) -> bool:
    """What the runtime reads of scripts."""
    return names.root_of(path)[0] == layout.SCRIPTS


def texts(path: str) -> bool:
    """What people read: scripts, and what each program is made of."""
    name = path.rpartition("/")[2]
    return of_scripts(path) or name in (layout.PROGRAM_TXT, layout.OPTIONS_TXT, layout.META)
