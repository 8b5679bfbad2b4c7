"""Bringing a package into a cache: only what is missing, and all of it or nothing that is used.

What is missing is unpacked into a private folder of the cache and checked there; then programs and
scripts are published as a build publishes them, each by one rename, and last the index names the
package, so that `load` finds it and garbage collection keeps it. Killed at any instant, the cache
is as good as before: programs that came are kept for the next attempt, everything else is swept.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tilusbuild.cache import layout
from tilusbuild.cache.cache import Cache
from tilusbuild.cache.entries import Entry
from tilusbuild.cache.errors import wrap_oserror
from tilusbuild.cache.includes import include_problems
from tilusbuild.cache.install import install_program, install_script
from tilusbuild.cache.locks import LockRange
from tilusbuild.errors import did_you_mean, input_error
from tilusbuild.package import names
from tilusbuild.package.arriving import Limits, arrivals, check_limits
from tilusbuild.package.check import Checker
from tilusbuild.package.errors import NoPackage, NotReproduced
from tilusbuild.package.layers import layers
from tilusbuild.package.listing import FileList, ScriptEntry, parse
from tilusbuild.package.reader import Reader
from tilusbuild.runtime.sealed import CorruptFileError
from tilusbuild.state.hashing import sha256_file

ROOT = "package:"
"""What the names of packages begin with in `index.json`, where projects have their manifests."""


@dataclass(frozen=True, slots=True)
class Installed:
    """What came of it. Sizes are bytes."""

    listing: FileList
    new: int
    """Programs that were not there before."""
    size: int
    """What was written of programs and headers."""
    layers: int
    layers_read: int


def install(reader: Reader, cache: Cache, limits: Limits) -> Installed:
    """Make the cache hold the package, and name it in the index in place of an earlier version.

    Raises `PackageError`s, `CacheError`, and `InputError` for what can be no cache; then nothing
    of the package is in use that was not before.
    """
    listing = parse(reader.list_bytes())
    if listing.part is not None:
        raise NoPackage(f"it holds {listing.part.summary}, not programs of tilusbuild")
    check_limits(listing, reader, limits)
    parts = layers(listing)
    with cache.tree.held(LockRange("use", shared=True)):
        missing = _missing(cache, listing)
        skip = {n for n, part in enumerate(parts) if not any(_root(p) in missing for p in part)}
        if missing:
            _bring(reader, cache, listing, missing, skip)
        _name(cache, listing)
    came = [path for path in listing.files if _root(path) in missing]
    return Installed(
        listing,
        sum(root.startswith(layout.PROGRAMS) for root in missing),
        sum(listing.files[p].size for p in came if not p.startswith(layout.SCRIPTS)),
        len(parts),
        len(parts) - len(skip),
    )


def _bring(
    reader: Reader, cache: Cache, listing: FileList, missing: set[str], skip: set[int]
) -> None:
    """Unpack, check and publish what is missing."""
    private = cache.tree.private()
    try:
        checker = Checker(listing, private.path)
        with wrap_oserror(private.path):
            for arrival in arrivals(reader, listing, layers(listing), skip):
                checker.take(arrival, keep=_root(arrival.path) in missing)
            checker.finish()
            _publish(cache, listing, missing, private.path)
    finally:
        private.discard()


def uninstall(cache: Cache, name: str) -> None:
    """Drop a package from the index: garbage collection may then take what nothing else uses.

    Raises `InputError` when it is not installed, `CacheError`, and `CorruptFileError`.
    """
    there = installed(cache)
    if name not in there:
        raise input_error(
            f"no package {name} in {cache.root}", hint=did_you_mean(name, there) or "there is none"
        )
    cache.forget([ROOT + name])


def installed(cache: Cache) -> dict[str, str]:
    """Name → "NAME VERSION" of the packages in a cache. Raises `CorruptFileError`."""
    return {
        key.removeprefix(ROOT): project.name
        for key, project in cache.projects().items()
        if key.startswith(ROOT)
    }


def _root(path: str) -> str:
    """The program, script or header folder that a file belongs to, as a path in the package."""
    kind, folder, digest = names.root_of(path)
    return f"{kind}/{folder}/{digest}" if folder else f"{kind}/{digest}"


# What is missing.


def _missing(cache: Cache, listing: FileList) -> set[str]:
    found = {f"{layout.PROGRAMS}/{p}" for p in listing.programs if not _has(cache, listing, p)}
    digests = {names.root_of(p)[2] for p in listing.files if p.startswith(layout.INCLUDE)}
    found |= {f"{layout.INCLUDE}/{d}" for d in digests if not _has_include(cache, d)}
    built_here = _built_here(cache)
    for script in listing.scripts:
        folder, digest = script.folder.split("/")
        if (folder, digest) not in built_here and not _has_script(cache, listing, script):
            found.add(f"{layout.SCRIPTS}/{script.folder}")
    return found


def _has(cache: Cache, listing: FileList, program: str) -> bool:
    entry = cache.lookup(program)
    if entry is None:
        return False
    _check_same(cache, listing, entry)
    return True


def _check_same(cache: Cache, listing: FileList, entry: Entry) -> None:
    """Raises `NotReproduced` for an entry with other bytes than the package has."""
    listed = listing.files[f"{layout.PROGRAMS}/{entry.hash}/{layout.LIBRARY}"].sha256
    here = entry.meta["files"].get(layout.LIBRARY, {}).get("sha256")
    if here != listed:
        what = f"is {entry.status}" if here is None else f"has a library of sha256 {here}"
        raise NotReproduced(
            f"{layout.PROGRAMS}/{entry.hash} {what} in {cache.root}; in the package it is {listed}",
            hint="the same inputs gave other results; --cache-dir names another cache",
        )


def _has_include(cache: Cache, digest: str) -> bool:
    try:
        return not include_problems(cache.include_path(digest), digest)
    except OSError:
        return False


def _built_here(cache: Cache) -> set[tuple[str, str]]:
    """The scripts that a project's build made here: their tables are its own to change."""
    try:
        projects = cache.projects()
    except CorruptFileError:
        return set()
    return {
        script
        for key, project in projects.items()
        if not key.startswith(ROOT)
        for script in project.scripts
        if os.path.isdir(cache.tree.script_path(*script))
    }


