"""A foreign cache as values, and the reader of a directory that another system wrote.

Each read is bounded. Paths come from the reader and never from a file's content, and no link is
followed: whoever can write the cache cannot lead a reader out of it.
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

from tilusbuild.binary.elf import BinaryError, Elf
from tilusbuild.package.model import read_code
from tilusbuild.runtime.regular import open_regular
from tilusbuild.state.directories import list_below, open_below
from tilusbuild.state.files import sha256_bytes

_GENCODE = re.compile(r"code=\[?(sm_\d+[af]?)|-arch[= ](sm_\d+[af]?)")
_ANY = re.compile(".*", re.DOTALL)
_MAX_TEXT = 16 << 20
_MAX_LIBRARY = 1 << 30
MAX_FILES = 10_000
"""Below one directory; further files are ignored."""


class ForeignProblem(Struct, frozen=True):
    """A problem of a cache. `path` is relative to the cache. `moved`: the entry is complete, and
    works in its old directory."""

    path: str
    message: str
    moved: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class ForeignEntry(Struct):
    """One kernel: the unit in which the system keeps, looks up and deletes."""

    directory: CacheDirectory
    path: str
    """Its directory, relative to the cache."""
    kind: str
    """The system's word for it: "program", "kernel", "op", …"""
    name: str
    declared_arch: str = ""
    """The architecture that the entry's text names: "sm_90a", "cpu"; "" when it names none."""
    code_archs: tuple[str, ...] = ()
    """The architectures of the code in the binary: "sm_90a", "sm_80 ptx", or a CPU's name."""
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

    def add_problem(self, message: str, file: str | None = None, *, moved: bool = False) -> None:
        """Add a problem of the entry, or of one of its files."""
        path = self.path if file is None else f"{self.path}/{file}"
        self.problems.append(ForeignProblem(path, message, moved))

    def has_files(self, *names: str) -> bool:
        """Return whether all files exist. Each missing file is added as a problem."""
        missing = [name for name in names if not self.directory.is_file(f"{self.path}/{name}")]
        for name in missing:
            self.add_problem("is missing", name)
        return not missing

    def read_library(self, file: str) -> bytes | None:
        """Read a library or cubin, and set `library` and `code_archs` of the entry. For a missing
        or damaged file, add a problem and set nothing. Return the bytes; None if it is missing."""
        data = self.directory.read_bytes(f"{self.path}/{file}")
        if data is None:
            self.add_problem("is missing", file)
            return None
        if damage := _find_damage(data):
            self.add_problem(damage, file)
            return data
        self.library, self.code_archs = sha256_bytes(data), _list_code_archs(data)
        return data

    def check_declared_arch(self, file: str) -> None:
        """Add a problem if the library has no code for the architecture that the entry names."""
        device = [arch for arch in self.code_archs if arch.startswith("sm_")]
        if not self.declared_arch.startswith("sm_") or not device:
            return
        # A text may omit the suffix of sm_90a, and code has " ptx" after its architecture.
        archs = [arch.split()[0] for arch in device]
        if self.declared_arch not in (*archs, *(arch.rstrip("af") for arch in archs)):
            self.add_problem(
                f"holds code for {', '.join(device)}; its entry says {self.declared_arch}", file
            )

    def measure_files(self) -> ForeignEntry:
        """Set `files`, `size` and `modified` from the entry's directory. Return the entry."""
        self.files = tuple(self.directory.list_files(self.path))
        self.size, self.modified = self.directory.measure_files(self.files)
        return self


class StaleFile(Struct, frozen=True):
    """A file or directory that belongs to no entry and is not needed, such as an abandoned
    stage."""

    path: str
    reason: str
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


