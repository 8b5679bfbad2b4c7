"""A foreign cache as values, and the reader that makes them of a directory that another system
wrote.

What is read is bounded, named by the reader and never by a file's content, and no link is followed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct, field

from tilusbuild.binary import BinaryError, read_archs, read_needs
from tilusbuild.binary.elf import Elf
from tilusbuild.runtime.regular import open_regular
from tilusbuild.state.directories import list_below, open_below
from tilusbuild.state.files import sha256_bytes

_GENCODE = re.compile(r"code=\[?(sm_\d+[af]?)|-arch[= ](sm_\d+[af]?)")
_MAX_TEXT = 16 << 20
_MAX_LIBRARY = 1 << 30
MAX_FILES = 10_000
"""Below one directory; further files are ignored."""


# What is read, as values.


class ForeignProblem(Struct, frozen=True):
    """Something broken. `path` is relative to the cache; `moved`: it works in its old place."""

    path: str
    what: str
    moved: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


class ForeignEntry(Struct):
    """One kernel: what the system keeps, looks up and deletes as one. Its system's reader makes it,
    and notes what it finds in it."""

    directory: CacheDirectory
    path: str
    """Its directory, relative to the cache."""
    kind: str
    """What the system calls it: "program", "kernel", "op", …"""
    name: str
    declared_arch: str = ""
    """The architecture that the entry's text names: "sm_90a", "cpu"; "" when it names none."""
    code_archs: tuple[str, ...] = ()
    """What the binary has code for, as read from it: "sm_90a", "sm_80 ptx", or a CPU's name."""
    compiled_by: str = ""
    """The compiler or system that made it, as far as the entry says; else ""."""
    files: tuple[str, ...] = ()
    """Relative to the cache, sorted."""
    size: int = 0
    """Bytes."""
    modified: float = 0.0
    """When the latest of its files was written, seconds since 1970."""
    library: str | None = None
    """The sha256 of the library or cubin; None when there is none that can be read."""
    problems: list[ForeignProblem] = field(default_factory=list)
    lock: str | None = None
    """The file that the system locks while it writes the entry."""
    unit: str = ""
    """The directory that is removed with the entry, if that is more than its own."""

    @property
    def removed_with(self) -> str:
        """Return the directory that is removed with the entry."""
        return self.unit or self.path

    @property
    def pickles(self) -> tuple[str, ...]:
        """Return those of its files that only the system itself loads."""
        return tuple(name for name in self.files if name.endswith((".pickle", ".pkl")))

    def wrong(self, what: str, file: str | None = None, *, moved: bool = False) -> None:
        """Note a problem of the entry, or of one of its files."""
        path = self.path if file is None else f"{self.path}/{file}"
        self.problems.append(ForeignProblem(path, what, moved))

    def has(self, *names: str) -> bool:
        """Return whether all files are there; note each missing one as a problem."""
        missing = [name for name in names if not self.directory.is_file(self.path, name)]
        for name in missing:
            self.wrong("is missing", name)
        return not missing

    def read_library(self, file: str) -> bytes | None:
        """Read a library or cubin: note what it holds, or what is wrong with it."""
        data = self.directory.bytes(self.path, file)
        if data is None:
            self.wrong("is missing", file)
            return None
        why = damage(data)
        if why:
            self.wrong(why, file)
            return data
        self.library, self.code_archs = sha256_bytes(data), code_archs_of(data)
        return data

    def compare(self, file: str) -> None:
        """Compare the architecture in the entry's text with that in its binary."""
        device = [arch for arch in self.code_archs if arch.startswith("sm_")]
        if not self.declared_arch.startswith("sm_") or not device:
            return
        if not any(_same(self.declared_arch, arch.split()[0]) for arch in device):
            self.wrong(
                f"holds code for {', '.join(device)}; its entry says {self.declared_arch}", file
            )

    def whole(self) -> ForeignEntry:
        """Take its files as they are now, and return it."""
        self.files = tuple(self.directory.below(self.path))
        self.size, self.modified = self.directory.measured(self.files)
        return self


class StaleFile(Struct, frozen=True):
    """A file or directory that no entry has and that is not needed, as an abandoned stage."""

    path: str
    what: str
    size: int
    modified: float


class ForeignCache(Struct, frozen=True):
    """A whole foreign cache."""

    system: str
    version: str
    """The system's version where the cache says; else ""."""
    root: str
    """Absolute."""
    entries: tuple[ForeignEntry, ...]
    stale: tuple[StaleFile, ...] = ()
    problems: tuple[ForeignProblem, ...] = ()
    """Outside of entries: a link to nothing, a table that cannot be read."""
    shared: tuple[str, ...] = field(default=())
    """Files outside of entries that make the cache work: scripts, tables, graphs."""
    out_of_scope: tuple[str, ...] = ()
    """Directories of the system that hold no kernels; nothing here touches them."""

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


