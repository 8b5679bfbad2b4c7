"""A foreign cache in a package's list: its entries, and the units that are published by one rename.

Its files are listed below `caches/SYSTEM`, under the names that the system gave them. Links are not
files: the list has their paths, and each leads to an entry of the same cache. So nothing of a
checked list leads out of the directory that the package is installed into.

The code in an entry's library is read from its bytes and compared with the list, as are the
library's requirements. Of all other files, pickles among them, only the digest is compared: their
meaning is the system's own affair. Triton's groups, `__grp__NAME.json`, are the only files of a
foreign cache with absolute paths, those of the files of their entry. In a package each path is only
its name, which must be that of a listed file beside the group; installing makes paths of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Annotated, ClassVar

from msgspec import Meta, Struct
from msgspec.json import decode, encode

from tilusbuild.interop.caches import SYSTEMS, triton
from tilusbuild.package import names
from tilusbuild.package.check import check_code
from tilusbuild.package.errors import (
    cannot_pack,
    inconsistent,
    malformed,
    no_package,
    over_limit,
)
from tilusbuild.package.listing import FileList
from tilusbuild.package.model import MAX_LIBRARY_SIZE, Image, Name
from tilusbuild.report.text import format_count
from tilusbuild.runtime.regular import read_text

ROOT = "caches"
_Text = Annotated[str, Meta(max_length=200)]
_Path = Annotated[str, Meta(max_length=names.MAX_PATH)]
_MAX_UNIT_PARTS = 8
_join = "{}/{}".format


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
    """A foreign cache in a list. Paths are relative to the cache. Each of `units` is a file or
    directory that appears by one rename. `links` has the entry to which each link leads. All are
    sorted."""

    system: str
    version: _Text
    entries: tuple[ListedEntry, ...]
    units: tuple[_Path, ...]
    links: Mapping[str, _Path]

    @property
    def prefix(self) -> str:
        """The beginning of the paths of the cache's files in the list."""
        return f"{ROOT}/{self.system}/"

    def pair_with_units(self, paths: Iterable[str]) -> Iterator[tuple[str, str | None]]:
        """Yield each path with the unit that contains it; None for a path in no unit."""
        units = frozenset(self.units)
        for path in paths:
            # Bounded: the parts of a million long paths would be joined for as long as they like.
            parts = path.split("/", _MAX_UNIT_PARTS)[:_MAX_UNIT_PARTS]
            # `a`, `a/b`, `a/b/c` of `a/b/c/d`.
            prefixes = accumulate(parts, _join)
            yield path, next((prefix for prefix in prefixes if prefix in units), None)

    def list_libraries(self) -> dict[str, ListedEntry]:
        """Return the entries, by the listed path of their library."""
        return {f"{self.prefix}{e.path}/{e.library}": e for e in self.entries}


class ForeignList(FileList, frozen=True, kw_only=True, rename={"part": "adopted"}):
    """The list of a package that holds a foreign cache."""

    key: ClassVar[str | None] = "adopted"
    part: ListedCache

    @property
    def summary(self) -> str:
        return f"{format_count(len(self.part.entries), 'entry', 'entries')} of {self.part.system}"

    @staticmethod
    def find_path_problem(below: Sequence[str]) -> str | None:
        if len(below) > 1 and below[0] in SYSTEMS:
            return None
        return f"below caches come {', '.join(sorted(SYSTEMS))}, and a file"

    def make_content_checker(self, path: str, size: int) -> Callable[[bytes], None] | None:
        """Return a function that checks a file's content, for a group file of Triton and for the
        library of an entry; None for any other file. The size is checked at once. Both checks raise
        `PackageError`."""
        is_triton_group = is_group(self.part.system, path)
        entry = self.part.list_libraries().get(path)
        if entry is None and not is_triton_group:
            return None
        # The size is checked before the content is read, because the content is held in memory.
        limit = MAX_GROUP_BYTES if is_triton_group else MAX_LIBRARY_SIZE
        if size > limit:
            raise over_limit(f"{path} has more than {limit} bytes")
        if entry is None:
            return lambda data: check_group(path, data, self.files)
        return lambda data: check_code(path, data, entry.images, entry.machine, self.needs)

    def check_own_part(self) -> None:
        """Raise `PackageError` for files outside of the cache, for inconsistent entries or units,
        and for a link that does not lead to an entry."""
        prefix, links = self.part.prefix, self.part.links
        # Links and files are listed apart, but lie in the same directories: no path may clash.
        names.check_paths([*self.files, *(prefix + link for link in links)])
        for path in self.files:
            if not path.startswith(prefix):
                raise malformed(f"{path} belongs to no cache of {self.part.system}")
        _check_entries(self.part, self)
        _check_units(self.part, [p.removeprefix(prefix) for p in self.files])
        entry_paths = {entry.path for entry in self.part.entries}
        for link, target in links.items():
            if target not in entry_paths:
                raise malformed(f"the link {link} leads to {target!r:.200}, which is not an entry")
            if link in self.part.units:
                raise malformed(f"the link {link} is in the place of an entry")


