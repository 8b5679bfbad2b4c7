"""Collect a foreign cache for a package: its whole entries, and the files that make them work.

Locks, staging directories and other stale files stay behind. The path of the cache is removed from
the files that contain it, so that the same entries make the same package wherever they are;
installing writes the new path. Nothing is loaded, and no pickle is opened.
"""

from __future__ import annotations

import os
import stat
from itertools import accumulate

from msgspec import Struct, field

from tilusbuild._version import __version__
from tilusbuild.binary.elf import BinaryError, read_needs
from tilusbuild.errors import input_error
from tilusbuild.interop.caches import hidet, tilelang, tilus, triton
from tilusbuild.interop.caches.directory import (
    MAX_FILES,
    CacheDirectory,
    ForeignCache,
    ForeignEntry,
)
from tilusbuild.interop.listing import (
    ROOT,
    ForeignList,
    ListedCache,
    ListedEntry,
    is_group,
    strip_group_paths,
)
from tilusbuild.package.contents import Contents, PackedLibrary, collect_host_needs
from tilusbuild.package.errors import cannot_pack
from tilusbuild.package.listing import ANY_MACHINE, FileEntry, FileList, HostNeeds
from tilusbuild.package.model import MAX_LIBRARY_SIZE, read_code
from tilusbuild.state.files import sha256_bytes, sha256_file

_LOCK = ".lock"
_UNIT_PARTS = {tilus.SYSTEM: 3, hidet.SYSTEM: 2, tilelang.SYSTEM: 4, triton.SYSTEM: 1}
"""The number of path parts of the unit that a file without an entry belongs to:
`scripts/NAME/KEY`, `graphs/KEY`, `VERSION/MACHINE/autotuner/KEY`."""
_FATBIN_NAME = "kernel.fatbin"
"""TileLang's file with code for several architectures. It is not an ELF file, so that the reader of
the cache reports no library of its entry."""


def collect_foreign_cache(cache: ForeignCache, name: str, version: str) -> Contents:
    """Collect the contents of a package of a cache. Locks, stale files and links to missing files
    are left out. Raises `PackageError` for broken entries and for names that a package cannot have,
    `InputError` for a directory that is only a part of a cache."""
    _check_all_versions(cache)
    # The paths that are wrong in a moved entry are not packed.
    problems = [
        problem for entry in cache.entries for problem in entry.problems if not problem.moved
    ]
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise cannot_pack(
            f"{cache.root} is broken: {problems[0]}{more}",
            hint="`tilusbuild cache verify` lists what is, `cache gc --broken` removes it",
        )
    collector = _CacheCollector(CacheDirectory(cache.root), cache.system)
    for entry in cache.entries:
        collector.add_entry(entry)
    entry_files = [path for entry in cache.entries for path in entry.files]
    # With a slash, so that a stale directory also excludes the files in it, and nothing else.
    stale_prefixes = tuple(f"{file.path}/" for file in cache.stale)
    # After all entries: a link may lead to any of them, and a file is counted with its unit.
    for path in (*entry_files, *cache.shared):
        if not f"{path}/".startswith(stale_prefixes) and os.path.basename(path) != _LOCK:
            collector.add_file(path)
    if not collector.entries:
        raise cannot_pack(f"{cache.root} holds no entry that could be packed")
    listing = collector.make_list(cache, name, version)
    return Contents(listing, listing.encode(), collector.origins, {})


def _check_all_versions(cache: ForeignCache) -> None:
    """Raise `InputError` for the directory of one version of TileLang's cache."""
    # Only the directory's own name has the version, without which no TileLang finds the entries.
    if cache.system != tilelang.SYSTEM:
        return
    # Below the directory of one version are `cuda-binaries/…` and `MACHINE/kernels/…`.
    parts_of_entries = [entry.path.split("/") for entry in cache.entries]
    if any(parts[0] == "cuda-binaries" or parts[1] == "kernels" for parts in parts_of_entries):
        raise input_error(
            f"{cache.root} is one version's part of a cache of TileLang",
            hint="name the directory above it, which TILELANG_CACHE_DIR names",
        )


