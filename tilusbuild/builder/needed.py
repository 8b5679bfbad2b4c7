"""The directories below `include/` that the programs of a build were compiled with: which they are,
and how those that are missing come back.

A program names them in its `compile.sh`. What an instance's programs name is remembered by its
hash, in the log `needed` of the cache's state; a directory that is not whole is laid out again from
the same headers, or the same launcher, and no program is compiled for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress

from tilusbuild.builder.resources import ProgramCompiler
from tilusbuild.cache.disk import CacheReadOnlyError, InputChangedError
from tilusbuild.cache.entries import lookup
from tilusbuild.cache.includes import include_problems
from tilusbuild.cache.layout import is_hash
from tilusbuild.cache.tree import Tree
from tilusbuild.errors import InputError
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.planner import ProgramJob
from tilusbuild.state.log import StateFile


class NeededDirectories:
    """The digests of the directories that each instance's programs were compiled with."""

    def __init__(self, cache: Tree) -> None:
        self._cache = cache
        self._file = StateFile(os.path.join(cache.state_path, "needed"), "needed")

    def of(self, instance: PlannedInstance) -> list[str]:
        """Return the digests, sorted."""
        known = self._file.get(instance.hash)
        if isinstance(known, list) and all(isinstance(d, str) and is_hash(d) for d in known):
            return known
        found = self.read(instance)
        if all(lookup(self._cache, program) for program in instance.programs[:1]):
            self._file.put(instance.hash, found)
        return found

    def read(self, instance: PlannedInstance) -> list[str]:
        """Return the digests as the programs name them now."""
        return sorted({d for program in instance.programs for d in self._named(program)})

    def mend(
        self, jobs: Iterable[ProgramJob], missing: set[str], compiler: ProgramCompiler
    ) -> None:
        """Lay out what is missing, each for the first of the jobs that names it. Raises
        `CacheError` and `CancelledError`."""
        for job in jobs:
            if not missing:
                return
            if named := missing.intersection(self._named(job.hash)):
                # What no longer renders so is not needed by the next build either.
                with suppress(InputError, InputChangedError, CacheReadOnlyError):
                    compiler.lay_out(job.render())
                missing -= named

    def save(self) -> None:
        """Write what is new; do nothing where that is not possible."""
        self._file.save()

    def _named(self, program: str) -> list[str]:
        from tilusbuild.cache.garbage import headers_used

        return headers_used(self._cache.program_path(program))


def mend_needed(
    cache: Tree,
    instances: Iterable[PlannedInstance],
    jobs_of: Callable[[PlannedInstance], Iterable[ProgramJob]],
    compiler: ProgramCompiler,
) -> None:
    """Lay out again what is missing of what the programs of these instances were compiled with.
    Raises `CacheError` and `CancelledError`."""
    needed = NeededDirectories(cache)
    whole: dict[str, bool] = {}
    for instance in instances:
        for digest in needed.of(instance):
            if digest not in whole:
                whole[digest] = _is_whole(cache, digest)
        if missing := {digest for digest in needed.of(instance) if not whole[digest]}:
            needed.mend(jobs_of(instance), missing.intersection(needed.read(instance)), compiler)
    needed.save()


def _is_whole(cache: Tree, digest: str) -> bool:
    """Return whether every file is there; contents are compared before a compile may use them."""
    try:
        return not include_problems(cache.include_path(digest), digest, deep=False)
    except OSError:
        return False
