"""Install a package into a cache.

Missing programs, scripts and headers are unpacked into a private directory of the cache and checked
there. Then they are published like those of a build, each by one rename. Last, the index names the
package, so that `load` finds it and garbage collection keeps it. A killed installation leaves a
correct cache: the next one finds the published programs, and a sweep removes the rest.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from tilusbuild.cache import layout
from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.entries import Entry, get_product, lookup_entry
from tilusbuild.cache.includes import is_include_whole, publish_include
from tilusbuild.cache.index import forget_projects, read_index, record_build
from tilusbuild.cache.locks import LockName
from tilusbuild.cache.merging import install_program, install_script, list_include_files
from tilusbuild.cache.tree import Tree
from tilusbuild.dispatch.measurements import adopt_tables
from tilusbuild.errors import did_you_mean, input_error
from tilusbuild.package import names
from tilusbuild.package.check import PackageChecker
from tilusbuild.package.errors import no_package, not_reproduced
from tilusbuild.package.extract import Limits, check_limits, check_members
from tilusbuild.package.listing import FileList, ScriptEntry, parse_list
from tilusbuild.package.model import Reader
from tilusbuild.runtime.loading import is_tie
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.script import read_script
from tilusbuild.runtime.sealed import CorruptFileError
from tilusbuild.runtime.search_roots import PACKAGE_ROOT as ROOT
from tilusbuild.state.files import sha256_file


class InstalledPackage(Struct, frozen=True):
    """The result of an installation."""

    listing: FileList
    new: int
    """Programs that the cache did not have before."""
    size: int
    """Bytes of programs and headers that were written."""


def install_package(reader: Reader, cache: Tree, limits: Limits) -> InstalledPackage:
    """Install a package and record it in the index, in place of an earlier version.

    Raises `PackageError`, `CacheError`, and `InputError` for a directory that is not a cache; then
    the index is unchanged.
    """
    listing = parse_list(reader.list_bytes())
    if listing.key is not None:
        raise no_package(f"it holds {listing.summary}, not programs of tilusbuild")
    check_limits(listing, reader, limits)
    # Called for its checks of names and sizes: an installation needs no signature.
    reader.attestations()
    # Garbage collection waits for this lock: a program that was found here must not be removed
    # before the index names the package.
    with cache.hold_locks(LockName("use", shared=True)):
        missing = _list_missing(cache, listing)
        if missing:
            _unpack_and_publish(reader, cache, listing, missing)
        # Recorded last, because `load` fails if the index names programs that are missing.
        pairs = [script.pair for script in listing.scripts]
        record_build(cache, ROOT + listing.title, f"{listing.title} {listing.version}", pairs)
    written_files = [
        file
        for path, file in listing.files.items()
        if _name_root(path) in missing and not path.startswith(layout.SCRIPTS)
    ]
    return InstalledPackage(
        listing=listing,
        new=sum(root.startswith(layout.PROGRAMS) for root in missing),
        size=sum(file.size for file in written_files),
    )


def _unpack_and_publish(reader: Reader, cache: Tree, listing: FileList, missing: set[str]) -> None:
    """Unpack the `missing` directories, check them and publish them. All other files of the package
    are left in its container. Raises `PackageError`, `CacheError`."""
    private = cache.make_private()
    try:
        checker = PackageChecker(listing, private.path)
        with wrap_oserror(private.path):
            for member in check_members(reader, listing):
                if _name_root(member.path) in missing:
                    checker.read_member(member, keep=True)
            checker.check_scripts()
            _publish_missing(cache, listing, missing, private.path)
    finally:
        private.discard()


def list_ties(cache: Tree, listing: FileList) -> Iterator[tuple[str, str]]:
    """Yield the label of each instance of an installed package, with the other package or manifest
    that has one of these constants for the same calls in the cache. Raises `CorruptFileError` and
    `LoadError`."""
    for key, project in read_index(cache).items():
        is_package = key.startswith(ROOT)
        if key == ROOT + listing.title or not (is_package or os.path.isabs(key)):
            continue
        paths = {pair: cache.script_path(*pair) for pair in project.scripts}
        for entry, (pair, path) in itertools.product(listing.scripts, paths.items()):
            if pair[0] != entry.pair[0] or pair == entry.pair or not os.path.isdir(path):
                continue
            one, other = read_script(cache.script_path(*entry.pair)), read_script(path)
            if one.params == other.params and is_tie(one, other):
                yield one.label, f"package {project.name}" if is_package else key


def uninstall_package(cache: Tree, name: str) -> None:
    """Remove a package from the index, so that `gc` may remove its programs.

    Raises `InputError` if it is not installed, `CacheError`, and `CorruptFileError`.
    """
    package_names = list_installed(cache)
    if name not in package_names:
        raise input_error(
            f"no package {name} in {cache.root}",
            hint=did_you_mean(name, package_names) or "there is none",
        )
    forget_projects(cache, [ROOT + name])


def list_installed(cache: Tree) -> dict[str, str]:
    """Return "NAME VERSION" of each installed package by its name. Raises `CorruptFileError`."""
    return {
        key.removeprefix(ROOT): project.name
        for key, project in read_index(cache).items()
        if key.startswith(ROOT)
    }


def _name_root(path: str) -> str:
    """Return the directory of a file that is published as a whole: `programs/HASH`,
    `include/DIGEST`, `tests/HASH` or `scripts/NAME/HASH`."""
    kind, directory, digest = names.split_root(path)
    return f"{kind}/{directory}/{digest}" if directory else f"{kind}/{digest}"


# What is missing.


def _list_missing(cache: Tree, listing: FileList) -> set[str]:
    """Return the directories, such as `programs/HASH`, that the cache is to get from the package.
    Raises `PackageError` if it has one of the programs with another library."""
    missing = set()
    for program in listing.programs:
        entry = lookup_entry(cache, program)
        if entry is None:
            missing.add(f"{layout.PROGRAMS}/{program}")
        else:
            _check_same_library(cache, listing, entry)
    header_paths = (path for path in listing.files if path.startswith(layout.INCLUDE))
    for digest in {names.split_root(path)[2] for path in header_paths}:
        if not is_include_whole(cache.include_path(digest), digest):
            missing.add(f"{layout.INCLUDE}/{digest}")
    built_scripts = _list_project_scripts(cache)
    for script in listing.scripts:
        if script.pair not in built_scripts and not _has_script(cache, listing, script):
            missing.add(script.root)
    return missing


def _check_same_library(cache: Tree, listing: FileList, entry: Entry) -> None:
    """Raise `PackageError` for an entry whose library differs from that of the package."""
    listed_digest = listing.files[f"{layout.PROGRAMS}/{entry.hash}/{layout.LIBRARY}"].sha256
    built_digest = get_product(entry.meta).sha256
    if built_digest != listed_digest:
        state = f"has a library of sha256 {built_digest}" if built_digest else f"is {entry.status}"
        raise not_reproduced(
            f"{layout.PROGRAMS}/{entry.hash} {state} in {cache.root};"
            f" in the package it is {listed_digest}",
            hint="the same inputs gave other results; --cache-dir names another cache",
        )


def _list_project_scripts(cache: Tree) -> set[tuple[str, str]]:
    """Return (directory, hash) of the scripts that the cache's projects have built, as opposed to
    installed ones. An installation must not change their tables."""
    try:
        projects = read_index(cache)
    except CorruptFileError:
        return set()
    return {
        script
        for key, project in projects.items()
        if not key.startswith(ROOT)
        for script in project.scripts
        # The index may name a script that was deleted by hand: that one is installed.
        if os.path.isdir(cache.script_path(*script))
    }


def _has_script(cache: Tree, listing: FileList, script: ScriptEntry) -> bool:
    """Return whether the cache has the script with exactly the listed files. Measurements are not
    compared."""
    prefix = f"{script.root}/"
    # Measurements are this machine's own, and the links to programs are made by publishing.
    listed_digests = {
        path.removeprefix(prefix): file.sha256
        for path, file in listing.files.items()
        if path.startswith(prefix) and f"/{layout.LATENCY}/" not in path
    }
    directory = cache.script_path(*script.pair)
    try:
        cached_digests = {
            name: sha256_file(os.path.join(directory, name))
            for name in layout.list_files_below(directory)
            if not name.startswith(_NOT_COMPARED)
        }
    # The script was never installed, or a file was put in its place.
    except (FileNotFoundError, NotADirectoryError):
        return False
    return listed_digests == cached_digests


_NOT_COMPARED = tuple(f"{name}/" for name in (layout.PROGRAMS, layout.FAILED, layout.LATENCY))


# Publishing.


def _publish_missing(cache: Tree, listing: FileList, missing: set[str], directory: str) -> None:
    """Publish the missing headers in `directory`, then the programs that need them, then their
    scripts. Raises `PackageError` and `CacheError`."""
    for root in sorted(missing):
        kind, _, digest = root.partition("/")
        if kind == layout.INCLUDE:
            publish_include(cache, digest, list_include_files(os.path.join(directory, root)))
    for program in listing.programs:
        if f"{layout.PROGRAMS}/{program}" in missing:
            path = os.path.join(directory, layout.PROGRAMS, program)
            # A build may have published the program meanwhile: then the cache keeps that one.
            entry = install_program(cache, program, path)
            _check_same_library(cache, listing, entry)
    for script in listing.scripts:
        path = os.path.join(directory, script.root)
        if os.path.isdir(path):
            files = {file.name: read_bytes(file) for file in Path(path).iterdir() if file.is_file()}
            dispatcher = os.path.join(path, layout.DISPATCH)
            new_dispatcher = dispatcher if os.path.lexists(dispatcher) else None
            script_path = install_script(cache, *script.pair, files, new_dispatcher)
            adopt_tables(cache, read_script(script_path))
