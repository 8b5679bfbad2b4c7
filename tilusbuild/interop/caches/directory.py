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
    """A problem of a cache. `path` is relative to the cache. `moved`: the entry is complete, and
    would work in its old directory."""

    path: str
    what: str
    moved: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


class ForeignEntry(Struct):
    """One kernel: the unit in which the system keeps, looks up and deletes."""

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
        """Return the files that only the system itself loads."""
        return tuple(name for name in self.files if name.endswith((".pickle", ".pkl")))

    def add_problem(self, what: str, file: str | None = None, *, moved: bool = False) -> None:
        """Add a problem of the entry, or of one of its files."""
        path = self.path if file is None else f"{self.path}/{file}"
        self.problems.append(ForeignProblem(path, what, moved))

    def has_files(self, *names: str) -> bool:
        """Return whether all files exist. Each missing file is added as a problem."""
        missing = [name for name in names if not self.directory.is_file(self.path, name)]
        for name in missing:
            self.add_problem("is missing", name)
        return not missing

    def read_library(self, file: str) -> bytes | None:
        """Read a library or cubin, and set the digest and the architectures of the entry. A missing
        or damaged file is added as a problem. Return its bytes; None if it is missing."""
        data = self.directory.read_bytes(self.path, file)
        if data is None:
            self.add_problem("is missing", file)
            return None
        why = find_damage(data)
        if why:
            self.add_problem(why, file)
            return data
        self.library, self.code_archs = sha256_bytes(data), read_code_archs(data)
        return data

    def check_declared_arch(self, file: str) -> None:
        """Add a problem if the entry's text names an architecture that its library has no code
        for."""
        device = [arch for arch in self.code_archs if arch.startswith("sm_")]
        if not self.declared_arch.startswith("sm_") or not device:
            return
        if not any(_are_same_arch(self.declared_arch, arch.split()[0]) for arch in device):
            self.add_problem(
                f"holds code for {', '.join(device)}; its entry says {self.declared_arch}", file
            )

    def measure_files(self) -> ForeignEntry:
        """Set the list of files, their total size and their latest time. Return the entry."""
        self.files = tuple(self.directory.list_files(self.path))
        self.size, self.modified = self.directory.measure_files(self.files)
        return self


class StaleFile(Struct, frozen=True):
    """A file or directory that belongs to no entry and is not needed, such as an abandoned
    stage."""

    path: str
    what: str
    size: int
    modified: float


class ForeignCache(Struct, frozen=True):
    """The content of a foreign cache."""

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
        """Return the problems of all entries, and those outside of entries."""
        own = (problem for entry in self.entries for problem in entry.problems)
        return (*own, *self.problems)

    @property
    def duplicates(self) -> tuple[tuple[ForeignEntry, ...], ...]:
        """Return the groups of two and more entries with the same library."""
        groups: dict[str, list[ForeignEntry]] = {}
        for entry in self.entries:
            if entry.library is not None:
                groups.setdefault(entry.library, []).append(entry)
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)


# Reading.

_Bytes = bytes  # the class below has a method of that name


def _split_names(names: tuple[str, ...]) -> list[str]:
    return [part for name in names for part in name.split("/") if part]


