"""Triton: a directory for each key, of base32 or hexadecimal digits, with a `__grp__` file.

The file names the group's other files by absolute paths: in a cache that was moved these do not
exist, which Triton treats as a miss.
"""

from __future__ import annotations

import os
import re

from tilusbuild.interop.caches.directory import (
    CacheDirectory,
    ForeignCache,
    ForeignEntry,
    StaleFile,
    matching,
)

SYSTEM = "triton"
_KEY = re.compile(r"[A-Z2-7]{52}|[0-9a-f]{64}")
_TEMPORARY = re.compile(r"tmp\.pid_.*")


def is_one(directory: CacheDirectory) -> bool:
    """Return whether a directory has this layout."""
    return any(_is_entry(directory, key) for key in matching(directory.directories(), _KEY))


def read(directory: CacheDirectory) -> ForeignCache:
    """Return the whole cache."""
    keys = [key for key in matching(directory.directories(), _KEY) if _is_entry(directory, key)]
    entries = tuple(_kernel(directory, key) for key in keys)
    versions = {entry.compiled_by.partition(" ")[2] for entry in entries} - {""}
    stale = tuple(piece for key in keys for piece in _temporary(directory, key))
    return ForeignCache(SYSTEM, ", ".join(sorted(versions)), directory.root, entries, stale)


def _is_entry(directory: CacheDirectory, key: str) -> bool:
    return any(
        name.startswith("__grp__") or name.endswith((".cubin", ".so", ".ptx", ".hsaco"))
        for name in directory.names(key)
    )


def _kernel(directory: CacheDirectory, key: str) -> ForeignEntry:
    names = directory.names(key)
    group = next((name for name in names if name.startswith("__grp__")), None)
    stem = group.removeprefix("__grp__").removesuffix(".json") if group else ""
    code = next((name for name in names if name.endswith((".cubin", ".hsaco", ".so"))), None)
    entry = ForeignEntry(
        directory, key, "kernel" if group else "helper", stem or os.path.splitext(code or "")[0]
    )
    if group is not None:
        _group(entry, group)
        _metadata(entry, f"{stem}.json")
    if code is not None:
        entry.read_library(code)
        entry.compare(code)
    elif group is not None:
        entry.wrong("has no compiled code")
    return entry.whole()


def _group(entry: ForeignEntry, group: str) -> None:
    value = entry.directory.json(entry.path, group)
    paths = value.get("child_paths") if isinstance(value, dict) else None
    if not isinstance(paths, dict):
        entry.wrong("is not a group", group)
        return
    away = [name for name, path in paths.items() if not os.path.isfile(str(path))]
    here = [name for name in away if entry.directory.is_file(entry.path, name)]
    if here:
        what = f"names {len(here)} files by paths that do not exist: it was moved"
        entry.wrong(what, group, moved=True)
    for name in away:
        if name not in here:
            entry.wrong("is missing", name)


def _metadata(entry: ForeignEntry, name: str) -> None:
    value = entry.directory.json(entry.path, name)
    if not isinstance(value, dict):
        entry.wrong("is missing or not JSON", name)
        return
    target = value.get("target")
    if isinstance(target, dict) and target.get("backend") == "cuda":
        entry.declared_arch = f"sm_{target.get('arch')}"
    entry.compiled_by = f"triton {value.get('triton_version', '')}".strip()


def _temporary(directory: CacheDirectory, key: str) -> list[StaleFile]:
    found = []
    for name in matching(directory.directories(key), _TEMPORARY):
        size, modified = directory.measured(directory.below(key, name))
        found.append(StaleFile(f"{key}/{name}", "a leftover of a killed process", size, modified))
    return found
