"""The cache: one object for everything that is done with a cache tree.

It keeps the guarantees that docs/guarantees.md states; the modules beside this one keep one each.
Making a `Cache` touches nothing. All methods may be called from several threads at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tilusbuild.cache import layout
from tilusbuild.cache.disk import CacheReadOnlyError, Disk, wrap_oserror
from tilusbuild.cache.entries import Entry, Stage, find_entry
from tilusbuild.cache.locks import LockName
from tilusbuild.cache.tree import Tree
from tilusbuild.runtime.regular import read_text

if TYPE_CHECKING:
    from tilusbuild.cache.garbage import Collected
    from tilusbuild.cache.index import BuiltProject, CacheStats, ScriptListing
    from tilusbuild.cache.scripts import ScriptRecord
    from tilusbuild.cache.strangers import Stranger
    from tilusbuild.cache.verify import CacheProblem


class Cache:
    """The cache tree at `root`."""

    def __init__(self, root: str, disk: Disk | None = None) -> None:
        self.tree = Tree(root, disk)

    @property
    def root(self) -> str:
        return self.tree.root

    @property
    def state_path(self) -> str:
        """The directory for what builds remember between runs; no result rests on what is in it."""
        return self.tree.path(layout.STATE)

    def ensure(self) -> None:
        """Make what is missing of the tree; a read-only cache is left as it is.

        Raises `InputError` when `root` cannot be a cache, `CacheError` when the disk refuses.
        """
        self.tree.ensure()

    # Programs.

    def program_path(self, program: str, /) -> str:
        """Return the directory that a published program has."""
        return self.tree.program_path(program)

    def lookup(self, program: str, /) -> Entry | None:
        """Return the whole entry of a program, or None. Takes no lock and writes nothing."""
        return find_entry(self.tree.program_path(program), program)

    def log(self, program: str, /) -> str:
        """Return the compiler's output for a published program; "" without any."""
        path = os.path.join(self.tree.program_path(program), layout.LOG)
        try:
            return read_text(path, "replace")
        except OSError:
            return ""

    @contextmanager
    def locked(self, program: str, /, wait: bool = True) -> Iterator[bool]:
        """Take the lock of a program for a block; yield whether we have it. Raises `CacheError`."""
        self.tree.ensure_exists()
        with wrap_oserror(self.tree.locks.path):
            held = self.tree.locks.take(LockName("program", program), wait=wait)
        if held is None:
            yield False
        else:
            with held:
                yield True

    def stage(self) -> Stage:
        """Return a new empty stage. Raises `CacheError`, `InputError`."""
        return Stage(self.tree, self.tree.private())

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep garbage collection away during a build; waits for one that runs.

        A read-only cache is used without a lock: whoever can write it has to look out.
        """
        self.tree.ensure()
        try:
            with wrap_oserror(self.tree.locks.path):
                held = self.tree.locks.take(LockName("use", shared=True))
        except CacheReadOnlyError:
            held = None
        if held is None:
            yield
        else:
            with held:
                yield

    # Headers, scripts, the index.

    def include_path(self, digest: str) -> str:
        """Return the directory that a published header directory has."""
        return self.tree.include_path(digest)

    def publish_include(self, digest: str, files: Mapping[str, bytes | str]) -> str:
        """As `includes.publish_include`: the directory with these headers, checked by content."""
        from tilusbuild.cache.includes import publish_include

        return publish_include(self.tree, digest, files)

    def publish_script(
        self, record: ScriptRecord, statuses: Mapping[str, str] | None = None
    ) -> str:
        """As `scripts.publish_script`: the script's directory, saying what is now the case."""
        from tilusbuild.cache.scripts import publish_script

        return publish_script(self.tree, record, statuses)

    def projects(self) -> dict[str, BuiltProject]:
        """As `index.read_index`: what the last build of each project made. Raises
        `CorruptFileError`."""
        from tilusbuild.cache.index import read_index

        return read_index(self.tree)

    def record_build(
        self,
        manifest: str,
        name: str,
        scripts: Sequence[tuple[str, str]],
        *,
        replace: bool = True,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """As `index.record_build`: note what a build of a project made, as (directory, hash)."""
        from tilusbuild.cache.index import record_build

        record_build(self.tree, manifest, name, scripts, replace=replace, ready=ready)

    def forget(self, manifests: Sequence[str]) -> None:
        """As `index.forget`: drop projects from the index."""
        from tilusbuild.cache.index import forget

        forget(self.tree, manifests)

    # Looking at it and after it.

    def verify(self, *, deep: bool = True) -> list[CacheProblem]:
        """As `verify.verify`: everything that is not right."""
        from tilusbuild.cache.verify import verify

        return verify(self.tree, deep=deep)

    def repair(self, problems: Iterable[CacheProblem]) -> list[str]:
        """As `verify.repair`: remove what problems are about."""
        from tilusbuild.cache.verify import repair

        return repair(self.tree, problems)

    def sweep(self) -> None:
        """Remove what killed processes left, where the cache can be written."""
        if self.tree.exists():
            self.tree.sweep()

    def litter(self) -> list[str]:
        """As `strangers.litter`: what killed processes left, relative to the cache."""
        from tilusbuild.cache.strangers import litter

        return litter(self.tree) if self.tree.exists() else []

    def gc(
        self,
        *,
        older_than: float | None = None,
        max_size: int | None = None,
        dry_run: bool = False,
        wait: bool = False,
    ) -> Collected:
        """As `garbage.gc`: remove what no project's last build made."""
        from tilusbuild.cache.garbage import gc

        return gc(self.tree, older_than=older_than, max_size=max_size, dry_run=dry_run, wait=wait)

    def clear(self, *, wait: bool = False) -> list[Stranger]:
        """As `garbage.clear`: remove everything that is ours; what is left."""
        from tilusbuild.cache.garbage import clear

        return clear(self.tree, wait=wait)

    def scripts(self) -> list[ScriptListing]:
        """As `listing.scripts`."""
        from tilusbuild.cache.index import scripts

        return scripts(self.tree)

    def find(self, prefix: str) -> list[str]:
        """Return the hashes of the programs that begin so."""
        from tilusbuild.cache.index import find

        return find(self.tree, prefix)

    def stats(self) -> CacheStats:
        """As `listing.stats`: counts and sizes."""
        from tilusbuild.cache.index import stats

        return stats(self.tree)
