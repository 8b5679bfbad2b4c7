"""Remove whole entries from a foreign cache, never one that is in use.

An entry is renamed out of its place before anything in it is deleted, so that its system finds it
whole or not at all. One whose lock is held stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from msgspec import Struct

from tilusbuild.errors import TilusbuildError
from tilusbuild.interop.caches.directory import CacheDirectory, ForeignCache, ForeignEntry
from tilusbuild.state.directories import list_mounts_below
from tilusbuild.state.temporary import TemporaryDirectory


class Removal(Struct, frozen=True):
    """An entry or stale file to remove, with the reason. `path` is relative to the cache."""

    path: str
    why: str
    size: int
    lock: str | None = None


def choose_removals(
    cache: ForeignCache,
    *,
    now: float,
    older_than: float | None = None,
    max_size: int | None = None,
    broken: bool = False,
) -> tuple[Removal, ...]:
    """Choose what to remove: stale files, entries older than `older_than` seconds, with `broken`
    the broken ones, and then the oldest entries until the rest has at most `max_size` bytes."""
    removals = {
        file.path: Removal(file.path, file.what, file.size)
        for file in cache.stale
        if older_than is None or now - file.modified > older_than
    }
    remaining_units = []
    for unit in _list_units(cache):
        problem = next((p for entry in unit.entries for p in entry.problems), None)
        if broken and problem is not None:
            removals[unit.path] = unit.make_removal(f"broken: {problem.what}")
        elif older_than is not None and now - unit.modified > older_than:
            removals[unit.path] = unit.make_removal("old")
        else:
            remaining_units.append(unit)
    size = sum(unit.size for unit in remaining_units)
    for unit in remaining_units:
        if max_size is None or size <= max_size:
            break
        removals[unit.path] = unit.make_removal("the oldest")
        size -= unit.size
    return tuple(removals.values())


class _RemovalUnit(Struct, frozen=True):
    """Entries that are removed together, such as the kernels of a graph."""

    path: str
    entries: tuple[ForeignEntry, ...]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def modified(self) -> float:
        return max(entry.modified for entry in self.entries)

    def make_removal(self, why: str) -> Removal:
        return Removal(self.path, why, self.size, self.entries[0].lock)


def _list_units(cache: ForeignCache) -> list[_RemovalUnit]:
    """Return the units, the oldest first."""
    entries_by_path: dict[str, list[ForeignEntry]] = {}
    for entry in cache.entries:
        entries_by_path.setdefault(entry.removed_with, []).append(entry)
    units = [_RemovalUnit(path, tuple(entries)) for path, entries in entries_by_path.items()]
    return sorted(units, key=lambda unit: (unit.modified, unit.path))


def remove_unless_in_use(
    cache: ForeignCache, removals: Iterable[Removal]
) -> Iterator[tuple[Removal, bool]]:
    """Remove what was chosen. Yield each removal with False if it was kept: its lock is held, or
    something is mounted in it. Raises `TilusbuildError`."""
    directory = CacheDirectory(cache.root)
    # A rename would take a mounted file system along, and the deletion would empty it.
    mounts = list_mounts_below(cache.root)
    for removal in removals:
        locked = removal.lock is not None and directory.is_locked(removal.lock)
        mounted = any(f"{mount}/".startswith(f"{removal.path}/") for mount in mounts)
        if not locked and not mounted:
            _remove_directory(directory, removal.path)
        yield removal, not locked and not mounted


def _remove_directory(directory: CacheDirectory, path: str) -> None:
    """Rename a directory out of the cache, and delete it. A missing one is ignored. Raises
    `TilusbuildError`."""
    try:
        # In the cache itself: no rename crosses file systems.
        with (
            TemporaryDirectory("removed", directory.root) as private,
            directory.open_parent(path) as (parent, name),
        ):
            os.rename(name, os.path.join(private.path, "entry"), src_dir_fd=parent)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise TilusbuildError(f"{directory.join_path(path)}: {error.strerror}") from None
