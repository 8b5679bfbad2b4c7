"""Predict which entries of a foreign cache would run on a described machine, and why others not.

The rules are the runtime's, applied to what was read from the binaries. Whether the system there
would look these entries up is not known: its own version and options are part of its keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilusbuild.interop.listing import ListedEntry, cache_of
from tilusbuild.package.listing import ANY_MACHINE, FileList
from tilusbuild.package.preflight import DescribedHost, host_problems
from tilusbuild.runtime.device import can_run


@dataclass(frozen=True, slots=True)
class EntryVerdict:
    """Whether an entry runs on the machine, and why."""

    entry: ListedEntry
    runs: bool
    why: str

    @property
    def label(self) -> str:
        """The entry's name, for people."""
        return " ".join(filter(None, (self.entry.kind, self.entry.name)))


@dataclass(frozen=True, slots=True)
class CachePreflight:
    """The verdicts for one machine; `problems` are those of the machine itself."""

    host: DescribedHost
    entries: tuple[EntryVerdict, ...]
    problems: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """Return the paths of the entries that would not run, and the problems of the machine."""
        return [*(each.entry.path for each in self.entries if not each.runs), *self.problems]


def preflight(listing: FileList, host: DescribedHost) -> CachePreflight:
    """Judge every entry for one machine. Raises `NoPackageError` for a list of another kind."""
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
