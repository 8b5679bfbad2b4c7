"""TileLang 0.1: `<version>/linux-<machine>/kernels/<sha256>/`, and `<version>/cuda-binaries/`.

Sizes and digests are those of `manifest.json` and `metadata.json`. TileLang itself checks all
sizes, but only the digests of library and parameters. Earlier versions, and TileLang's
documentation, have directories of kernels at the top or below a version, with `kernel.cu`,
`wrapped_kernel.cu`, `kernel_lib.so` and `params.pkl` and no list of digests.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from tilusbuild.interop.caches.directory import (
    CacheDirectory,
    ForeignCache,
    ForeignEntry,
    StaleFile,
)
from tilusbuild.state.files import sha256_bytes

SYSTEM = "tilelang"
_KEY = re.compile(r"[0-9a-f]{64}")
_MACHINE = re.compile(r"(?:linux|darwin|win32)-[A-Za-z0-9_]+")
_LIBRARIES = ("executable.so", "kernel_lib.so", "kernel.cubin", "launcher_lib.so")
_EARLIER = ("params.pkl", "kernel_lib.so", "wrapped_kernel.cu")
"""A directory with any of these is a kernel of an earlier version: no other system has them."""
_STALE = 3600.0
"""Seconds after which TileLang itself considers a staging directory abandoned."""
_NAME = re.compile(r"void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+?)(?:_kernel)?\s*\(")


def is_cache_root(directory: CacheDirectory) -> bool:
    """Return whether a directory is a cache of TileLang, or one version's directory of it."""
    return any(True for _ in _list_entry_directories(directory))


def read_cache(directory: CacheDirectory) -> ForeignCache:
    """Read all entries of a cache of TileLang, its abandoned stages and its autotuner's files."""
    entries, versions = [], set()
    for version, above, kind in _list_entry_directories(directory):
        versions.add(version)
        for key in directory.list_directories(above, _KEY):
            entry = ForeignEntry(directory, os.path.join(above, key), "kernel", "")
            entry.compiled_by = f"tilelang {version}".strip()
            _READERS[kind](entry)
            entries.append(entry.measure_files())
    return ForeignCache(
        system=SYSTEM,
        version=", ".join(sorted(versions - {""})),
        root=directory.root,
        entries=tuple(entries),
        stale=tuple(_list_abandoned_stages(directory)),
        shared=tuple(_list_autotuner_files(directory)),
    )


def _list_versions(directory: CacheDirectory) -> Iterator[str]:
    """Yield the paths of versions' directories, relative to the cache; "" if the directory is one
    itself."""
    for name in ("", *directory.list_directories()):
        below = directory.list_directories(name)
        if "cuda-binaries" in below or any(map(_MACHINE.fullmatch, below)):
            yield name


def _list_entry_directories(directory: CacheDirectory) -> Iterator[tuple[str, str, str]]:
    """Yield (version, directory of entries, key of `_READERS`). If the directory is one version's,
    the version is its base name."""
    # The directory itself may be the cache, or the directory of one version in it.
    for version in ("", *directory.list_directories()):
        keys = directory.list_directories(version, _KEY)
        files = (os.path.join(version, key, name) for key in keys for name in _EARLIER)
        if any(map(directory.is_file, files)):
            yield version, version, "earlier"
    for version in _list_versions(directory):
        name = version or os.path.basename(directory.root)
        for machine in directory.list_directories(version, _MACHINE):
            above = os.path.join(version, machine, "kernels")
            if directory.list_directories(above, _KEY):
                yield name, above, "kernel"
        above = os.path.join(version, "cuda-binaries")
        if directory.list_directories(above, _KEY):
            yield name, above, "binary"


def _read_kernel(entry: ForeignEntry, *, earlier: bool = False) -> None:
    """Set the name and the library of a kernel, and add its problems. With `earlier`, its version
    wrote no manifest."""
    directory, home = entry.directory, entry.path
    sources = (directory.read_text(f"{home}/{name}") for name in ("device_kernel.cu", "kernel.cu"))
    match = next(filter(None, map(_NAME.search, sources)), None)
    entry.name = match[1] if match else ""
    # An earlier version wrote no digests: only its library can be checked.
    manifest = {"files": {}} if earlier else directory.read_json(f"{home}/manifest.json")
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict):
        entry.add_problem("is missing or not a manifest", "manifest.json")
        files = {}
    library = next((name for name in _LIBRARIES if directory.is_file(f"{home}/{name}")), None)
    if library is None and not any(name in files for name in _LIBRARIES):
        entry.add_problem("has no library")
    for name, facts in sorted(files.items()):
        _check_file(entry, name, facts)
    if library is not None:
        entry.read_library(library)


def _read_binary(entry: ForeignEntry) -> None:
    """Set the kind and the library of an entry of `cuda-binaries`, and add its problems."""
    entry.kind = "binary"
    binaries = ("kernel.cubin", "kernel.fatbin")
    name = next((n for n in binaries if entry.directory.is_file(f"{entry.path}/{n}")), None)
    if name is None:
        entry.add_problem("has no binary")
        return
    _check_file(entry, name, entry.directory.read_json(f"{entry.path}/metadata.json"))
    # A fatbin is not an ELF file: only its digest can be checked.
    if name == "kernel.cubin":
        entry.read_library(name)


_READERS: Mapping[str, Callable[[ForeignEntry], None]] = {
    "kernel": _read_kernel,
    "binary": _read_binary,
    "earlier": partial(_read_kernel, earlier=True),
}


def _check_file(entry: ForeignEntry, name: str, facts: Any) -> None:
    """Add a problem to the entry if the file `name` is missing, or has another size or sha256 than
    `facts`, its value in the entry's JSON."""
    if "/" in name or not isinstance(facts, dict):
        entry.add_problem(f"lists {name!r:.80}, which is not a file of an entry")
        return
    data = entry.directory.read_bytes(f"{entry.path}/{name}")
    if data is None:
        entry.add_problem("is missing", name)
    elif len(data) != facts.get("size"):
        entry.add_problem(f"has {len(data)} bytes of {facts.get('size')}", name)
    elif sha256_bytes(data) != facts.get("sha256"):
        entry.add_problem("is not what its digest says", name)


def _list_abandoned_stages(directory: CacheDirectory) -> Iterator[StaleFile]:
    """Yield staging directories in which nothing was written for an hour."""
    now = time.time()
    for version in _list_versions(directory):
        machines = directory.list_directories(version, _MACHINE)
        parents = [f"{machine}/.staging" for machine in machines] + [".staging/cuda-binaries"]
        for parent in parents:
            for name in directory.list_directories(f"{version}/{parent}"):
                path = os.path.join(version, parent, name)
                size, modified = directory.measure_files(directory.list_files(path))
                # An empty stage has no files: its own time counts.
                modified = max(modified, os.lstat(directory.join_path(path)).st_mtime)
                # A younger one may be a compile that is running.
                if now - modified > _STALE:
                    yield StaleFile(path, "an abandoned staging directory", size, modified)


def _list_autotuner_files(directory: CacheDirectory) -> Iterator[str]:
    """Yield the paths of the files in which the autotuner keeps its results."""
    for version in _list_versions(directory):
        for machine in directory.list_directories(version, _MACHINE):
            above = os.path.join(version, machine, "autotuner")
            for key in directory.list_directories(above):
                yield from directory.list_files(f"{above}/{key}")
