"""A cache of another system, collected for a package: whole entries, and what makes them work.

Locks, stagings and other litter stay behind. What of a file depends on where the cache stood is
taken out of it, so that the same entries make the same package wherever they are; installing puts
the new place in. Nothing is loaded, and no pickle is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tilusbuild import __version__
from tilusbuild.binary import BinaryError, read_needs
from tilusbuild.errors import input_error
from tilusbuild.interop.caches import hidet, tilelang, tilus, triton
from tilusbuild.interop.caches.look import MOST_FILES, Folder
from tilusbuild.interop.caches.model import Cache, Entry
from tilusbuild.package import groups
from tilusbuild.package.adopted import ANY_MACHINE, Adopted, AdoptedEntry
from tilusbuild.package.coherent import digest_of_inputs
from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import CannotPack
from tilusbuild.package.images import LARGEST, code_of
from tilusbuild.package.listing import FileEntry, FileList, Needs
from tilusbuild.package.needs import Together
from tilusbuild.state.hashing import sha256_bytes, sha256_file

_LOCK = ".lock"
_SHARED_UNIT = {tilus.SYSTEM: 3, hidet.SYSTEM: 2, tilelang.SYSTEM: 4, triton.SYSTEM: 1}
"""How many parts the folder has that a file of no entry belongs to: `scripts/NAME/KEY`,
`graphs/KEY`, `VERSION/MACHINE/autotuner/KEY`."""
_FATBIN = "kernel.fatbin"
"""What TileLang compiles for several architectures at once: no ELF file, so `foreign` takes no
digest of it."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """What will be carried, and what stays: broken entries with the first reason of each."""

    contents: Contents
    left_out: tuple[tuple[str, str], ...]

    @property
    def pickles(self) -> int:
        """How many files are pickles, which the system will load."""
        return count_pickles(self.contents.listed)


def count_pickles(listed: FileList) -> int:
    """How many files are pickles."""
    return sum(path.endswith((".pickle", ".pkl")) for path in listed.files)


def gather(cache: Cache, name: str, version: str, *, skip_broken: bool = False) -> Gathered:
    """Collect a cache's contents. Raises `CannotPack` for one that is broken, unless what is broken
    may stay behind, and `UnsafeName`, `ListMalformed` for names that no package can have."""
    _check_whole(cache)
    broken = dict(_broken(cache))
    if broken and not skip_broken:
        more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise CannotPack(
            f"{cache.root} is broken: {next(iter(broken.values()))}{more}",
            hint="`tilusbuild cache verify` lists them; --skip-broken leaves them behind",
        )
    found = _Found(Folder(cache.root), cache.system, frozenset(broken))
    for entry in cache.entries:
        found.add_entry(entry)
    litter = tuple(f"{piece.path}/" for piece in cache.litter)
    for path in (*(p for e in cache.entries for p in e.files), *cache.shared):
        if not f"{path}/".startswith(litter) and os.path.basename(path) != _LOCK:
            found.add_file(path)
    if not found.entries:
        raise CannotPack(f"{cache.root} holds no entry that could be carried")
    listed = found.listed(cache, name, version)
    return Gathered(Contents(listed, listed.encode(), found.origins, {}), tuple(broken.items()))


def _check_whole(cache: Cache) -> None:
    """A folder of TileLang's may be one version's, whose place says the version."""
    if cache.system == tilelang.SYSTEM and any(
        entry.path.split("/")[0] == "cuda-binaries" or entry.path.split("/")[1] == "kernels"
        for entry in cache.entries
    ):
        raise input_error(
            f"{cache.root} is one version's part of a cache of TileLang",
            hint="name the folder above it, which TILELANG_CACHE_DIR names",
        )


def _broken(cache: Cache) -> Iterator[tuple[str, str]]:
    """Units that something is wrong with, and scripts of Tilus that a broken program serves."""
    units: dict[str, str] = {}
    for entry in cache.entries:
        for problem in entry.problems:
            if not problem.moved:  # a package has no places
                units.setdefault(entry.goes, str(problem))
    yield from units.items()
    for problem in cache.problems:
        yield _shared_unit(cache.system, problem.path), str(problem)
    folder = Folder(cache.root)
    for path in cache.shared:
        target = _target(folder, path)
        if target in units:
            yield _shared_unit(cache.system, path), f"{path}: leads to {target}, which is broken"


def _shared_unit(system: str, path: str) -> str:
    return "/".join(path.split("/")[: _SHARED_UNIT[system]])


def _target(folder: Folder, path: str) -> str | None:
    """Where a link of the cache leads, relative to the cache; None for what is no link."""
    try:
        text = os.readlink(folder.path(path))
    except OSError:
        return None
    return os.path.relpath(os.path.join(os.path.dirname(folder.path(path)), text), folder.root)


@dataclass(slots=True)
class _Found:
    """What was collected so far; paths are relative to the cache."""

    folder: Folder
    system: str
    broken: frozenset[str]
    entries: dict[str, AdoptedEntry] = field(default_factory=dict)
    units: dict[str, int] = field(default_factory=dict)
    """Each with the number of its files."""
    files: dict[str, FileEntry] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    origins: dict[str, bytes | str] = field(default_factory=dict)
    host: Together = field(default_factory=Together)
    host_code: int = 0

    def add_entry(self, entry: Entry) -> None:
        if entry.goes in self.broken:
            return
        self.units[entry.goes] = 0
        library = self._library_of(entry)
        data = self.folder.bytes(entry.path, library) or b""
        if len(data) > LARGEST:
            raise CannotPack(f"{entry.path}/{library} has more than {LARGEST} bytes")
        self.entries[entry.path] = AdoptedEntry(
            entry.path, entry.kind, _shown(entry.name), library, *code_of(data)
        )

    def add_file(self, path: str) -> None:
        unit = next((u for u in _above(path) if u in self.units), None)
        unit = unit or _shared_unit(self.system, path)
        if unit in self.broken:
            return
        self.units[unit] = self.units.get(unit, 0) + 1
        if self.units[unit] > MOST_FILES:
            raise CannotPack(f"{unit} has more than {MOST_FILES} files")
        target = _target(self.folder, path)
        if target is not None:
            self._add_link(path, target)
            return
        full, listed = self.folder.path(path), f"caches/{self.system}/{path}"
        if not stat.S_ISREG(os.lstat(full).st_mode):
            raise CannotPack(f"{full} is no plain file")
        self.origins[listed] = full
        size, digest = os.path.getsize(full), sha256_file(full)
        if groups.is_group(self.system, path):
            moved = groups.without_place(full)
            self.origins[listed], size, digest = moved, len(moved), sha256_bytes(moved)
        self.files[listed] = FileEntry(size, digest)
        if path.endswith(".so"):
            self._add_host_code(path)

    def _add_link(self, path: str, target: str) -> None:
        if target not in self.entries:
            raise CannotPack(f"{self.folder.path(path)} leads to {target}, which is no entry")
        self.links[path] = target

    def _add_host_code(self, path: str) -> None:
        """A library asks something of the host, whether it is an entry's or not."""
        try:
            needs = read_needs(self.folder.bytes(path) or b"")
        except BinaryError:
            return
        command = self.folder.text(os.path.dirname(path), "compile.sh") or ""
        self.host.add(path, needs, command)
        self.host_code += 1

    def _library_of(self, entry: Entry) -> str:
        """The file of an entry with its code, relative to the entry."""
        for path in entry.files:
            full = self.folder.path(path)
            if entry.library is not None and path.endswith((".so", ".cubin", ".hsaco")):
                if sha256_file(full) == entry.library:
                    return os.path.relpath(path, entry.path)
            elif os.path.basename(path) == _FATBIN:
                return os.path.relpath(path, entry.path)
        raise CannotPack(f"{self.folder.path(entry.path)} has no library", hint="pack again")

    def listed(self, cache: Cache, name: str, version: str) -> FileList:
        nothing = Needs(ANY_MACHINE, None, None, (), None)
        adopted = Adopted(
            system=self.system,
            version=_shown(cache.version),
            entries=tuple(self.entries[path] for path in sorted(self.entries)),
            units=tuple(sorted(unit for unit, count in self.units.items() if count)),
            links=dict(sorted(self.links.items())),
        )
        return FileList(
            name=name,
            version=version,
            project=self.system,
            tool=__version__,
            inputs=digest_of_inputs((), (), {}, self.entries),
            targets={},
            needs=self.host.needs() if self.host_code else nothing,
            scripts=(),
            programs={},
            files=self.files,
            adopted=adopted,
        )


def default_name(cache: Cache) -> tuple[str, str]:
    """What a package of the cache is called, and its version: the system's, when it has one."""
    words: Mapping[bool, str] = {True: cache.version, False: "0"}
    one = bool(cache.version) and all(c.isalnum() or c in ".+" for c in cache.version)
    return f"{cache.system}-cache", words[one]


def _above(path: str) -> Iterator[str]:
    while path:
        path = os.path.dirname(path)
        yield path


def _shown(text: str) -> str:
    """What may be printed to a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)[:200]
