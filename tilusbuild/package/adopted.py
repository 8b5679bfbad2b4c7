"""A cache of another system as a package's list has it: its entries, and what appears as one.

Its files are listed below `caches/SYSTEM`, under the names that the system gave them. Links are no
files: the list says where they are, and each leads to an entry of the same cache, so that whoever
makes them again cannot be led out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from tilusbuild.package import images, names
from tilusbuild.package.errors import ListMalformed
from tilusbuild.package.images import Image
from tilusbuild.package.values import Field

if TYPE_CHECKING:
    from tilusbuild.package.listing import FileList

KEY = "adopted"
ANY_MACHINE = "any"
"""What `needs.machine` says where no file is host code."""
_START = b'{"adopted":'
_LONGEST = 200
_DEEPEST = 8
"""Parts of a unit's path."""


@dataclass(frozen=True, slots=True)
class AdoptedEntry:
    """What the system keeps, finds and throws away as one. `path` is its folder in the cache,
    `library` the file in it that holds the code: `images` for GPUs, and host code for `machine`;
    None: it is no host code."""

    path: str
    kind: str
    name: str
    library: str
    images: tuple[Image, ...]
    machine: str | None


@dataclass(frozen=True, slots=True)
class Adopted:
    """The cache. Paths are relative to it; `units` are the files and folders that appear by one
    rename each, `links` the entry that each link leads to; both sorted, as `entries` are."""

    system: str
    version: str
    entries: tuple[AdoptedEntry, ...]
    units: tuple[str, ...]
    links: Mapping[str, str]

    @property
    def prefix(self) -> str:
        """What the listed files begin with."""
        return f"{names.CACHES}/{self.system}/"

    def owners(self, paths: Iterable[str]) -> Iterator[tuple[str, str | None]]:
        """Each path of the cache with the unit that it belongs to."""
        known = frozenset(self.units)
        for path in paths:
            yield path, next((each for each in _tops(path) if each in known), None)

    def libraries(self) -> dict[str, AdoptedEntry]:
        """The entries by the listed path of their code."""
        return {f"{self.prefix}{e.path}/{e.library}": e for e in self.entries}


def is_adopted(encoded: bytes) -> bool:
    """Whether a list is that of a cache of another system: its first key says so."""
    return encoded.startswith(_START)


def value(found: Adopted) -> dict[str, Any]:
    """What stands in the list."""
    return {
        "system": found.system,
        "version": found.version,
        "entries": [
            {
                "path": each.path,
                "kind": each.kind,
                "name": each.name,
                "library": each.library,
                "images": images.values(each.images),
                "machine": each.machine,
            }
            for each in found.entries
        ],
        "units": list(found.units),
        "links": dict(found.links),
    }


def read(field: Field) -> Adopted:
    """What a list says. Raises `ListMalformed`."""
    system, version, entries, units, links = field.table(
        "system", "version", "entries", "units", "links"
    )
    return Adopted(
        system=system.one_of(*sorted(names.SYSTEMS)),
        version=_shown(version),
        entries=tuple(_entry(each) for each in entries.items()),
        units=tuple(each.text(names.LONGEST_PATH) for each in units.items()),
        links={key: each.text(names.LONGEST_PATH) for key, each in links.mapping()},
    )


def _entry(field: Field) -> AdoptedEntry:
    path, kind, name, library, held, machine = field.table(
        "path", "kind", "name", "library", "images", "machine"
    )
    return AdoptedEntry(
        path=path.text(names.LONGEST_PATH),
        kind=_shown(kind),
        name=_shown(name),
        library=library.text(names.LONGEST_PATH),
        images=images.read(held),
        machine=machine.optional(Field.name),
    )


def _shown(field: Field) -> str:
    """A text that may be printed to a terminal."""
    found = field.text(_LONGEST)
    if not found.isprintable():
        _refuse(f"{field.where} holds a character that cannot be printed")
    return found


def check(found: FileList, cache: Adopted) -> None:
    """Raises `ListMalformed` and `UnsafeName` for a cache whose parts do not belong together."""
    if found.scripts or found.programs or found.targets:
        _refuse("it lists both a cache of another system and programs")
    prefix = cache.prefix
    names.check_paths([*found.files, *(prefix + link for link in cache.links)])
    for path in found.files:
        if not path.startswith(prefix):
            _refuse(f"{path} belongs to no cache of {cache.system}")
    _check_entries(found, cache)
    _check_units(cache, [p.removeprefix(prefix) for p in found.files])
    homes = {entry.path for entry in cache.entries}
    for link, target in cache.links.items():
        if target not in homes:
            _refuse(f"the link {link} leads to {target!r:.200}, which is no entry")
        if link in cache.units:
            _refuse(f"the link {link} stands in the place of an entry")


def _check_entries(found: FileList, cache: Adopted) -> None:
    paths = [entry.path for entry in cache.entries]
    if paths != sorted(set(paths)):
        _refuse("the entries are not sorted, or one is there twice")
    for path, entry in cache.libraries().items():
        if path not in found.files:
            _refuse(f"the entry {entry.path!r:.200} has no library {entry.library!r:.200}")
    for path, unit in cache.owners(paths):
        if unit is None:
            _refuse(f"the entry {path!r:.200} belongs to no unit")


def _check_units(cache: Adopted, files: Iterable[str]) -> None:
    if list(cache.units) != sorted(set(cache.units)):
        _refuse("the units are not sorted, or one is there twice")
    for path, unit in cache.owners(cache.units):
        if path != unit:
            _refuse(f"the unit {path!r:.200} is in another one, or has more than {_DEEPEST} parts")
    used = set()
    for path, unit in cache.owners((*files, *cache.links)):
        if unit is None:
            _refuse(f"{path} belongs to no unit")
        used.add(unit)
    if unused := set(cache.units) - used:
        _refuse(f"the unit {min(unused)!r:.200} holds nothing")


def _tops(path: str) -> Iterator[str]:
    """A path's first part, its first two, and so on: as many as a unit can have."""
    end = -1
    for _ in range(_DEEPEST):
        end = path.find("/", end + 1)
        if end < 0:
            yield path
            return
        yield path[:end]


def _refuse(problem: str) -> NoReturn:
    raise ListMalformed(problem)
