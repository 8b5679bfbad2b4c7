"""The directory of a cache and the one way anything gets into it.

- A change is made in a private directory below `staging` and moved into place by one rename; a
  reader sees the old or the new, whoever is killed.
- A private directory belongs to who holds its lock. One that nobody holds is what a killed builder
  left, and the next builder removes it.
- What is replaced or removed is moved to `staging` first, so that no half-removed entry is seen.
- A directory that is not empty and not a cache is never written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tilusbuild.cache import layout
from tilusbuild.cache.disk import CacheReadOnlyError, Disk, RealDisk, wrap_oserror
from tilusbuild.cache.locks import Held, LockFile, LockRange
from tilusbuild.errors import InputError, input_error
from tilusbuild.state.files import OCCUPIED

_OURS = frozenset((*layout.DIRECTORIES, layout.INDEX, layout.LOCK, layout.TAG, layout.IGNORE))
_ATTEMPTS = 10
"""How often a place is made free for a move: others may fill it again if they hold no lock."""
_ELSEWHERE = "name another directory with --cache-dir or `build.cache-dir`"


class Private:
    """A private directory. After `discard` nothing is at `path`; after a move the tree has it."""

    def __init__(self, path: str, disk: Disk, held: Held) -> None:
        self.path = path
        self._disk = disk
        self._held = held

    def discard(self) -> None:
        """Remove what is left of it and let go. What cannot be removed waits for a later sweep."""
        with suppress(OSError):
            self._disk.remove(self.path)
        self._held.release()


class Tree:
    """Paths, locks and moves of the cache at `root`. Making one touches nothing."""

    def __init__(self, root: str, disk: Disk | None = None) -> None:
        self.root = os.path.abspath(root)
        self.disk: Disk = disk or RealDisk()
        self.locks = LockFile(self.path(layout.LOCK))
        self._swept = False
        self._was_whole = False

    def path(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    def program_path(self, program: str) -> str:
        return self.path(layout.PROGRAMS, program)

    def include_path(self, digest: str) -> str:
        return self.path(layout.INCLUDE, digest)

    def script_path(self, directory: str, digest: str) -> str:
        return self.path(layout.SCRIPTS, directory, digest)

    def names(self, *directory: str) -> list[str]:
        """Return the names in a directory of the tree, sorted; none when it is missing."""
        try:
            return sorted(os.listdir(self.path(*directory)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    # Being there at all.

    def exists(self) -> bool:
        """Return whether there is a directory. Raises `InputError` when there cannot be one, or it
        is not a cache."""
        try:
            names = os.listdir(self.root)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            raise self._unusable(error) from None
        strangers = sorted(set(names) - _OURS)
        if layout.TAG not in names and strangers:
            raise input_error(
                f"{self.root} is not a cache of tilusbuild: it holds {strangers[0]!r}",
                hint=f"a cache needs a directory of its own; {_ELSEWHERE}",
            )
        return True

    def ensure(self) -> None:
        """Make what is missing of the tree.

        A cache that is there and read-only is left as it is. Raises `InputError` when there can be
        no cache, `CacheError` when the disk refuses.
        """
        if not self.exists():
            try:
                self._make_root()
            except OSError as error:
                raise self._unusable(error) from None
        with suppress(CacheReadOnlyError), wrap_oserror(self.root):
            self.disk.make_directory(self.path(layout.STAGING))
            for name, text in ((layout.TAG, layout.TAG_TEXT), (layout.IGNORE, layout.IGNORE_TEXT)):
                if not _has_size(self.path(name), len(text)):
                    self.put_file(self.path(name), text)
            for name in layout.DIRECTORIES:
                if not os.path.isdir(self.path(name)):
                    self.disk.make_directory(self.path(name))
            self._was_whole = True

    def ensure_exists(self) -> None:
        """Do what `ensure` does, but check a tree that was whole only for having been deleted:
        cheap enough to be called for each program. Raises the same."""
        needed = (layout.STAGING, layout.TAG)
        if not self._was_whole or not all(os.path.exists(self.path(name)) for name in needed):
            self.ensure()

    def _make_root(self) -> None:
        missing = [self.root]
        while not os.path.isdir(parent := os.path.dirname(missing[-1])):
            if parent == missing[-1]:
                break
            missing.append(parent)
        for directory in reversed(missing):
            self.disk.make_directory(directory)

    def _unusable(self, error: OSError | ValueError) -> InputError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if isinstance(error, NotADirectoryError | FileExistsError):
            reason = "a file is in the way"
        return input_error(
            f"{self.root!r} cannot be the cache directory: {reason}", hint=_ELSEWHERE
        )

    # Locks.

    @contextmanager
    def held(self, *spans: LockRange) -> Iterator[None]:
        """Hold locks during a block; waits for them. Raises `CacheError`."""
        self.ensure_exists()
        with wrap_oserror(self.locks.path):
            held = self.locks.take(*spans)
        if held is not None:
            with held:
                yield

    # Changes.

    def private(self, *, uses: bool = True) -> Private:
        """Return a new private directory. `uses`: garbage collection waits until it is let go
        of."""
        self.ensure_exists()
        return self._private(uses)

    def _private(self, uses: bool) -> Private:
        name = os.urandom(8).hex()
        spans = [LockRange("use", shared=True)] if uses else []
        path = self.path(layout.STAGING, name)
        with wrap_oserror(self.path(layout.STAGING)):
            held = self.locks.take(*spans, LockRange("stage", name))
            assert held is not None  # noqa: S101 - it waits
            try:
                self.disk.make_directory(path)
            except BaseException:
                held.release()
                raise
        self._sweep()
        return Private(path, self.disk, held)

    def _sweep(self) -> None:
        """Once: remove the private directories that nobody holds."""
        if self._swept:
            return
        self._swept = True
        staging = self.path(layout.STAGING)
        with suppress(OSError):
            for name in filter(layout.is_staging, os.listdir(staging)):
                held = self.locks.take(LockRange("stage", name), wait=False)
                if held is not None:
                    with held:
                        self.disk.remove(os.path.join(staging, name))

    def put_file(self, path: str, data: bytes) -> None:
        """Make or replace a file by one rename. Its directory is there. Raises `OSError`."""
        private = self._private(uses=False)
        try:
            made = os.path.join(private.path, "file")
            self.disk.write(made, data)
            self.disk.sync([made])
            self.move(made, path)
        finally:
            private.discard()

    def move(self, made: str, path: str, *, durable: bool = True) -> None:
        """Move what was made into its place, and out of the way what is there.

        Durable then, or when its directory is synced.
        """
        for attempt in range(_ATTEMPTS):
            try:
                self.disk.rename(made, path)
                break
            except OSError as error:
                if error.errno not in OCCUPIED or attempt == _ATTEMPTS - 1:
                    raise
            self.remove_entry(path)
        if durable:
            self.disk.sync_directory(os.path.dirname(path))

    def remove_entry(self, path: str) -> None:
        """Remove an entry: at once for readers, from the disk thereafter."""
        private = self._private(uses=False)
        try:
            with suppress(FileNotFoundError):
                self.disk.rename(path, os.path.join(private.path, "old"))
        finally:
            private.discard()


def _has_size(path: str, size: int) -> bool:
    try:
        return os.stat(path).st_size == size
    except OSError:
        return False
