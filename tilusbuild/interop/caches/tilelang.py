"""TileLang 0.1: `<version>/linux-<machine>/kernels/<sha256>/`, and `<version>/cuda-binaries/`.

Sizes and digests are those of `manifest.json` and `metadata.json`. TileLang itself looks at all
sizes, and at the digests of library and parameters only.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import Any

from tilusbuild.interop.caches.look import Folder, Reading, matching
from tilusbuild.interop.caches.model import Cache, Entry, Litter
from tilusbuild.state.hashing import sha256_bytes

SYSTEM = "tilelang"
_KEY = re.compile(r"[0-9a-f]{64}")
_MACHINE = re.compile(r"(?:linux|darwin|win32)-[A-Za-z0-9_]+")
_LIBRARIES = ("executable.so", "kernel_lib.so", "kernel.cubin", "launcher_lib.so")
_STALE = 3600.0
"""Seconds after which TileLang itself takes a staging folder for abandoned."""
_NAME = re.compile(r"void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+?)(?:_kernel)?\s*\(")


def is_one(folder: Folder) -> bool:
    """Whether a folder is laid out so, or is one version of such."""
    return any(True for _ in _homes(folder))


def read(folder: Folder) -> Cache:
    """The whole cache."""
    entries, versions = [], set()
    for version, above, kind in _homes(folder):
        versions.add(version)
        for key in matching(folder.folders(above), _KEY):
            make = _kernel if kind == "kernel" else _binary
            entries.append(make(folder, f"{above}/{key}", f"tilelang {version}".strip()))
    return Cache(
        system=SYSTEM,
        version=", ".join(sorted(versions - {""})),
        root=folder.root,
        entries=tuple(entries),
        litter=tuple(_stagings(folder)),
        shared=tuple(_autotuner(folder)),
    )


def _versions(folder: Folder) -> Iterator[str]:
    """Folders of versions, relative to the cache: "" when it is one itself."""
    for name in ("", *folder.folders()):
        below = folder.folders(name)
        if "cuda-binaries" in below or any(_MACHINE.fullmatch(each) for each in below):
            yield name


def _homes(folder: Folder) -> Iterator[tuple[str, str, str]]:
    """(version, folder that holds entries, "kernel" or "binary")."""
    for version in _versions(folder):
        name = version or os.path.basename(folder.root)
        for machine in matching(folder.folders(version), _MACHINE):
            above = os.path.join(version, machine, "kernels")
            if any(True for _ in matching(folder.folders(above), _KEY)):
                yield name, above, "kernel"
        above = os.path.join(version, "cuda-binaries")
        if any(True for _ in matching(folder.folders(above), _KEY)):
            yield name, above, "binary"


def _kernel(folder: Folder, home: str, by: str) -> Entry:
    reading = Reading(folder, home, "kernel", _name(folder, home))
    reading.by = by
    manifest = folder.json(home, "manifest.json")
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict):
        reading.wrong("is missing or is no manifest", "manifest.json")
        files = {}
    library = next((name for name in _LIBRARIES if folder.is_file(home, name)), None)
    if library is None and not any(name in files for name in _LIBRARIES):
        reading.wrong("has no library")
    for name, facts in sorted(files.items()):
        _check(reading, name, facts)
    if library is not None:
        reading.read_library(library)
    return reading.entry()


def _binary(folder: Folder, home: str, by: str) -> Entry:
    reading = Reading(folder, home, "binary", "")
    reading.by = by
    name = next((n for n in ("kernel.cubin", "kernel.fatbin") if folder.is_file(home, n)), None)
    facts = folder.json(home, "metadata.json")
    if name is None:
        reading.wrong("has no binary")
        return reading.entry()
    _check(reading, name, facts)
    if name == "kernel.cubin":
        reading.read_library(name)
    return reading.entry()


def _check(reading: Reading, name: str, facts: Any) -> None:
    """A file against its size and digest."""
    if "/" in name or not isinstance(facts, dict):
        reading.wrong(f"lists {name!r:.80}, which is no file of an entry")
        return
    data = reading.folder.bytes(reading.path, name)
    if data is None:
        reading.wrong("is missing", name)
    elif len(data) != facts.get("size"):
        reading.wrong(f"has {len(data)} bytes of {facts.get('size')}", name)
    elif sha256_bytes(data) != facts.get("sha256"):
        reading.wrong("is not what its digest says", name)


def _name(folder: Folder, home: str) -> str:
    found = _NAME.search(folder.text(home, "device_kernel.cu") or "")
    return found[1] if found else ""


def _stagings(folder: Folder) -> Iterator[Litter]:
    now = time.time()
    for version in _versions(folder):
        places = [os.path.join(version, ".staging", "cuda-binaries")]
        machines = matching(folder.folders(version), _MACHINE)
        places += (os.path.join(version, machine, ".staging") for machine in machines)
        for above in places:
            for name in folder.folders(above):
                path = os.path.join(above, name)
                size, modified = folder.measured(folder.below(path))
                modified = max(modified, os.lstat(folder.path(path)).st_mtime)
                if now - modified > _STALE:
                    yield Litter(path, "an abandoned staging folder", size, modified)


def _autotuner(folder: Folder) -> Iterator[str]:
    for version in _versions(folder):
        for machine in matching(folder.folders(version), _MACHINE):
            for key in folder.folders(version, machine, "autotuner"):
                yield from folder.below(version, machine, "autotuner", key)
