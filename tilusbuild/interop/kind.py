"""The kind of package that holds a foreign cache, as `package.names` finds it, and its checks.

An entry is what the list says: from the bytes of its library, the code in it is what is listed, and
asks no more of a host than the list says. Of everything else, pickles among it, only the digest is
compared: what it means is the system's own affair. `preflight` asks the same of a described host.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Mapping, Sequence

import rfc8785
from msgspec import Struct

from tilusbuild.binary import BinaryError, read_needs
from tilusbuild.interop.caches import SYSTEMS, triton
from tilusbuild.interop.listing import ForeignList, ListedCache, ListedEntry, cache_of
from tilusbuild.package.check import host_problem
from tilusbuild.package.errors import (
    PackageError,
    cannot_pack,
    code_mismatch,
    inconsistent,
    over_limit,
)
from tilusbuild.package.listing import ANY_MACHINE, FileList, Kind
from tilusbuild.package.model import MAX_LIBRARY_SIZE, code_of, decode
from tilusbuild.package.preflight import DescribedHost, host_problems
from tilusbuild.runtime.device import can_run
from tilusbuild.runtime.regular import read_text

MAX_GROUP_BYTES = 16 << 20
_CHILD_PATHS = "child_paths"


class EntryChecker:
    """Check the files of one cache as they arrive: libraries, and Triton's groups."""

    def __init__(self, listing: FileList, cache: ListedCache) -> None:
        self._listing = listing
        self._system = cache.system
        self._libraries = cache.libraries()

    def wants(self, path: str, size: int) -> bool:
        """Return whether the content counts, not the digest alone. Raises `PackageError`."""
        group = is_group(self._system, path)
        if path not in self._libraries and not group:
            return False
        limit = MAX_GROUP_BYTES if group else MAX_LIBRARY_SIZE
        if size > limit:
            raise over_limit(f"{path} has more than {limit} bytes")
        return True

    def check(self, path: str, data: bytes) -> None:
        """Raises `PackageError`."""
        if path in self._libraries:
            self._check_code(path, self._libraries[path], data)
        else:
            check_group(path, data, self._listing.files)

    def _check_code(self, path: str, entry: ListedEntry, data: bytes) -> None:
        images, machine = code_of(data)
        if set(images) != set(entry.images) or machine != entry.machine:
            held = _text(sorted(i.arch for i in images), machine)
            listed = _text(sorted(i.arch for i in entry.images), entry.machine)
            raise code_mismatch(f"{path} holds code for {held}; listed is {listed}")
        try:
            problem = host_problem(self._listing.needs, read_needs(data)) if machine else None
        except BinaryError as error:
            problem = str(error)
        if problem:
            raise inconsistent(f"{path} {problem}; the list says otherwise")


def _text(archs: list[str], machine: str | None) -> str:
    return ", ".join([*archs, *([machine] if machine else [])]) or "nothing that is known"


# Triton's groups, `__grp__NAME.json`, are the only files of a foreign cache that name their own
# place: the files of their entry, by absolute paths. In a package each path is only its name, which
# must be that of a listed file beside the group; installing makes paths of them again.


def is_group(system: str, path: str) -> bool:
    """Return whether a file of a cache is a group."""
    return system == triton.SYSTEM and os.path.basename(path).startswith("__grp__")


def group_without_place(path: str) -> bytes:
    """Return a group of a cache as a package has it, with names only. Raises `PackageError`."""
    try:
        names = json.loads(read_text(path))[_CHILD_PATHS]
        return rfc8785.dumps({_CHILD_PATHS: {str(name): str(name) for name in names}})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise cannot_pack(f"{path} is not a group of Triton: {error}") from None


def check_group(where: str, data: bytes, files: Container[str]) -> Mapping[str, str]:
    """Return the names in a group whose path in the package is `where`.

    Raises `PackageError` for a name that is not that of a file among `files` beside it.
    """
    try:
        value = decode(data)
    except PackageError as error:
        raise inconsistent(f"{where} is not a group: {error}") from None
    names = value.get(_CHILD_PATHS) if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(names, dict):
        raise inconsistent(f"{where} is not a group")
    for name, path in names.items():
        if name != path or f"{os.path.dirname(where)}/{name}" not in files:
            raise inconsistent(f"{where} names {path!r:.200}, which is not a file beside it")
    return names


def group_with_place(data: bytes, directory: str) -> bytes:
    """Return a checked group as Triton reads it when the directory of its entry is `directory`."""
    names = json.loads(data)[_CHILD_PATHS]
    placed = {name: os.path.join(directory, name) for name in names}
    return json.dumps({_CHILD_PATHS: placed}).encode()


class ForeignCacheKind:
    """The checks and the list of such a package; see `package.listing.Kind`."""

    listing: type[FileList] = ForeignList

    def path_problem(self, below: Sequence[str]) -> str | None:
        if len(below) > 1 and below[0] in SYSTEMS:
            return None
        return f"below caches come {', '.join(sorted(SYSTEMS))}, and a file"

    def checker(self, listing: FileList) -> EntryChecker:
        return EntryChecker(listing, cache_of(listing))


KIND: Kind = ForeignCacheKind()


class EntryVerdict(Struct, frozen=True):
    """Whether an entry runs on the machine, and why."""

    entry: ListedEntry
    runs: bool
    why: str

    @property
    def label(self) -> str:
        """The entry's name, for people."""
        return " ".join(filter(None, (self.entry.kind, self.entry.name)))


class CachePreflight(Struct, frozen=True):
    """The verdicts for one machine; `problems` are those of the machine itself."""

    host: DescribedHost
    entries: tuple[EntryVerdict, ...]
    problems: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """Return the paths of the entries that would not run, and the problems of the machine."""
        return [*(each.entry.path for each in self.entries if not each.runs), *self.problems]


def preflight(listing: FileList, host: DescribedHost) -> CachePreflight:
    """Judge every entry for one machine. Raises `PackageError` for a list of another kind."""
    entries = tuple(_judge(entry, host) for entry in cache_of(listing).entries)
    anywhere = listing.needs.machine == ANY_MACHINE
    return CachePreflight(
        host, entries, () if anywhere else tuple(host_problems(listing.needs, host))
    )


def _judge(entry: ListedEntry, host: DescribedHost) -> EntryVerdict:
    if entry.machine not in (None, host.machine):
        reason = f"its host code is for {entry.machine}, and the host is {host.machine}"
        return EntryVerdict(entry, False, reason)
    if not entry.images:
        if entry.machine is None:
            return EntryVerdict(entry, False, "nothing is known of its code")
        return EntryVerdict(entry, True, "host code")
    refused = ""
    for image in entry.images:
        verdict = can_run(image.arch, host.device.arch, image.kind)
        if verdict:
            return EntryVerdict(entry, True, verdict.reason)
        refused = refused or verdict.reason
    return EntryVerdict(entry, False, refused)