class _CacheCollector(Struct):
    """The files and entries collected so far. Paths are relative to the cache."""

    directory: CacheDirectory
    system: str
    entries: dict[str, ListedEntry] = field(default_factory=dict)
    units: dict[str, int] = field(default_factory=dict)
    """The number of files of each."""
    files: dict[str, FileEntry] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    origins: dict[str, bytes | str] = field(default_factory=dict)
    libraries: list[PackedLibrary] = field(default_factory=list)
    """The shared libraries, which run on the host."""

    def add_entry(self, entry: ForeignEntry) -> None:
        """Add an entry with the architectures of its library's code, and its unit with no files
        yet. Raises `PackageError`."""
        # `add_file` counts the unit's files; a unit that stays at 0 is not listed.
        self.units[entry.removed_with] = 0
        library = self._find_library(entry)
        data = self.directory.read_bytes(f"{entry.path}/{library}") or b""
        if len(data) > MAX_LIBRARY_SIZE:
            raise cannot_pack(f"{entry.path}/{library} has more than {MAX_LIBRARY_SIZE} bytes")
        images, needs = read_code(data)
        machine = needs.machine if needs else None
        self.entries[entry.path] = ListedEntry(
            entry.path, entry.kind, _to_printable(entry.name), library, images, machine
        )

    def add_file(self, path: str) -> None:
        """Add a file or a link, and count it with its unit: the directory that is published by one
        rename. A missing file is ignored. Raises `PackageError`."""
        full_path, listed_path = self.directory.join_path(path), f"{ROOT}/{self.system}/{path}"
        # A link may lead to a program that was removed, and a file may be removed meanwhile.
        if not os.path.exists(full_path):
            return
        parts = path.split("/")
        # `a`, `a/b`, `a/b/c` of `a/b/c/d`.
        parents = accumulate(parts[:-1], "{}/{}".format)
        shared_unit = "/".join(parts[: _UNIT_PARTS[self.system]])
        unit = next((parent for parent in parents if parent in self.units), shared_unit)
        self.units[unit] = self.units.get(unit, 0) + 1
        if self.units[unit] > MAX_FILES:
            raise cannot_pack(f"{unit} has more than {MAX_FILES} files")
        if os.path.islink(full_path):
            self._add_link(path, full_path)
            return
        if not stat.S_ISREG(os.lstat(full_path).st_mode):
            raise cannot_pack(f"{full_path} is not a plain file")
        if is_group(self.system, path):
            group = strip_group_paths(full_path)
            self.origins[listed_path] = group
            self.files[listed_path] = FileEntry(len(group), sha256_bytes(group))
        else:
            self.origins[listed_path] = full_path
            self.files[listed_path] = FileEntry(os.path.getsize(full_path), sha256_file(full_path))
        if path.endswith(".so"):
            self._add_library_needs(path)

    def _add_link(self, path: str, full_path: str) -> None:
        """Add a link to an entry. Raises `PackageError` for any other link."""
        absolute = os.path.join(os.path.dirname(full_path), os.readlink(full_path))
        target = os.path.relpath(absolute, self.directory.root)
        # Any other link could lead out of the cache, or nowhere once it is installed.
        if target not in self.entries:
            raise cannot_pack(f"{full_path} leads to {target}, which is not an entry")
        self.links[path] = target

    def _add_library_needs(self, path: str) -> None:
        """Record the needs of a shared library, with the compile.sh beside it. A file that is not
        a library of the host is ignored."""
        try:
            needs = read_needs(self.directory.read_bytes(path) or b"")
        except BinaryError:
            return
        command = self.directory.read_text(f"{os.path.dirname(path)}/compile.sh")
        self.libraries.append(PackedLibrary(path, needs, command))

    def _find_library(self, entry: ForeignEntry) -> str:
        """Return the path of an entry's library or fatbin, relative to the entry. Raises
        `PackageError` if it has neither."""
        for path in entry.files:
            full_path = self.directory.join_path(path)
            if entry.library is not None and path.endswith((".so", ".cubin", ".hsaco")):
                # Of several libraries in an entry, take the one that the cache's reader has read.
                is_library = sha256_file(full_path) == entry.library
            else:
                is_library = path.endswith(f"/{_FATBIN_NAME}")
            if is_library:
                return os.path.relpath(path, entry.path)
        raise cannot_pack(
            f"{self.directory.join_path(entry.path)} has no library", hint="pack again"
        )

    def make_list(self, cache: ForeignCache, name: str, version: str) -> FileList:
        """Return the list of a package with the files and entries collected so far. Raises
        `PackageError` for libraries of several machines."""
        # A cache of cubins has no code for a host.
        no_needs = HostNeeds(ANY_MACHINE, isa=None, glibc=None, libraries=(), tvm_ffi=None)
        part = ListedCache(
            system=self.system,
            version=_to_printable(cache.version),
            entries=tuple(self.entries[path] for path in sorted(self.entries)),
            units=tuple(sorted(unit for unit, count in self.units.items() if count)),
            links=dict(sorted(self.links.items())),
        )
        return ForeignList(
            name=name,
            version=version,
            project=self.system,
            tool=__version__,
            targets={},
            needs=collect_host_needs(self.libraries) if self.libraries else no_needs,
            scripts=(),
            programs={},
            files=self.files,
            part=part,
        )


def choose_default_name(cache: ForeignCache) -> tuple[str, str]:
    """Return the name and the version of a package of the cache. The version is the system's if it
    can be one, else "0"."""
    # A cache of several versions says "0.1, 0.2", which cannot name a file.
    usable = cache.version and all(c.isalnum() or c in ".+" for c in cache.version)
    return f"{cache.system}-cache", cache.version if usable else "0"


def _to_printable(text: str) -> str:
    """Return at most 200 characters of a text, with `?` for those that cannot be printed."""
    return "".join(c if c.isprintable() else "?" for c in text)[:200]
