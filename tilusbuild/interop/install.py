"""Install a foreign cache in the place where its system looks for it: only what is missing there.

What is missing is unpacked and checked in a private directory of the cache, and synced; then each
entry is published by one rename, those that links lead to first. An existing entry is never
changed. Killed at any instant, the cache holds whole entries only; the next attempt installs the
rest and removes the private directory. Nothing is written outside the directory that was named.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from tilusbuild.interop.listing import ListedCache, cache_of, group_with_place, is_group
from tilusbuild.package.check import Checker
from tilusbuild.package.errors import cannot_install
from tilusbuild.package.extract import Limits, check_limits, members
from tilusbuild.package.formats.directory import sync_all
from tilusbuild.package.listing import FileList
from tilusbuild.package.model import Reader
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.directories import make_directories_below, open_below
from tilusbuild.state.files import rename_if_free, sync_directory, write_atomic
from tilusbuild.state.temporary import TemporaryDirectory


def install(reader: Reader, listing: FileList, place: str, limits: Limits) -> tuple[int, int]:
    """Make the directory `place` hold the foreign cache of the package whose list is `listing`;
    return how many entries are new, and the bytes that were written.

    Raises `PackageError`s; then what was there before is unchanged, and each new entry is whole.
    """
    cache = cache_of(listing)
    check_limits(listing, reader, limits)
    missing = _missing(cache, place)
    published: set[str] = set()
    if missing:
        try:
            os.makedirs(place, exist_ok=True)
            with TemporaryDirectory("install", place) as private:
                _unpack(reader, listing, cache, missing, private.path)
                unpacked = os.path.join(private.path, cache.prefix)
                _place(cache, unpacked, place)
                # Content before names: after a power failure a published entry is not empty.
                sync_all(private.path)
                _link(cache, missing, unpacked)
                published = set(_publish(cache, missing, unpacked, place))
        except OSError as error:
            raise cannot_install(
                f"{place} cannot be written: {error.strerror or error}",
                hint="--into names another directory",
            ) from None
    files = {path.removeprefix(cache.prefix): file.size for path, file in listing.files.items()}
    return (
        sum(unit in published for _, unit in cache.owners(entry.path for entry in cache.entries)),
        sum(files[path] for path, unit in cache.owners(files) if unit in published),
    )


def _missing(cache: ListedCache, place: str) -> set[str]:
    """Return the units that are not there. Raises `PackageError` for a link in the way."""
    if not os.path.isdir(place):
        return set(cache.units)
    missing = set()
    for unit in cache.units:
        above, _, name = unit.rpartition("/")
        try:
            with open_below(place, *above.split("/") if above else ()) as handle:
                os.stat(name, dir_fd=handle, follow_symlinks=False)
        except FileNotFoundError:
            missing.add(unit)
        except NotADirectoryError as error:
            raise cannot_install(
                f"{place}: {error.filename} is a link or a file, and nothing is written through it",
                hint="remove it, or name another directory with --into",
            ) from None
    return missing


def _unpack(
    reader: Reader, listing: FileList, cache: ListedCache, missing: set[str], private: str
) -> None:
    wanted = {
        cache.prefix + path
        for path, unit in cache.owners(p.removeprefix(cache.prefix) for p in listing.files)
        if unit in missing
    }
    checker = Checker(listing, private)
    for member in members(reader, listing):
        checker.take(member, keep=member.path in wanted)


def _place(cache: ListedCache, unpacked: str, place: str) -> None:
    """Write the new place into Triton's groups, which name their files by absolute paths."""
    for above, _, files in os.walk(unpacked):
        home = os.path.relpath(above, unpacked)
        for name in files:
            if is_group(cache.system, os.path.join(home, name)):
                path = os.path.join(above, name)
                placed = group_with_place(read_bytes(path), os.path.join(place, home))
                write_atomic(path, placed)


def _link(cache: ListedCache, missing: set[str], unpacked: str) -> None:
    """Make the links: relative, so that the cache can be moved."""
    for link, unit in cache.owners(cache.links):
        if unit in missing:
            path = os.path.join(unpacked, link)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(os.path.relpath(cache.links[link], os.path.dirname(link)), path)


def _publish(cache: ListedCache, missing: set[str], unpacked: str, place: str) -> Iterator[str]:
    """Rename units into place and yield them, except those that another process published first.

    Units with links come last, so that no link ever leads to an entry that is not there yet.
    """
    linking = {unit for _, unit in cache.owners(cache.links)}
    for unit in sorted(missing, key=lambda each: (each in linking, each)):
        final = os.path.join(place, unit)
        make_directories_below(place, *unit.split("/")[:-1])
        if rename_if_free(os.path.join(unpacked, unit), final):
            sync_directory(os.path.dirname(final))
            yield unit