# Reading.

_Bytes = bytes  # the class below has a method of that name


def _parts(names: tuple[str, ...]) -> list[str]:
    return [part for name in names for part in name.split("/") if part]


class CacheDirectory:
    """A foreign cache on the disk; paths are relative to it."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)

    def path(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    def names(self, *names: str) -> list[str]:
        """Return the sorted names in a directory; none for what is not one, or is behind a link."""
        try:
            return list_below(self.root, *_parts(names))
        except OSError:
            return []

    def directories(self, *names: str) -> list[str]:
        return [name for name in self.names(*names) if self.is_directory(*names, name)]

    def is_directory(self, *names: str) -> bool:
        found = self.status(*names)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def is_file(self, *names: str) -> bool:
        found = self.status(*names)
        return found is not None and stat.S_ISREG(found.st_mode)

    def status(self, *names: str) -> os.stat_result | None:
        """Return what is there, which may be a link; None for nothing, or behind a link."""
        try:
            with self.around(*names) as (above, name):
                return os.stat(name, dir_fd=above, follow_symlinks=False)
        except OSError:
            return None

    @contextmanager
    def around(self, *names: str) -> Iterator[tuple[int, str]]:
        """Open the directory that something is in; yield it with the last name. Raises `OSError`,
        also for a link on the way."""
        *above, name = _parts(names) or ["."]
        with open_below(self.root, *above) as handle:
            yield handle, name

    def below(self, *names: str) -> list[str]:
        """Return every file and link below a directory, relative to the cache; sorted."""
        found: list[str] = []
        waiting = ["/".join(_parts(names))]
        while waiting and len(found) <= MAX_FILES:
            above = waiting.pop()
            for name in self.names(above):
                path = f"{above}/{name}" if above else name
                (waiting if self.is_directory(path) else found).append(path)
        return sorted(found)

    def text(self, *names: str) -> str | None:
        """Return a text file's beginning; None if there is no such file."""
        data = self._read(_MAX_TEXT, names)
        return None if data is None else data.decode("utf-8", "replace")

    def json(self, *names: str) -> Any:
        """Return a file's value; None for one that is missing or not JSON."""
        text = self.text(*names)
        try:
            return None if text is None else json.loads(text)
        except (ValueError, RecursionError):
            return None

    def bytes(self, *names: str) -> _Bytes | None:
        """Return a file's content; None if it cannot be read or is larger than any library."""
        data = self._read(_MAX_LIBRARY + 1, names)
        return None if data is None or len(data) > _MAX_LIBRARY else data

    def _read(self, limit: int, names: tuple[str, ...]) -> _Bytes | None:
        try:
            with os.fdopen(self._open(*names), "rb") as file:
                return file.read(limit)
        except OSError:
            return None

    def _open(self, *names: str) -> int:
        with self.around(*names) as (above, name):
            return open_regular(name, follow=False, dir_fd=above)

    def measured(self, files: Iterable[str]) -> tuple[int, float]:
        """Return the bytes of all files, and when the latest was written (seconds since 1970)."""
        size, latest = 0, 0.0
        for name in files:
            seen = self.status(name)
            if seen is None:
                continue
            size, latest = size + seen.st_size, max(latest, seen.st_mtime)
        return size, latest

    def is_locked(self, name: str) -> bool:
        """Return whether some process holds a lock on a file now."""
        try:
            handle = self._open(name)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False


def _same(declared: str, compiled: str) -> bool:
    """Return whether two architectures agree: a text may omit the suffix of sm_90a."""
    return declared == compiled or declared == compiled.rstrip("af")


def damage(data: bytes) -> str | None:
    """Return why a library cannot be whole; None if it can."""
    if not data:
        return "is empty"
    try:
        size = Elf(data).declared_size
    except BinaryError as error:
        return f"is not a library: {error}"
    return f"is cut short: {len(data)} bytes of {size}" if size > len(data) else None


def code_archs_of(data: bytes) -> tuple[str, ...]:
    """Return the architectures that a library has code for; without GPU code, its CPU's."""
    try:
        images = read_archs(data)
    except BinaryError:
        return ()
    found = [image.arch + (" ptx" if image.kind == "ptx" else "") for image in images]
    if found:
        return tuple(dict.fromkeys(found))
    try:
        return (read_needs(data).machine,)
    except BinaryError:
        return ()


def command_arch(command: str) -> str:
    """Return the architecture that a compiler's command line names; "" if none."""
    found = _GENCODE.search(command)
    return (found[1] or found[2]) if found else ""


def matching(names: list[str], pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the names that the whole pattern matches."""
    return (name for name in names if pattern.fullmatch(name))
