"""Bringing a carried cache to its system's own place: what is missing there, and nothing else.

What is missing is unpacked and checked in a private folder of the cache, and put on the disk; then
each entry appears by one rename, those that links lead to first. An entry that is there stays as it
is. Killed at any instant, the cache holds whole entries only, and the next attempt brings the rest
and removes the private folder. Nothing is written outside the folder that was named.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tilusbuild.package import groups
from tilusbuild.package.adopted import Adopted
from tilusbuild.package.arriving import Limits, arrivals, check_limits
from tilusbuild.package.check import Checker
from tilusbuild.package.errors import CannotInstall, NoPackage
from tilusbuild.package.formats.plain import settle
from tilusbuild.package.layers import layers
from tilusbuild.package.listing import FileList
from tilusbuild.package.reader import Reader
from tilusbuild.state.files import sync_folder

_PREFIX = ".tilusbuild-"
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)


@dataclass(frozen=True, slots=True)
class Brought:
    """What came of it: the entries that were not there before, and the bytes that were written."""

    new: int
    size: int


def bring(reader: Reader, listing: FileList, place: str, limits: Limits) -> Brought:
    """Make the folder `place` hold the cache that the package carries; `listing` is its list.

    Raises `PackageError`s; then what was there is as it was, and what came is whole.
    """
    cache = listing.adopted
    if cache is None:
        raise NoPackage("it carries no cache of another system")
    check_limits(listing, reader, limits)
    missing = {unit for unit in cache.units if not os.path.lexists(os.path.join(place, unit))}
    came: set[str] = set()
    if missing:
        with _explained(place), _private(place) as private:
            _unpack(reader, listing, cache, missing, private)
            made = os.path.join(private, cache.prefix)
            _place(cache, made, place)
            settle(private)
            _link(cache, missing, made)
            came = set(_publish(cache, missing, made, place))
    files = {path.removeprefix(cache.prefix): file.size for path, file in listing.files.items()}
    return Brought(
        sum(unit in came for _, unit in cache.owners(entry.path for entry in cache.entries)),
        sum(files[path] for path, unit in cache.owners(files) if unit in came),
    )


def _unpack(
    reader: Reader, listing: FileList, cache: Adopted, missing: set[str], private: str
) -> None:
    wanted = {
        cache.prefix + path
        for path, unit in cache.owners(_paths(listing, cache))
        if unit in missing
    }
    checker = Checker(listing, private)
    for arrival in arrivals(reader, listing, layers(listing)):
        checker.take(arrival, keep=arrival.path in wanted)


def _paths(listing: FileList, cache: Adopted) -> list[str]:
    return [path.removeprefix(cache.prefix) for path in listing.files]


def _place(cache: Adopted, made: str, place: str) -> None:
    """Tell the files that say where they are."""
    for above, _, files in os.walk(made):
        home = os.path.relpath(above, made)
        for name in files:
            if groups.is_group(cache.system, os.path.join(home, name)):
                path = os.path.join(above, name)
                with open(path, "r+b") as file:
                    placed = groups.with_place(file.read(), os.path.join(place, home))
                    file.seek(0)
                    file.write(placed)
                    file.truncate()


def _link(cache: Adopted, missing: set[str], made: str) -> None:
    """Make the links, relative to where they are."""
    for link, unit in cache.owners(cache.links):
        if unit in missing:
            path = os.path.join(made, link)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(os.path.relpath(cache.links[link], os.path.dirname(link)), path)


def _publish(cache: Adopted, missing: set[str], made: str, place: str) -> Iterator[str]:
    """Move units to their places, those with links last; the ones that nobody was quicker with."""
    linking = {unit for _, unit in cache.owners(cache.links)}
    for unit in sorted(missing, key=lambda each: (each in linking, each)):
        final = os.path.join(place, unit)
        os.makedirs(os.path.dirname(final), exist_ok=True)
        if os.path.lexists(final):
            continue
        try:
            os.rename(os.path.join(made, unit), final)
        except OSError as error:
            if error.errno in _TAKEN and os.path.lexists(final):
                continue
            raise
        sync_folder(os.path.dirname(final))
        yield unit


@contextmanager
def _private(place: str) -> Iterator[str]:
    """A locked folder in `place`; those that killed processes left are removed."""
    os.makedirs(place, exist_ok=True)
    for name in os.listdir(place):
        if name.startswith(_PREFIX):
            _sweep(os.path.join(place, name))
    path, handle = _locked(place)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def _locked(place: str) -> tuple[str, int]:
    """A new folder and what holds its lock; another one when somebody swept it before."""
    while True:
        path = tempfile.mkdtemp(prefix=_PREFIX, dir=place)
        with suppress(FileNotFoundError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.path.isdir(path):
                return path, handle
            os.close(handle)


def _sweep(path: str) -> None:
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(handle)


@contextmanager
def _explained(place: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotInstall(
            f"{place} cannot be written: {error.strerror or error}",
            hint="--into names another folder",
        ) from None
