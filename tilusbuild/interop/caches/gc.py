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
    """An entry or stale file to remove. `path` is relative to the cache."""

    path: str
    why: str
    size: int
    lock: str | None = None


def decide(
    cache: ForeignCache,
    *,
    now: float,
    older_than: float | None = None,
    max_size: int | None = None,
    broken: bool = False,
) -> tuple[Removal, ...]:
    """Return what to remove: stale files, entries older than `older_than` seconds, the oldest
    entries until the rest has at most `max_size` bytes, and with `broken` the broken ones."""
    chosen = {
        file.path: Removal(file.path, file.what, file.size)
        for file in cache.stale
        if older_than is None or now - file.modified > older_than
    }
    left = []
    for unit in _units(cache):
        problem = next((p for entry in unit.entries for p in entry.problems), None)
        if broken and problem is not None:
            chosen[unit.path] = unit.removal(f"broken: {problem.what}")
        elif older_than is not None and now - unit.modified > older_than:
            chosen[unit.path] = unit.removal("old")
        else:
            left.append(unit)
    size = sum(unit.size for unit in left)
    for unit in left:
        if max_size is None or size <= max_size:
            break
        chosen[unit.path] = unit.removal("the oldest")
        size -= unit.size
    return tuple(chosen.values())


class _Unit(Struct, frozen=True):
    """Entries that are removed together, as the kernels of a graph are."""

    path: str
    entries: tuple[ForeignEntry, ...]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def modified(self) -> float:
        return max(entry.modified for entry in self.entries)

    def removal(self, why: str) -> Removal:
        return Removal(self.path, why, self.size, self.entries[0].lock)


def _units(cache: ForeignCache) -> list[_Unit]:
    """Return the units, the oldest first."""
    found: dict[str, list[ForeignEntry]] = {}
    for entry in cache.entries:
        found.setdefault(entry.removed_with, []).append(entry)
    units = [_Unit(path, tuple(entries)) for path, entries in found.items()]
    return sorted(units, key=lambda unit: (unit.modified, unit.path))


def remove(cache: ForeignCache, removals: Iterable[Removal]) -> Iterator[tuple[Removal, bool]]:
    """Remove each, and yield it with whether it is gone: False if in use, or if something is
    mounted in it. Raises `TilusbuildError`."""
    directory = CacheDirectory(cache.root)
    mounts = list_mounts_below(cache.root)
    for removal in removals:
        locked = removal.lock is not None and directory.is_locked(removal.lock)
        mounted = any(f"{mount}/".startswith(f"{removal.path}/") for mount in mounts)
        if not locked and not mounted:
            _remove(directory, removal.path)
        yield removal, not locked and not mounted


def _remove(directory: CacheDirectory, path: str) -> None:
    try:
        # In the cache itself: no rename crosses file systems.
        with (
            TemporaryDirectory("removed", directory.root) as private,
            directory.around(path) as (above, name),
        ):
            os.rename(name, os.path.join(private.path, "entry"), src_dir_fd=above)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise TilusbuildError(f"{directory.path(path)}: {error.strerror}") from None
