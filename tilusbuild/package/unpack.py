"""Some files of a package as a folder that is laid out like a cache, for those who only look.

The folder is temporary and somebody else's content: every file in it was listed, and had the size
and the digest that the list gives, and the scripts are such as the runtime reads. Nothing else of
the package was checked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tilusbuild.cache import layout
from tilusbuild.package import names
from tilusbuild.package.arriving import Limits, arrivals, check_limits, written
from tilusbuild.package.check import Checker
from tilusbuild.package.layers import layers
from tilusbuild.package.listing import FileList, parse
from tilusbuild.package.opening import opened


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A list, and the folder that holds the files that were asked for."""

    listing: FileList
    folder: str


@contextmanager
def unpacked(
    path: str, choose: Callable[[FileList], set[str]], limits: Limits
) -> Iterator[Unpacked]:
    """Unpack the paths that `choose` picks from the list; they are gone after the block.

    Raises `PackageError`s.
    """
    with (
        opened(path) as reader,
        tempfile.TemporaryDirectory(prefix="tilusbuild-package-") as folder,
    ):
        listing = parse(reader.list_bytes())
        check_limits(listing, reader, limits)
        chosen = choose(listing)
        parts = layers(listing)
        skip = {number for number, part in enumerate(parts) if chosen.isdisjoint(part)}
        checker = Checker(listing, folder)
        for arrival in arrivals(reader, listing, parts, skip):
            if arrival.path not in chosen:
                continue
            if names.root_of(arrival.path)[0] == layout.SCRIPTS:
                checker.take(arrival, keep=True)
            else:
                for _ in written(arrival, folder):
                    pass
        checker.finish()
        yield Unpacked(listing, folder)


def of_scripts(listing: FileList) -> set[str]:
    """What the runtime reads of scripts."""
    return {path for path in listing.files if names.root_of(path)[0] == layout.SCRIPTS}


def texts(listing: FileList) -> set[str]:
    """What people read: scripts, and what each program is made of."""
    wanted = (layout.PROGRAM_TXT, layout.OPTIONS_TXT)
    return of_scripts(listing) | {
        f"{layout.PROGRAMS}/{program}/{name}" for program in listing.programs for name in wanted
    }
