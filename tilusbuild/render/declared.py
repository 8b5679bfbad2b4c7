"""The headers that patterns declare: found without a compiler, and no more than may be carried."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from tilusbuild.render.closure import Root
from tilusbuild.state.patterns import PatternTooWideError, matching

MAX_FILES, MAX_BYTES = 20_000, 512 << 20
"""What a pattern may match in a directory: each file is read, and is copied for compiles."""


class Found(NamedTuple):
    """What a pattern matches below one directory of a tree."""

    tree: str
    files: tuple[tuple[str, str], ...]
    """Names in the copy, and paths on disk."""
    directories: frozenset[str]
    """Where a new file could match, by path."""


def find(roots: Sequence[Root], pattern: str) -> Iterator[Found]:
    """Yield what matches below each root, and below each root's tree. Raises
    `PatternTooWideError`."""
    if pattern.startswith("/") or ".." in pattern.split("/"):
        return
    bases = {(root.name, root.path, root.tree) for root in roots}
    bases |= {(root.tree, root.base, root.tree) for root in roots}
    for base, path, tree in sorted(bases):
        found = matching(path, pattern)
        files = tuple(_files(path, found.names))
        size = sum(size for _, size in files)
        if len(files) > MAX_FILES or size > MAX_BYTES:
            raise PatternTooWideError(
                pattern,
                f"matches {len(files):,} files of {size >> 20:,} MiB in {path}; headers are at "
                f"most {MAX_FILES:,} of {MAX_BYTES >> 20} MiB",
            )
        names = tuple((posixpath.join(base, n), os.path.join(path, n)) for n, _ in files)
        yield Found(tree, names, frozenset(found.directories))


def _files(directory: str, names: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield those that are files, and their sizes."""
    for name in names:
        with suppress(OSError):
            status = os.stat(os.path.join(directory, name))
            if stat.S_ISREG(status.st_mode):
                yield name, status.st_size
