"""The headers outside a project that a compile can reach, and when one of the project shadows them.

A compiler searches the project's directories before the toolkit's and the system's, also for what
the toolkit's own headers include. So where the project has a header by a name that one outside has
(a vendored CCCL and the toolkit's), the search for headers goes through those outside as well, or a
compile would see the half of a library that the source names and the other half of the toolkit's.
Where no name is in both, none outside is read: what is looked at are directories only, and of those
only the ones that are on both sides.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import field

from tilusbuild.lazy_dataclass import dataclass
from tilusbuild.state.directories import is_trouble


@dataclass(frozen=True, slots=True)
class Outside:
    """The directories that a compiler searches after the project's, in their order, and the headers
    that it includes before the source, by name."""

    directories: tuple[str, ...]
    implied: tuple[str, ...] = ()


@dataclass(slots=True)
class Overlap:
    """What the project's directories and those outside have in common, as it was looked for."""

    shadows: bool = False
    """Whether a header of the project has the name of one outside."""
    probed: set[str] = field(default_factory=set)
    """The project's directories that were read, and a header that shadows another."""
    outside: set[str] = field(default_factory=set)
    """The directories outside that were read."""
    sought: set[str] = field(default_factory=set)
    """The names that would make a difference in them."""


def overlap(directories: Iterable[str], outside: Sequence[str]) -> Overlap:
    """Compare the project's directories with those outside, name by name."""
    found = Overlap()
    pending = [(directory, tuple(outside)) for directory in directories]
    while pending and not found.shadows:
        own, others = pending.pop()
        theirs = [(other, _names(other)) for other in others]
        found.probed.add(own)
        found.outside.update(others)
        found.sought.update(*(names for _, names in theirs))
        for name in sorted(_names(own)):
            path = os.path.join(own, name)
            also = [os.path.join(other, name) for other, names in theirs if name in names]
            if not also:
                continue
            if not os.path.isdir(path):
                if any(os.path.isfile(other) for other in also):
                    found.shadows = True
                    found.probed.add(path)
            elif below := tuple(other for other in also if os.path.isdir(other)):
                pending.append((path, below))
    return found


def _names(directory: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(directory))
    except OSError as error:
        if is_trouble(error, directory):
            raise
        return frozenset()