def _has_script(cache: Cache, listing: FileList, script: ScriptEntry) -> bool:
    where = f"{layout.SCRIPTS}/{script.folder}/"
    listed = {p.removeprefix(where): f.sha256 for p, f in listing.files.items() if _in(p, where)}
    path = cache.tree.script_path(*script.folder.split("/"))
    try:
        there = [name for name in layout.files_below(path) if not _is_link(name)]
        return sorted(there) == sorted(listed) and all(
            sha256_file(os.path.join(path, name)) == digest for name, digest in listed.items()
        )
    except OSError:
        return False


def _in(path: str, where: str) -> bool:
    return path.startswith(where) and "/latency/" not in path


def _is_link(name: str) -> bool:
    return name.startswith((f"{layout.PROGRAMS}/", f"{layout.FAILED}/", "latency/"))


# Publishing.


def _publish(cache: Cache, listing: FileList, missing: set[str], folder: str) -> None:
    """Headers before the programs that need them, and programs before their scripts."""
    for root in sorted(missing):
        kind, _, digest = root.partition("/")
        if kind == layout.INCLUDE:
            cache.publish_include(digest, _files_of(os.path.join(folder, root)))
    for program in listing.programs:
        if f"{layout.PROGRAMS}/{program}" in missing:
            entry = install_program(cache, program, os.path.join(folder, layout.PROGRAMS, program))
            _check_same(cache, listing, entry)  # somebody may have built it meanwhile
    for script in listing.scripts:
        path = os.path.join(folder, layout.SCRIPTS, script.folder)
        if os.path.isdir(path):
            _publish_script(cache, script, path)


def _files_of(path: str) -> dict[str, bytes | str]:
    files: dict[str, bytes | str] = {n: os.path.join(path, n) for n in layout.files_below(path)}
    files[layout.MANIFEST] = _read(os.path.join(path, layout.MANIFEST))
    return files


def _publish_script(cache: Cache, script: ScriptEntry, path: str) -> None:
    folder, digest = script.folder.split("/")
    there = sorted(os.listdir(path))
    files = {
        name: _read(os.path.join(path, name))
        for name in there
        if os.path.isfile(os.path.join(path, name))
    }
    dispatcher = os.path.join(path, layout.DISPATCH) if layout.DISPATCH in there else None
    install_script(cache, folder, digest, files, dispatcher)


def _name(cache: Cache, listing: FileList) -> None:
    scripts: Sequence[tuple[str, str]] = [
        (script.folder.split("/")[0], script.hash) for script in listing.scripts
    ]
    cache.record_build(ROOT + listing.title, f"{listing.title} {listing.version}", scripts)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