def get_foreign_cache(listing: FileList) -> ListedCache:
    """Return the foreign cache of a list. Raises `PackageError` for a list of another kind."""
    if not isinstance(listing, ForeignList):
        raise no_package("it holds no foreign cache")
    return listing.part


def count_pickles(listing: FileList) -> int:
    """Return the number of pickles in a package."""
    return sum(path.endswith((".pickle", ".pkl")) for path in listing.files)


def format_pickle_warning(listing: FileList) -> str:
    """Return a line that warns of the pickles in a package; "" if there are none."""
    count = count_pickles(listing)
    if not count:
        return ""
    return (
        f"{count} of its files are pickles: tilusbuild opens none,"
        f" {get_foreign_cache(listing).system} does. Install it only if you trust its author\n"
    )


def _check_entries(cache: ListedCache, listing: FileList) -> None:
    """Raise `PackageError` unless the system is known, the entries are sorted and have printable
    names, each library is listed, and each entry is in a unit."""
    if cache.system not in SYSTEMS:
        raise malformed(
            f"adopted.system is {cache.system!r:.60}, not one of {', '.join(sorted(SYSTEMS))}"
        )
    texts = (text for entry in cache.entries for text in (entry.kind, entry.name))
    # A terminal would obey a control character.
    if not all(text.isprintable() for text in (cache.version, *texts)):
        raise malformed("a name holds a character that cannot be printed")
    paths = [entry.path for entry in cache.entries]
    if paths != sorted(set(paths)):
        raise malformed("the entries are not sorted, or one appears twice")
    for path, entry in cache.list_libraries().items():
        if path not in listing.files:
            raise malformed(f"the entry {entry.path!r:.200} has no library {entry.library!r:.200}")
    for path, unit in cache.pair_with_units(paths):
        if unit is None:
            raise malformed(f"the entry {path!r:.200} belongs to no unit")


def _check_units(cache: ListedCache, files: Iterable[str]) -> None:
    """Raise `PackageError` unless units are sorted, disjoint, and contain every file."""
    if list(cache.units) != sorted(set(cache.units)):
        raise malformed("the units are not sorted, or one appears twice")
    # A unit in another one would be published twice: with that one, and by itself.
    for path, unit in cache.pair_with_units(cache.units):
        if path != unit:
            raise malformed(
                f"the unit {path!r:.200} is in another one,"
                f" or has more than {_MAX_UNIT_PARTS} parts"
            )
    used_units = set()
    for path, unit in cache.pair_with_units((*files, *cache.links)):
        if unit is None:
            raise malformed(f"{path} belongs to no unit")
        used_units.add(unit)
    if unused_units := set(cache.units) - used_units:
        raise malformed(f"the unit {min(unused_units)!r:.200} holds nothing")


# The content of files.


MAX_GROUP_BYTES = 16 << 20


class _TritonGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """A group file of Triton: paths of an entry's files, by name. In a package each path is the
    name."""

    child_paths: Mapping[str, str]


def is_group(system: str, path: str) -> bool:
    """Return whether a path is a group file of Triton."""
    return system == triton.SYSTEM and os.path.basename(path).startswith("__grp__")


def check_group(where: str, data: bytes, files: Container[str]) -> None:
    """Raise `PackageError` unless each file that a group names is a listed file beside it. `where`
    is the path of the group in the package."""
    try:
        group = decode(data, type=_TritonGroup)
    except ValueError as error:
        raise inconsistent(f"{where} is not a group: {error}") from None
    for name, path in group.child_paths.items():
        if name != path or f"{os.path.dirname(where)}/{name}" not in files:
            raise inconsistent(f"{where} names {path!r:.200}, which is not a file beside it")


def strip_group_paths(path: str) -> bytes:
    """Return the group file at `path`, with each file's name in the place of its path. Raises
    `PackageError`."""
    try:
        child_paths = decode(read_text(path), type=_TritonGroup).child_paths
    except (OSError, ValueError) as error:
        raise cannot_pack(f"{path} is not a group of Triton: {error}") from None
    # Sorted: the same entries make the same package.
    return encode(_TritonGroup({name: name for name in sorted(child_paths)}))


def restore_group_paths(data: bytes, directory: str) -> bytes:
    """Return a checked group file with absolute paths in `directory`, that of its entry."""
    names = decode(data, type=_TritonGroup).child_paths
    return encode(_TritonGroup({name: os.path.join(directory, name) for name in names}))
