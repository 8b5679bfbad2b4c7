"""The kind of package that holds a foreign cache, as `package.kinds` finds it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilusbuild.interop.caches.systems import SYSTEMS, home_of
from tilusbuild.interop.check import EntryChecker
from tilusbuild.interop.install import InstalledCache, install
from tilusbuild.interop.listing import ListedCache, cache_of, count_pickles, pickle_warning, read
from tilusbuild.interop.preflight import CachePreflight, preflight
from tilusbuild.package.arriving import Limits, check_limits
from tilusbuild.package.kinds import Destination, Kind
from tilusbuild.package.listing import FileList, parse
from tilusbuild.package.opening import opened
from tilusbuild.package.preflight import Host
from tilusbuild.package.reader import Reader
from tilusbuild.package.values import Field
from tilusbuild.table import table


class ForeignCacheKind:
    """See `package.kinds.Kind`."""

    def path_problem(self, below: Sequence[str]) -> str | None:
        if len(below) > 1 and below[0] in SYSTEMS:
            return None
        return f"below caches come {', '.join(sorted(SYSTEMS))}, and a file"

    def read(self, field: Field) -> ListedCache:
        return read(field)

    def checker(self, listing: FileList) -> EntryChecker:
        return EntryChecker(listing, cache_of(listing))

    def install(self, reader: Reader, to: Destination, limits: Limits) -> InstallReport:
        listing = parse(reader.list_bytes())
        system = cache_of(listing).system
        place = os.path.abspath(to.directory) if to.directory else home_of(system, to.environment)
        return InstallReport(listing, place, install(reader, listing, place, limits))

    def preflight(self, path: str, hosts: Sequence[Host], limits: Limits) -> PreflightReport:
        with opened(path) as reader:
            listing = parse(reader.list_bytes())
            check_limits(listing, reader, limits)
        return PreflightReport(listing, [preflight(listing, host) for host in hosts])


KIND: Kind = ForeignCacheKind()


@dataclass(frozen=True, slots=True)
class InstallReport:
    """What was installed, and where."""

    listing: FileList
    place: str
    done: InstalledCache
    ok: bool = True

    @property
    def warning(self) -> str:
        return pickle_warning(self.listing)

    def text(self, *, verbose: bool) -> str:
        listing, done = self.listing, self.done
        return (
            f"{listing.title} {listing.version} is in {self.place}: {listing.summary},"
            f" {done.new} of them new ({done.size} bytes)\n"
        )

    def events(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        listing, cache = self.listing, cache_of(self.listing)
        yield (
            "installed",
            {
                "cache": self.place,
                "system": cache.system,
                "name": listing.title,
                "version": listing.version,
                "digest": listing.digest,
                "entries": len(cache.entries),
                "new": self.done.new,
                "size": self.done.size,
                "pickles": count_pickles(listing),
            },
        )


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """What would run on each machine."""

    listing: FileList
    results: Sequence[CachePreflight]
    warning: str = ""

    @property
    def ok(self) -> bool:
        return not any(result.missing for result in self.results)

    def text(self, *, verbose: bool) -> str:
        rows = [
            (result.host.device.arch, each.label, "yes" if each.runs else "no", each.why)
            for result in self.results
            for each in result.entries
        ]
        lines = [
            f"{result.host.device.arch}: missing: {what}"
            for result in self.results
            for what in result.missing
        ]
        isa = self.listing.needs.isa
        if isa and any(result.host.isa is None for result in self.results):
            lines.append(f"its host code is for a CPU with {isa}; --cpu says the host's")
        heads = ("device", "entry", "runs", "why")
        return table(heads, rows) + "".join(f"{line}\n" for line in lines)

    def events(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for result in self.results:
            device = result.host.device.arch
            for each in result.entries:
                entry = {"path": each.entry.path, "kind": each.entry.kind, "name": each.entry.name}
                yield "preflight", {"device": device, **entry, "runs": each.runs, "why": each.why}
            for problem in result.problems:
                yield "problem", {"device": device, "what": problem}
        missing = sum(len(result.missing) for result in self.results)
        yield "summary", {"devices": len(self.results), "missing": missing}
