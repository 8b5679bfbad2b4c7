"""A foreign cache as values: its entries, and what is wrong or left over."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ForeignProblem:
    """Something broken. `path` is relative to the cache; `moved`: only the place is wrong."""

    path: str
    what: str
    moved: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


@dataclass(frozen=True, slots=True)
class ForeignEntry:
    """One kernel: what the system keeps, finds and throws away as one."""

    path: str
    """Its directory, relative to the cache."""
    kind: str
    """What the system calls it: "program", "kernel", "op", …"""
    name: str
    says: str
    """The architecture that the entry's own text names: "sm_90a", "cpu"; "" when it names none."""
    holds: tuple[str, ...]
    """What the binary holds: "sm_90a", "sm_80 ptx", or a processor's name; read from its bytes."""
    by: str
    """What compiled it, as far as the entry tells."""
    files: tuple[str, ...]
    """Relative to the cache, sorted."""
    size: int
    """Bytes."""
    modified: float
    """When the latest of its files was written, seconds since 1970."""
    library: str | None
    """The sha256 of the library or cubin; None when there is none that can be read."""
    problems: tuple[ForeignProblem, ...] = ()
    pickles: tuple[str, ...] = ()
    lock: str | None = None
    """The file that the system locks while it writes the entry."""
    unit: str = ""
    """The directory that is removed with the entry, if that is more than its own."""

    @property
    def removed_with(self) -> str:
        """Return the directory that is removed with the entry."""
        return self.unit or self.path


@dataclass(frozen=True, slots=True)
class StaleFile:
    """A file or directory that belongs to no entry and that nobody needs, as an abandoned staging
    directory."""

    path: str
    what: str
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class ForeignCache:
    """A whole foreign cache."""

    system: str
    version: str
    """The system's version where the cache tells; else ""."""
    root: str
    """Absolute."""
    entries: tuple[ForeignEntry, ...]
    stale: tuple[StaleFile, ...] = ()
    problems: tuple[ForeignProblem, ...] = ()
    """Of no entry: a link to nothing, a table that cannot be read."""
    shared: tuple[str, ...] = field(default=())
    """Files of no entry that make the cache work: scripts, tables, graphs."""

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def broken(self) -> tuple[ForeignProblem, ...]:
        """Return all that is wrong."""
        own = (problem for entry in self.entries for problem in entry.problems)
        return (*own, *self.problems)

    @property
    def duplicates(self) -> tuple[tuple[ForeignEntry, ...], ...]:
        """Return entries whose libraries are the same bytes, in groups of two and more."""
        groups: dict[str, list[ForeignEntry]] = {}
        for entry in self.entries:
            if entry.library is not None:
                groups.setdefault(entry.library, []).append(entry)
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)
