"""The kind of package that holds a foreign cache, as `package.kinds` finds it."""

from __future__ import annotations

from collections.abc import Sequence

from tilusbuild.interop.caches.systems import SYSTEMS
from tilusbuild.interop.check import EntryChecker
from tilusbuild.interop.listing import ListedCache, cache_of, read
from tilusbuild.package.kinds import Kind
from tilusbuild.package.listing import FileList
from tilusbuild.package.model import Field


class ForeignCacheKind:
    """The checks and the list of such a package; see `package.kinds.Kind`."""

    def path_problem(self, below: Sequence[str]) -> str | None:
        if len(below) > 1 and below[0] in SYSTEMS:
            return None
        return f"below caches come {', '.join(sorted(SYSTEMS))}, and a file"

    def read(self, field: Field) -> ListedCache:
        return read(field)

    def checker(self, listing: FileList) -> EntryChecker:
        return EntryChecker(listing, cache_of(listing))


KIND: Kind = ForeignCacheKind()
