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
    matching,
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


def is_one(directory: CacheDirectory) -> bool:
    """Return whether a directory has this layout, or is one version's part of it."""
    return any(True for _ in _homes(directory))


def read(directory: CacheDirectory) -> ForeignCache:
    """Return the whole cache."""
    entries, versions = [], set()
    for version, above, kind in _homes(directory):
        versions.add(version)
        for key in matching(directory.directories(above), _KEY):
            make = _KINDS[kind]
            entries.append(make(directory, os.path.join(above, key), f"tilelang {version}".strip()))
    return ForeignCache(
        system=SYSTEM,
        version=", ".join(sorted(versions - {""})),
        root=directory.root,
        entries=tuple(entries),
        stale=tuple(_stagings(directory)),
        shared=tuple(_autotuner(directory)),
    )


def _versions(directory: CacheDirectory) -> Iterator[str]:
    """Yield the directories of versions, relative to the cache: "" if it is one itself."""
    for name in ("", *directory.directories()):
        below = directory.directories(name)
        if "cuda-binaries" in below or any(_MACHINE.fullmatch(each) for each in below):
            yield name


def _homes(directory: CacheDirectory) -> Iterator[tuple[str, str, str]]:
    """Yield (version, directory that holds entries, which of `_KINDS` they are)."""
    for version in ("", *directory.directories()):
        keys = matching(directory.directories(version), _KEY)
        files = (os.path.join(version, key, name) for key in keys for name in _EARLIER)
        if any(map(directory.is_file, files)):
            yield version, version, "earlier"
    for version in _versions(directory):
        name = version or os.path.basename(directory.root)
        for machine in matching(directory.directories(version), _MACHINE):
            above = os.path.join(version, machine, "kernels")
            if any(True for _ in matching(directory.directories(above), _KEY)):
                yield name, above, "kernel"
        above = os.path.join(version, "cuda-binaries")
        if any(True for _ in matching(directory.directories(above), _KEY)):
            yield name, above, "binary"


def _kernel(
    directory: CacheDirectory, home: str, by: str, *, earlier: bool = False
) -> ForeignEntry:
    entry = ForeignEntry(directory, home, "kernel", _name(directory, home))
    entry.compiled_by = by
    manifest = {"files": {}} if earlier else directory.json(home, "manifest.json")
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict):
        entry.wrong("is missing or not a manifest", "manifest.json")
        files = {}
    library = next((name for name in _LIBRARIES if directory.is_file(home, name)), None)
    if library is None and not any(name in files for name in _LIBRARIES):
        entry.wrong("has no library")
    for name, facts in sorted(files.items()):
        _check(entry, name, facts)
    if library is not None:
        entry.read_library(library)
    return entry.whole()


def _binary(directory: CacheDirectory, home: str, by: str) -> ForeignEntry:
    entry = ForeignEntry(directory, home, "binary", "")
    entry.compiled_by = by
    name = next((n for n in ("kernel.cubin", "kernel.fatbin") if directory.is_file(home, n)), None)
    facts = directory.json(home, "metadata.json")
    if name is None:
        entry.wrong("has no binary")
        return entry.whole()
    _check(entry, name, facts)
    if name == "kernel.cubin":
        entry.read_library(name)
    return entry.whole()


_KINDS: Mapping[str, Callable[[CacheDirectory, str, str], ForeignEntry]] = {
    "kernel": _kernel,
    "binary": _binary,
    "earlier": partial(_kernel, earlier=True),
}


def _check(entry: ForeignEntry, name: str, facts: Any) -> None:
    """Compare a file with its size and digest."""
    if "/" in name or not isinstance(facts, dict):
        entry.wrong(f"lists {name!r:.80}, which is not a file of an entry")
        return
    data = entry.directory.bytes(entry.path, name)
    if data is None:
        entry.wrong("is missing", name)
    elif len(data) != facts.get("size"):
        entry.wrong(f"has {len(data)} bytes of {facts.get('size')}", name)
    elif sha256_bytes(data) != facts.get("sha256"):
        entry.wrong("is not what its digest says", name)


def _name(directory: CacheDirectory, home: str) -> str:
    for source in ("device_kernel.cu", "kernel.cu"):
        if found := _NAME.search(directory.text(home, source) or ""):
            return found[1]
    return ""


def _stagings(directory: CacheDirectory) -> Iterator[StaleFile]:
    now = time.time()
    for version in _versions(directory):
        places = [os.path.join(version, ".staging", "cuda-binaries")]
        machines = matching(directory.directories(version), _MACHINE)
        places += (os.path.join(version, machine, ".staging") for machine in machines)
        for above in places:
            for name in directory.directories(above):
                path = os.path.join(above, name)
                size, modified = directory.measured(directory.below(path))
                modified = max(modified, os.lstat(directory.path(path)).st_mtime)
                # A younger one may be a compile that is running.
                if now - modified > _STALE:
                    yield StaleFile(path, "an abandoned staging directory", size, modified)


def _autotuner(directory: CacheDirectory) -> Iterator[str]:
    for version in _versions(directory):
        for machine in matching(directory.directories(version), _MACHINE):
            for key in directory.directories(version, machine, "autotuner"):
                yield from directory.below(version, machine, "autotuner", key)