class CacheDirectory:
    """A directory of a foreign cache. Paths are relative to it, and no link is followed."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)

    def join_path(self, path: str) -> str:
        return os.path.join(self.root, path)

    def list_names(self, path: str = "") -> list[str]:
        """Return the sorted names in a directory; [] for anything else, and behind a link."""
        try:
            return list_below(self.root, *_split_path(path))
        except OSError:
            return []

    def list_directories(self, path: str = "", pattern: re.Pattern[str] = _ANY) -> list[str]:
        """Return the sorted names of the subdirectories that a pattern matches fully."""
        names = filter(pattern.fullmatch, self.list_names(path))
        return [name for name in names if self.is_directory(f"{path}/{name}")]

    def is_directory(self, path: str) -> bool:
        status = self.get_status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def is_file(self, path: str) -> bool:
        status = self.get_status(path)
        return status is not None and stat.S_ISREG(status.st_mode)

    def get_status(self, path: str) -> os.stat_result | None:
        """Return the status of a file, directory or link; None for nothing, or behind a link."""
        try:
            with self.open_parent(path) as (above, name):
                return os.stat(name, dir_fd=above, follow_symlinks=False)
        except OSError:
            return None

    @contextmanager
    def open_parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Open the parent directory of a path. Yield its descriptor and the last name. Raises
        `OSError`, also for a link on the way."""
        *parents, name = _split_path(path) or ["."]
        with open_below(self.root, *parents) as handle:
            yield handle, name

    def list_files(self, path: str = "") -> list[str]:
        """Return the paths of all files and links below a directory, sorted. No further
        directory is read after 10,000 of them."""
        files: list[str] = []
        directories = [path]
        while directories and len(files) <= MAX_FILES:
            directory = directories.pop()
            for name in self.list_names(directory):
                below = f"{directory}/{name}" if directory else name
                if self.is_directory(below):
                    directories.append(below)
                else:
                    files.append(below)
        return sorted(files)

    def read_text(self, path: str) -> str:
        """Return at most the first 16 MiB of a text file; "" if it cannot be read."""
        return (self._read_up_to(_MAX_TEXT, path) or b"").decode("utf-8", "replace")

    def read_json(self, path: str) -> Any:
        """Return the value of a JSON file; None if it is missing or not JSON."""
        try:
            return json.loads(self.read_text(path))
        except (ValueError, RecursionError):
            return None

    def read_bytes(self, path: str) -> _Bytes | None:
        """Return the content of a file; None if it cannot be read, or is larger than 1 GiB."""
        # One more byte than the limit: by it a larger file is known.
        data = self._read_up_to(_MAX_LIBRARY + 1, path)
        return None if data is None or len(data) > _MAX_LIBRARY else data

    def _read_up_to(self, limit: int, path: str) -> _Bytes | None:
        """Return at most `limit` bytes of a plain file; None for anything else."""
        handle = self._open_file(path)
        if handle is None:
            return None
        with os.fdopen(handle, "rb") as file:
            return file.read(limit)

    def _open_file(self, path: str) -> int | None:
        """Return a descriptor of a plain file; None for anything else, and behind a link."""
        try:
            with self.open_parent(path) as (above, name):
                return open_regular(name, follow=False, dir_fd=above)
        except OSError:
            return None

    def measure_files(self, files: Iterable[str]) -> tuple[int, float]:
        """Return the total bytes of files, and the latest time of writing (s since 1970)."""
        # A file may be removed by its system meanwhile.
        statuses = [status for status in map(self.get_status, files) if status is not None]
        latest = max((status.st_mtime for status in statuses), default=0.0)
        return sum(status.st_size for status in statuses), latest

    def is_locked(self, path: str) -> bool:
        """Return whether a process holds a lock on a file now; False if it cannot be opened."""
        handle = self._open_file(path)
        if handle is None:
            return False
        try:
            # Closing the file gives the lock back.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # also on a file system without locks, where any process may use the file
            return True
        finally:
            os.close(handle)
        return False


def _split_path(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _find_damage(data: bytes) -> str | None:
    """Describe the damage of a library: empty, not ELF, or shorter than its headers say. Return
    None for a whole one."""
    if not data:
        return "is empty"
    try:
        size = Elf(data).declared_size
    except BinaryError as error:
        return f"is not a library: {error}"
    return f"is cut short: {len(data)} bytes of {size}" if size > len(data) else None


def _list_code_archs(data: bytes) -> tuple[str, ...]:
    """Return the architectures of a library's GPU code, as "sm_90a" or "sm_80 ptx"; of a library
    without any, the machine of its host code."""
    images, needs = read_code(data)
    if not images and needs is not None:
        return (needs.machine,)
    # A dictionary in the place of a set: it keeps the order of the binary.
    return tuple(dict.fromkeys(i.arch + (" ptx" if i.kind == "ptx" else "") for i in images))


def find_command_arch(command: str) -> str:
    """Return the architecture that a command line of a compiler names; "" if none."""
    match = _GENCODE.search(command)
    return (match[1] or match[2]) if match else ""
