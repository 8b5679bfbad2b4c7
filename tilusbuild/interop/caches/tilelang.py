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
    match_names,
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
    """Read the cache."""
    entries, versions = [], set()
    for version, above, kind in _list_entry_directories(directory):
        versions.add(version)
        for key in match_names(directory.list_directories(above), _KEY):
            make = _KINDS[kind]
            entries.append(make(directory, os.path.join(above, key), f"tilelang {version}".strip()))
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
        if "cuda-binaries" in below or any(_MACHINE.fullmatch(each) for each in below):
            yield name


def _list_entry_directories(directory: CacheDirectory) -> Iterator[tuple[str, str, str]]:
    """Yield (version, directory of entries, key of `_KINDS`). If the directory is one version's,
    the version is its base name."""
    for version in ("", *directory.list_directories()):
        keys = match_names(directory.list_directories(version), _KEY)
        files = (os.path.join(version, key, name) for key in keys for name in _EARLIER)
        if any(map(directory.is_file, files)):
            yield version, version, "earlier"
    for version in _list_versions(directory):
        name = version or os.path.basename(directory.root)
        for machine in match_names(directory.list_directories(version), _MACHINE):
            above = os.path.join(version, machine, "kernels")
            if any(True for _ in match_names(directory.list_directories(above), _KEY)):
                yield name, above, "kernel"
        above = os.path.join(version, "cuda-binaries")
        if any(True for _ in match_names(directory.list_directories(above), _KEY)):
            yield name, above, "binary"


def _read_kernel(
    directory: CacheDirectory, home: str, by: str, *, earlier: bool = False
) -> ForeignEntry:
    entry = ForeignEntry(directory, home, "kernel", _find_kernel_name(directory, home))
    entry.compiled_by = by
    manifest = {"files": {}} if earlier else directory.read_json(home, "manifest.json")
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict):
        entry.add_problem("is missing or not a manifest", "manifest.json")
        files = {}
    library = next((name for name in _LIBRARIES if directory.is_file(home, name)), None)
    if library is None and not any(name in files for name in _LIBRARIES):
        entry.add_problem("has no library")
    for name, facts in sorted(files.items()):
        _check_file(entry, name, facts)
    if library is not None:
        entry.read_library(library)
    return entry.measure_files()


def _read_binary(directory: CacheDirectory, home: str, by: str) -> ForeignEntry:
    entry = ForeignEntry(directory, home, "binary", "")
    entry.compiled_by = by
    name = next((n for n in ("kernel.cubin", "kernel.fatbin") if directory.is_file(home, n)), None)
    facts = directory.read_json(home, "metadata.json")
    if name is None:
        entry.add_problem("has no binary")
        return entry.measure_files()
    _check_file(entry, name, facts)
    if name == "kernel.cubin":
        entry.read_library(name)
    return entry.measure_files()


_KINDS: Mapping[str, Callable[[CacheDirectory, str, str], ForeignEntry]] = {
    "kernel": _read_kernel,
    "binary": _read_binary,
    "earlier": partial(_read_kernel, earlier=True),
}


def _check_file(entry: ForeignEntry, name: str, facts: Any) -> None:
    """Add a problem if a file has another size or digest than its entry lists."""
    if "/" in name or not isinstance(facts, dict):
        entry.add_problem(f"lists {name!r:.80}, which is not a file of an entry")
        return
    data = entry.directory.read_bytes(entry.path, name)
    if data is None:
        entry.add_problem("is missing", name)
    elif len(data) != facts.get("size"):
        entry.add_problem(f"has {len(data)} bytes of {facts.get('size')}", name)
    elif sha256_bytes(data) != facts.get("sha256"):
        entry.add_problem("is not what its digest says", name)


def _find_kernel_name(directory: CacheDirectory, home: str) -> str:
    """Return the name of the kernel in an entry's source; "" if none is found."""
    for source in ("device_kernel.cu", "kernel.cu"):
        if match := _NAME.search(directory.read_text(home, source) or ""):
            return match[1]
    return ""


def _list_abandoned_stages(directory: CacheDirectory) -> Iterator[StaleFile]:
    """Yield staging directories in which nothing was written for an hour."""
    now = time.time()
    for version in _list_versions(directory):
        places = [os.path.join(version, ".staging", "cuda-binaries")]
        machines = match_names(directory.list_directories(version), _MACHINE)
        places += (os.path.join(version, machine, ".staging") for machine in machines)
        for above in places:
            for name in directory.list_directories(above):
                path = os.path.join(above, name)
                size, modified = directory.measure_files(directory.list_files(path))
                # An empty stage has no files: its own time counts.
                modified = max(modified, os.lstat(directory.join_path(path)).st_mtime)
                # A younger one may be a compile that is running.
                if now - modified > _STALE:
                    yield StaleFile(path, "an abandoned staging directory", size, modified)


def _list_autotuner_files(directory: CacheDirectory) -> Iterator[str]:
    for version in _list_versions(directory):
        for machine in match_names(directory.list_directories(version), _MACHINE):
            for key in directory.list_directories(version, machine, "autotuner"):
                yield from directory.list_files(version, machine, "autotuner", key)
