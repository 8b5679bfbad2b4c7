"""What a fingerprint was made of, as stamps: whether the tools are still those that the plan saw.

A fingerprint's digests are asked for through an `Evidence`, which keeps what the memory saw of each
file at that time. Looking again takes well under a millisecond, so it is done after every compile:
nothing is published that was compiled while a tool was replaced. An overwritten header of a large
directory shows only in a look at the whole, which takes some milliseconds; installers make new
files, and those show in the directories.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from tilusbuild.errors import TilusbuildError
from tilusbuild.state.digests import DigestMemory, Sight
from tilusbuild.state.stamp import Stamp, stamp_of

_SMALL = 64
"""Files of a tree that is always looked at as a whole."""


class ToolsChangedError(TilusbuildError):
    """A part of the toolchain is not what the plan saw. No program is to blame, and none can be
    compiled any more."""


class Evidence:
    """Digests of one toolchain, from a memory, with what they were taken of. Safe for threads once
    all are taken."""

    def __init__(self, memory: DigestMemory) -> None:
        self._memory = memory
        self._sights: dict[str, Sight] = {}
        self._directories: dict[str, Stamp] = {}

    def digest(self, path: str) -> str:
        """As `DigestMemory.digest`."""
        digest, sight = self._memory.sight(path)
        self._sights[sight.key] = sight
        return digest

    def tree(self, root: str, label: str, select: Callable[[str], bool]) -> str:
        """As `DigestMemory.tree`."""
        digest, sight = self._memory.sight_of_tree(root, label, select)
        self._sights[sight.key] = sight
        self._directories.update(sight.directories)
        return digest

    def names(self, path: str, digest: str) -> None:
        """Take note that `path` leads to a tool that has this digest. Raises `ToolsChangedError`
        when it does not."""
        if self.digest(os.path.realpath(path)) != digest:
            raise ToolsChangedError(f"{path} changed while it was looked at; build again")
        self._directories[path] = stamp_of(path)

    def changed(self, *, whole: bool) -> str | None:
        """Return the path of something that is not what it was, or None. Not `whole`: of large
        directories only what was added, removed or replaced shows."""
        now = {path: stamp_of(path) for path in self._directories}
        moved = [path for path in now if now[path] != self._directories[path]]
        for path in moved:
            if not os.path.isdir(path):
                return path
        # Something that no fingerprint covers may have come or gone beside what one does.
        whole = whole or bool(moved)
        for sight in self._sights.values():
            if (whole or len(sight) <= _SMALL) and not sight.holds():
                return sight.path
        self._directories.update(now)
        return None
