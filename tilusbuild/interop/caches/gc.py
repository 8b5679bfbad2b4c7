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
    the broken entries, and then the oldest entries until the rest has at most `max_size` bytes.

    A stale file stays if it is younger than `older_than`. `now` is in seconds since 1970.
    """
    removals = [
        Removal(file.path, file.reason, file.size)
        for file in cache.stale
        if older_than is None or now - file.modified > older_than
    ]
    # A unit, such as the kernels of a graph, is removed as a whole: its path, and its entries.
    units: dict[str, list[ForeignEntry]] = {}
    for entry in cache.entries:
        units.setdefault(entry.removed_with, []).append(entry)
    modified = {path: max(entry.modified for entry in unit) for path, unit in units.items()}
    sizes = {path: sum(entry.size for entry in unit) for path, unit in units.items()}
    oldest_first = sorted(units, key=lambda unit_path: (modified[unit_path], unit_path))
    reasons: dict[str, str] = {}
    for unit_path in oldest_first:
        problem = next((p for entry in units[unit_path] for p in entry.problems), None)
        if broken and problem is not None:
            reasons[unit_path] = f"broken: {problem.message}"
        elif older_than is not None and now - modified[unit_path] > older_than:
            reasons[unit_path] = "old"
    remaining = [unit_path for unit_path in oldest_first if unit_path not in reasons]
    remaining_size = sum(sizes[unit_path] for unit_path in remaining)
    for unit_path in remaining:
        if max_size is None or remaining_size <= max_size:
            break
        reasons[unit_path] = "the oldest"
        remaining_size -= sizes[unit_path]
    for unit_path, why in reasons.items():
        lock = units[unit_path][0].lock
        removals.append(Removal(unit_path, why, sizes[unit_path], lock))
    return tuple(removals)


def remove_unless_in_use(
    cache: ForeignCache, removals: Iterable[Removal]
) -> Iterator[tuple[Removal, bool]]:
    """Remove each, and yield it with True. Yield False for one that is kept, because its lock is
    held or a file system is mounted in it. Raises `TilusbuildError`."""
    directory = CacheDirectory(cache.root)
    # A rename would take a mounted file system along, and the deletion would empty it.
    mounts = list_mounts_below(cache.root)
    for removal in removals:
        is_locked = removal.lock is not None and directory.is_locked(removal.lock)
        has_mount = any(f"{mount}/".startswith(f"{removal.path}/") for mount in mounts)
        is_free = not is_locked and not has_mount
        if is_free:
            _remove_directory(directory, removal.path)
        yield removal, is_free


def _remove_directory(directory: CacheDirectory, path: str) -> None:
    """Rename a directory into a private one, and delete that. Does nothing if the directory is
    missing. Raises `TilusbuildError`."""
    try:
        # In the cache itself: no rename crosses file systems.
        with (
            TemporaryDirectory("removed", directory.root) as private,
            directory.open_parent(path) as (parent, name),
        ):
            os.rename(name, os.path.join(private.path, "entry"), src_dir_fd=parent)
    except FileNotFoundError:
        pass  # its system has removed it meanwhile
    except OSError as error:
        raise TilusbuildError(f"{directory.join_path(path)}: {error.strerror}") from None
