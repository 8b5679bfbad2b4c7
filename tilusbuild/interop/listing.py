"""A foreign cache in a package's list: its entries, and the units that are published by one rename.

Its files are listed below `caches/SYSTEM`, under the names that the system gave them. Links are not
files: the list has their paths, and each leads to an entry of the same cache. So nothing of a
checked list leads out of the directory that the package is installed into.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, NoReturn

from msgspec import Meta, Struct

from tilusbuild.interop.caches import SYSTEMS
from tilusbuild.package import names
from tilusbuild.package.errors import malformed, no_package
from tilusbuild.package.listing import FileList
from tilusbuild.package.model import Image, Name
from tilusbuild.report.text import counted
from tilusbuild.state.files import sha256_text

ROOT = "caches"
_Text = Annotated[str, Meta(max_length=200)]
_Path = Annotated[str, Meta(max_length=names.MAX_PATH)]
_MAX_UNIT_PARTS = 8


class ListedEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """An entry in a list. `path` is its directory in the cache and `library` the file in it with
    the code: `images` for GPUs, and host code for `machine` (None: no host code)."""

    path: _Path
    kind: _Text
    name: _Text
    library: _Path
    images: tuple[Image, ...]
    machine: Name | None


class ListedCache(Struct, frozen=True, forbid_unknown_fields=True):
    """A foreign cache: the `ListPart` of a list. Paths are relative to the cache. `units` are the
    files and directories that appear by one rename each, `links` the entry that each link leads
    to; both sorted, as `entries` are."""

    system: str
    version: _Text
    entries: tuple[ListedEntry, ...]
    units: tuple[_Path, ...]
    links: Mapping[str, _Path]

    @property
    def key(self) -> str:
        return "adopted"

    @property
    def summary(self) -> str:
        return f"{counted(len(self.entries), 'entry', 'entries')} of {self.system}"

    @property
    def prefix(self) -> str:
        """Return what the paths of the listed files begin with."""
        return f"{ROOT}/{self.system}/"

    def owners(self, paths: Iterable[str]) -> Iterator[tuple[str, str | None]]:
        """Yield each path of the cache with the unit that it belongs to."""
        known = frozenset(self.units)
        for path in paths:
            yield path, next((each for each in _beginnings(path) if each in known), None)

    def libraries(self) -> dict[str, ListedEntry]:
        """Return the entries by the listed path of their code."""
        return {f"{self.prefix}{e.path}/{e.library}": e for e in self.entries}

    def inputs(self) -> list[str]:
        return [entry.path for entry in self.entries]

    def unit_digests(self, listing: FileList) -> dict[str, str]:
        held = {p.removeprefix(self.prefix): file.sha256 for p, file in listing.files.items()}
        held |= self.links
        lines: dict[str, list[str]] = {unit: [] for unit in self.units}
        for path, unit in self.owners(sorted(held)):
            lines[unit or path].append(f"{held[path]} {path}\n")
        return {unit: sha256_text("".join(each)) for unit, each in lines.items()}

    def check(self, listing: FileList) -> None:
        prefix = self.prefix
        names.check_paths([*listing.files, *(prefix + link for link in self.links)])
        for path in listing.files:
            if not path.startswith(prefix):
                _refuse(f"{path} belongs to no cache of {self.system}")
        _check_entries(self, listing)
        _check_units(self, [p.removeprefix(prefix) for p in listing.files])
        homes = {entry.path for entry in self.entries}
        for link, target in self.links.items():
            if target not in homes:
                _refuse(f"the link {link} leads to {target!r:.200}, which is not an entry")
            if link in self.units:
                _refuse(f"the link {link} is in the place of an entry")


class ForeignList(FileList, frozen=True, kw_only=True, rename={"part": "adopted"}):
    """The list of a package that holds a foreign cache."""

    part: ListedCache


def cache_of(listing: FileList) -> ListedCache:
    """Return the foreign cache of a list. Raises `PackageError` for a list of another kind."""
    if not isinstance(listing.part, ListedCache):
        raise no_package("it holds no foreign cache")
    return listing.part


def count_pickles(listing: FileList) -> int:
    """Return the number of pickles. Only the system itself loads them."""
    return sum(path.endswith((".pickle", ".pkl")) for path in listing.files)


def pickle_warning(listing: FileList) -> str:
    """Return a line that warns of the pickles in a package; "" if there are none."""
    count = count_pickles(listing)
    if not count:
        return ""
    return (
        f"{count} of its files are pickles: nothing here opens them, {cache_of(listing).system}"
        " does. Install it only if you trust who packed it\n"
    )


def _check_entries(cache: ListedCache, listing: FileList) -> None:
    if cache.system not in SYSTEMS:
        _refuse(f"adopted.system is {cache.system!r:.60}, not one of {', '.join(sorted(SYSTEMS))}")
    texts = (text for entry in cache.entries for text in (entry.kind, entry.name))
    if not all(text.isprintable() for text in (cache.version, *texts)):
        _refuse("a name holds a character that cannot be printed")  # a terminal would obey it
    paths = [entry.path for entry in cache.entries]
    if paths != sorted(set(paths)):
        _refuse("the entries are not sorted, or one is there twice")
    for path, entry in cache.libraries().items():
        if path not in listing.files:
            _refuse(f"the entry {entry.path!r:.200} has no library {entry.library!r:.200}")
    for path, unit in cache.owners(paths):
        if unit is None:
            _refuse(f"the entry {path!r:.200} belongs to no unit")


def _check_units(cache: ListedCache, files: Iterable[str]) -> None:
    if list(cache.units) != sorted(set(cache.units)):
        _refuse("the units are not sorted, or one is there twice")
    for path, unit in cache.owners(cache.units):
        if path != unit:
            _refuse(
                f"the unit {path!r:.200} is in another one,"
                f" or has more than {_MAX_UNIT_PARTS} parts"
            )
    used = set()
    for path, unit in cache.owners((*files, *cache.links)):
        if unit is None:
            _refuse(f"{path} belongs to no unit")
        used.add(unit)
    if unused := set(cache.units) - used:
        _refuse(f"the unit {min(unused)!r:.200} holds nothing")


def _beginnings(path: str) -> Iterator[str]:
    """Yield a path's first part, its first two, and so on: as many as a unit can have."""
    end = -1
    for _ in range(_MAX_UNIT_PARTS):
        end = path.find("/", end + 1)
        if end < 0:
            yield path
            return
        yield path[:end]


def _refuse(problem: str) -> NoReturn:
    raise malformed(problem)
