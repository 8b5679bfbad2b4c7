"""The stages of one build: the private directory of one that was published serves the next.

- A directory serves again only while it is empty: what a compile left beside its entry, or an entry
  that was not published, goes with the directory.
- A directory, its lock and the lock that keeps collections away are held until `close`, or for as
  long as we live: no process sweeps a directory that waits to be used.

Making a directory and the file of its lock took more than all else of a publication but the syncs
on a disk where a new inode is searched for (ext4, nearly full groups: half a millisecond each).
"""

from __future__ import annotations

import errno

from tilusbuild.cache.disk import CacheError
from tilusbuild.cache.entries import Stage
from tilusbuild.cache.tree import Private, Tree


class Stages:
    """May be used from several threads at once."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._spare: list[Private] = []
        self._closed = False

    def make(self) -> Stage:
        """Return an empty stage. Raises `CacheError`, `InputError`."""
        while True:
            try:
                private = self._spare.pop()
            except IndexError:
                return Stage(self._tree, self._tree.private(), self._keep)
            try:
                return Stage(self._tree, private, self._keep)
            except CacheError as error:
                if error.errno != errno.ENOENT:
                    raise  # else it went with the cache, which is made again for the next

    def close(self) -> None:
        """Remove what waits, and let go of it."""
        self._closed = True
        while self._spare:
            self._spare.pop().discard()

    def _keep(self, private: Private) -> None:
        if self._closed or not private.is_empty():
            private.discard()
        else:
            self._spare.append(private)