class CacheDirectory:
    """A directory of a foreign cache. Paths are relative to it, and no link is followed."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)

    def join_path(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    def list_names(self, *names: str) -> list[str]:
        """Return the sorted names in a directory. For anything else, and behind a link, there are
        none."""
        try:
            return list_below(self.root, *_split_names(names))
        except OSError:
            return []

    def list_directories(self, *names: str) -> list[str]:
        return [name for name in self.list_names(*names) if self.is_directory(*names, name)]

    def is_directory(self, *names: str) -> bool:
        status = self.get_status(*names)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def is_file(self, *names: str) -> bool:
        status = self.get_status(*names)
        return status is not None and stat.S_ISREG(status.st_mode)

    def get_status(self, *names: str) -> os.stat_result | None:
        """Return the status of a file, a directory or a link; None if there is nothing, or behind a
        link."""
        try:
            with self.open_parent(*names) as (above, name):
                return os.stat(name, dir_fd=above, follow_symlinks=False)
        except OSError:
            return None

    @contextmanager
    def open_parent(self, *names: str) -> Iterator[tuple[int, str]]:
        """Open the parent directory of a path. Yield its descriptor and the last name. Raises
        `OSError`, also for a link on the way."""
        *parents, name = _split_names(names) or ["."]
        with open_below(self.root, *parents) as handle:
            yield handle, name

    def list_files(self, *names: str) -> list[str]:
        """Return the paths of all files and links below a directory, sorted. After 10,000 the rest
        is ignored."""
        files: list[str] = []
        waiting = ["/".join(_split_names(names))]
        while waiting and len(files) <= MAX_FILES:
            directory = waiting.pop()
            for name in self.list_names(directory):
                path = f"{directory}/{name}" if directory else name
                (waiting if self.is_directory(path) else files).append(path)
        return sorted(files)

    def read_text(self, *names: str) -> str | None:
        """Return at most the first 16 MiB of a text file; None if it cannot be read."""
        data = self._read_up_to(_MAX_TEXT, names)
        return None if data is None else data.decode("utf-8", "replace")

    def read_json(self, *names: str) -> Any:
        """Return the value of a JSON file; None if it is missing or not JSON."""
        text = self.read_text(*names)
        try:
            return None if text is None else json.loads(text)
        except (ValueError, RecursionError):
            return None

    def read_bytes(self, *names: str) -> _Bytes | None:
        """Return the content of a file; None if it cannot be read, or is larger than 1 GiB."""
        data = self._read_up_to(_MAX_LIBRARY + 1, names)
        return None if data is None or len(data) > _MAX_LIBRARY else data

    def _read_up_to(self, limit: int, names: tuple[str, ...]) -> _Bytes | None:
        try:
            with os.fdopen(self._open_file(*names), "rb") as file:
                return file.read(limit)
        except OSError:
            return None

    def _open_file(self, *names: str) -> int:
        with self.open_parent(*names) as (above, name):
            return open_regular(name, follow=False, dir_fd=above)

    def measure_files(self, files: Iterable[str]) -> tuple[int, float]:
        """Return the total bytes of files, and the latest time at which one was written (seconds
        since 1970)."""
        size, latest = 0, 0.0
        for name in files:
            status = self.get_status(name)
            if status is None:
                continue
            size, latest = size + status.st_size, max(latest, status.st_mtime)
        return size, latest

    def is_locked(self, name: str) -> bool:
        """Return whether a process holds a lock on a file now."""
        try:
            handle = self._open_file(name)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False


def _are_same_arch(declared: str, compiled: str) -> bool:
    """Return whether a declared and a compiled architecture agree. A text may omit the suffix of
    sm_90a."""
    return declared == compiled or declared == compiled.rstrip("af")


def find_damage(data: bytes) -> str | None:
    """Return the reason why a library is incomplete; None if it is complete."""
    if not data:
        return "is empty"
    try:
        size = Elf(data).declared_size
    except BinaryError as error:
        return f"is not a library: {error}"
    return f"is cut short: {len(data)} bytes of {size}" if size > len(data) else None


def read_code_archs(data: bytes) -> tuple[str, ...]:
    """Return the architectures of the code in a library; the machine of its host code if it has no
    GPU code."""
    try:
        images = read_archs(data)
    except BinaryError:
        return ()
    arch_names = [image.arch + (" ptx" if image.kind == "ptx" else "") for image in images]
    if arch_names:
        return tuple(dict.fromkeys(arch_names))
    try:
        return (read_needs(data).machine,)
    except BinaryError:
        return ()


def find_command_arch(command: str) -> str:
    """Return the architecture that a command line of a compiler names; "" if none."""
    match = _GENCODE.search(command)
    return (match[1] or match[2]) if match else ""


def match_names(names: list[str], pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the names that a pattern matches completely."""
    return (name for name in names if pattern.fullmatch(name))
