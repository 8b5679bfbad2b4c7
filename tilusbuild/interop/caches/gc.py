"""What may go from a foreign cache, and how it goes: whole entries, never one that is in use.

An entry is renamed out of its place before anything in it is deleted, so that its system finds it
whole or not at all. One whose lock somebody holds stays.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tilusbuild.errors import TilusbuildError
from tilusbuild.interop.caches.look import Folder
from tilusbuild.interop.caches.model import Cache, Entry


@dataclass(frozen=True, slots=True)
class Removal:
    """An entry or a piece of litter that goes. `path` is relative to the cache."""

    path: str
    why: str
    size: int
    lock: str | None = None


class NotRemoved(TilusbuildError):  # noqa: N818 - named for what is the case
    """The cache could not be changed."""


def decide(
    cache: Cache,
    *,
    now: float,
    older_than: float | None = None,
    max_size: int | None = None,
    broken: bool = False,
) -> tuple[Removal, ...]:
    """What goes: litter always; entries older than so many seconds; the oldest until the rest has
    no more than so many bytes; those that are broken, when asked."""
    chosen = {
        piece.path: Removal(piece.path, piece.what, piece.size)
        for piece in cache.litter
        if older_than is None or now - piece.modified > older_than
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


@dataclass(frozen=True, slots=True)
class _Unit:
    """Entries that go together, as the kernels of a graph do."""

    path: str
    entries: tuple[Entry, ...]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def modified(self) -> float:
        return max(entry.modified for entry in self.entries)

    def removal(self, why: str) -> Removal:
        return Removal(self.path, why, self.size, self.entries[0].lock)


def _units(cache: Cache) -> list[_Unit]:
    """The oldest first."""
    found: dict[str, list[Entry]] = {}
    for entry in cache.entries:
        found.setdefault(entry.goes, []).append(entry)
    units = [_Unit(path, tuple(entries)) for path, entries in found.items()]
    return sorted(units, key=lambda unit: (unit.modified, unit.path))


def remove(cache: Cache, removals: Iterable[Removal]) -> Iterator[tuple[Removal, bool]]:
    """Each with whether it went; False for one that is in use. Raises `NotRemoved`."""
    folder = Folder(cache.root)
    for removal in removals:
        if removal.lock is not None and folder.is_locked(removal.lock):
            yield removal, False
            continue
        try:
            private = tempfile.mkdtemp(prefix=".removed-", dir=cache.root)
        except OSError as error:
            raise NotRemoved(f"{cache.root}: {error.strerror}") from None
        try:
            os.rename(folder.path(removal.path), os.path.join(private, "entry"))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise NotRemoved(f"{folder.path(removal.path)}: {error.strerror}") from None
        finally:
            shutil.rmtree(private, ignore_errors=True)
        yield removal, True
