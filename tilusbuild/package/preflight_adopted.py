"""What of a carried cache would run on a machine that is not here: entry by entry, and why not.

The rules are the runtime's, asked about what was read from the binaries. Whether the system there
would look for these entries, and take them, is not asked: its own version and options decide that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilusbuild.package.adopted import ANY_MACHINE, AdoptedEntry
from tilusbuild.package.errors import NoPackage
from tilusbuild.package.listing import FileList
from tilusbuild.package.preflight import Host, host_problems
from tilusbuild.runtime import compat


@dataclass(frozen=True, slots=True)
class Judged:
    """An entry, whether it runs on the machine, and why or why not."""

    entry: AdoptedEntry
    runs: bool
    why: str

    @property
    def label(self) -> str:
        """What a person calls it."""
        return " ".join(filter(None, (self.entry.kind, self.entry.name)))


@dataclass(frozen=True, slots=True)
class Preflight:
    """The entries, and what of the host itself is not enough."""

    host: Host
    entries: tuple[Judged, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing would be missing."""
        return not self.problems and all(each.runs for each in self.entries)


def preflight(listing: FileList, host: Host) -> Preflight:
    """Ask for one machine. Raises `NoPackage` for a list of another kind."""
    if listing.adopted is None:
        raise NoPackage("it carries no cache of another system")
    entries = tuple(_judge(entry, host) for entry in listing.adopted.entries)
    return Preflight(host, entries, tuple(_host_problems(listing, host)))


def _host_problems(listing: FileList, host: Host) -> Iterator[str]:
    if listing.needs.machine != ANY_MACHINE:
        yield from host_problems(listing.needs, host)


def _judge(entry: AdoptedEntry, host: Host) -> Judged:
    if entry.machine not in (None, host.machine):
        what = f"its host code is for {entry.machine}, and the host is {host.machine}"
        return Judged(entry, False, what)
    if not entry.images:
        if entry.machine is None:
            return Judged(entry, False, "nothing is known of its code")
        return Judged(entry, True, "host code")
    refused = ""
    for image in entry.images:
        verdict = compat.can_run(image.arch, host.device.arch, image.kind)
        if verdict:
            return Judged(entry, True, verdict.reason)
        refused = refused or verdict.reason
    return Judged(entry, False, refused)
