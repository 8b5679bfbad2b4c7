"""Install the missing entries of a foreign cache in the directory where its system looks for them.

They are unpacked and checked in a private directory of the cache, and synced; then each is
published by one rename, the targets of links first. An existing entry is never changed. Killed at
any instant, the cache holds whole entries only; the next attempt installs the rest and removes the
private directory. Nothing is written outside the directory that was named.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from tilusbuild.cache.layout import list_files_below
from tilusbuild.interop.listing import ListedCache, get_foreign_cache, is_group, restore_group_paths
from tilusbuild.package.check import PackageChecker
from tilusbuild.package.errors import cannot_install
from tilusbuild.package.extract import Limits, check_limits, check_members
from tilusbuild.package.formats.directory import sync_tree
from tilusbuild.package.listing import FileList
from tilusbuild.package.model import Reader
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.directories import make_directories_below, open_below
from tilusbuild.state.files import rename_if_free, sync_directory, write_atomic
from tilusbuild.state.temporary import TemporaryDirectory


def install_foreign_cache(
    reader: Reader, listing: FileList, destination: str, limits: Limits
) -> tuple[int, int]:
    """Add the entries of a package to the cache in the directory `destination`, which is created
    if it is missing. Return the number of new entries and their size in bytes.

    Raises `PackageError`. Existing entries never change, and a new entry is never incomplete.
    """
    cache = get_foreign_cache(listing)
    check_limits(listing, reader, limits)
    missing = _list_missing_units(cache, destination)
    published: set[str] = set()
    if missing:
        try:
            os.makedirs(destination, exist_ok=True)
            with TemporaryDirectory("install", destination) as private:
                _unpack_units(reader, listing, cache, missing, private.path)
                unpacked = os.path.join(private.path, cache.prefix)
                _write_paths_into_groups(cache, unpacked, destination)
                # The content is on disk before it gets its name, so that no published entry is
                # empty after a power failure.
                sync_tree(private.path)
                _make_links(cache, missing, unpacked)
                published = set(_publish_units(cache, missing, unpacked, destination))
        except OSError as error:
            raise cannot_install(
                f"{destination} cannot be written: {error.strerror or error}",
                hint="--into names another directory",
            ) from None
    entry_units = cache.pair_with_units(entry.path for entry in cache.entries)
    new_entries = sum(unit in published for _, unit in entry_units)
    sizes = {path.removeprefix(cache.prefix): file.size for path, file in listing.files.items()}
    file_units = cache.pair_with_units(sizes)
    written_bytes = sum(sizes[path] for path, unit in file_units if unit in published)
    return new_entries, written_bytes


def _list_missing_units(cache: ListedCache, destination: str) -> set[str]:
    """Return the units that the destination does not have: files and directories that are published
    by one rename. Raises `PackageError` for a link on the way to a unit."""
    if not os.path.isdir(destination):
        return set(cache.units)
    missing = set()
    # Directories are opened without following links: a link in the cache would have the files
    # written elsewhere.
    for unit in cache.units:
        parent, _, name = unit.rpartition("/")
        try:
            with open_below(destination, *parent.split("/") if parent else ()) as handle:
                os.stat(name, dir_fd=handle, follow_symlinks=False)
        except FileNotFoundError:
            missing.add(unit)
        except NotADirectoryError as error:
            raise cannot_install(
                f"{destination}: {error.filename} is a link or a file, and nothing is written"
                " through it",
                hint="remove it, or name another directory with --into",
            ) from None
    return missing


def _unpack_units(
    reader: Reader, listing: FileList, cache: ListedCache, missing: set[str], private: str
) -> None:
    """Check all files of the package, and write those of the missing units below `private`. Raises
    `PackageError` and `OSError`."""
    paths_in_cache = (path.removeprefix(cache.prefix) for path in listing.files)
    paths_and_units = cache.pair_with_units(paths_in_cache)
    missing_files = {cache.prefix + path for path, unit in paths_and_units if unit in missing}
    # Also the files of units that exist are checked: a wrong one refuses the whole package.
    checker = PackageChecker(listing, private)
    for member in check_members(reader, listing):
        checker.read_member(member, keep=member.path in missing_files)


def _write_paths_into_groups(cache: ListedCache, unpacked: str, destination: str) -> None:
    """Replace names by absolute paths below `destination` in the unpacked group files, in which
    Triton lists the files of an entry."""
    # The listed digests are of groups without paths, so this comes after the check of the files.
    for path in list_files_below(unpacked):
        if is_group(cache.system, path):
            file = os.path.join(unpacked, path)
            entry_directory = os.path.join(destination, os.path.dirname(path))
            write_atomic(file, restore_group_paths(read_bytes(file), entry_directory))


def _make_links(cache: ListedCache, missing: set[str], unpacked: str) -> None:
    """Make the symbolic links of the missing units in the unpacked cache."""
    for link, unit in cache.pair_with_units(cache.links):
        if unit in missing:
            path = os.path.join(unpacked, link)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            # Relative, so that the cache can be moved.
            os.symlink(os.path.relpath(cache.links[link], os.path.dirname(link)), path)


def _publish_units(
    cache: ListedCache, missing: set[str], unpacked: str, destination: str
) -> Iterator[str]:
    """Rename the missing units into the destination. Yield each one that was renamed; a unit that
    another process has published meanwhile stays as it is. Raises `OSError`."""
    # Units with links come last, so that no link leads to an entry that does not exist yet.
    units_with_links = {unit for _, unit in cache.pair_with_units(cache.links)}
    for unit in sorted(missing, key=lambda unit: (unit in units_with_links, unit)):
        final = os.path.join(destination, unit)
        make_directories_below(destination, *unit.split("/")[:-1])
        if rename_if_free(os.path.join(unpacked, unit), final):
            sync_directory(os.path.dirname(final))
            yield unit
