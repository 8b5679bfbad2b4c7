"""Triton's groups in a package, and what of a package of a foreign cache runs on a described host.

Groups, `__grp__NAME.json`, are the only files of a foreign cache that name their own place: the
files of their entry, by absolute paths. In a package each path is only its name, which must be that
of a listed file beside the group; installing makes paths of them again.
"""

from __future__ import annotations

import json
import os

import rfc8785
from msgspec import Struct

from tilusbuild.interop.listing import CHILD_PATHS, ListedEntry, cache_of
from tilusbuild.package.errors import cannot_pack
from tilusbuild.package.listing import ANY_MACHINE, FileList
from tilusbuild.package.preflight import DescribedHost, host_problems
from tilusbuild.runtime.device import can_run
from tilusbuild.runtime.regular import read_text


def group_without_place(path: str) -> bytes:
    """Return a group of a cache as a package has it, with names only. Raises `PackageError`."""
    try:
        names = json.loads(read_text(path))[CHILD_PATHS]
        return rfc8785.dumps({CHILD_PATHS: {str(name): str(name) for name in names}})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise cannot_pack(f"{path} is not a group of Triton: {error}") from None


def group_with_place(data: bytes, directory: str) -> bytes:
    """Return a checked group as Triton reads it when the directory of its entry is `directory`."""
    names = json.loads(data)[CHILD_PATHS]
    placed = {name: os.path.join(directory, name) for name in names}
    return json.dumps({CHILD_PATHS: placed}).encode()


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
