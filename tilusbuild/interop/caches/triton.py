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
)

SYSTEM = "triton"
_KEY = re.compile(r"[A-Z2-7]{52}|[0-9a-f]{64}")
_TEMPORARY = re.compile(r"tmp\.pid_.*")


def is_cache_root(directory: CacheDirectory) -> bool:
    """Return whether a directory is a cache of Triton."""
    return any(_is_entry(directory, key) for key in directory.list_directories("", _KEY))


def read_cache(directory: CacheDirectory) -> ForeignCache:
    """Read all entries of a cache of Triton, and the leftovers of killed processes."""
    keys = [key for key in directory.list_directories("", _KEY) if _is_entry(directory, key)]
    entries = tuple(_read_kernel(directory, key) for key in keys)
    versions = {entry.compiled_by.partition(" ")[2] for entry in entries} - {""}
    stale = tuple(file for key in keys for file in _list_temporary_files(directory, key))
    return ForeignCache(SYSTEM, ", ".join(sorted(versions)), directory.root, entries, stale)


def _is_entry(directory: CacheDirectory, key: str) -> bool:
    return any(
        name.startswith("__grp__") or name.endswith((".cubin", ".so", ".ptx", ".hsaco"))
        for name in directory.list_names(key)
    )


def _read_kernel(directory: CacheDirectory, key: str) -> ForeignEntry:
    """Read the entry of a key from its group file, its JSON and its code, and note its problems."""
    names = directory.list_names(key)
    # A directory without a group holds a library that Triton compiles for itself, as its launchers.
    group = next((name for name in names if name.startswith("__grp__")), None)
    stem = group.removeprefix("__grp__").removesuffix(".json") if group else ""
    code = next((name for name in names if name.endswith((".cubin", ".hsaco", ".so"))), None)
    kind = "kernel" if group else "helper"
    name = stem or os.path.splitext(code or "")[0]
    entry = ForeignEntry(directory, key, kind, name)
    if group is not None:
        _check_group_files(entry, group)
        _read_metadata(entry, f"{stem}.json")
    if code is not None:
        entry.read_library(code)
        entry.check_declared_arch(code)
    elif group is not None:
        entry.add_problem("has no compiled code")
    return entry.measure_files()


def _check_group_files(entry: ForeignEntry, group: str) -> None:
    """Add a problem for each missing file that a group names, and one for all files that are in the
    entry but not at the paths of the group."""
    value = entry.directory.read_json(f"{entry.path}/{group}")
    paths = value.get("child_paths") if isinstance(value, dict) else None
    if not isinstance(paths, dict):
        entry.add_problem("is not a group", group)
        return
    missing = [name for name, path in paths.items() if not os.path.isfile(str(path))]
    moved = [name for name in missing if entry.directory.is_file(f"{entry.path}/{name}")]
    if moved:
        message = f"names {len(moved)} files by paths that do not exist: it was moved"
        entry.add_problem(message, group, moved=True)
    for name in sorted({*missing} - {*moved}):
        entry.add_problem("is missing", name)


def _read_metadata(entry: ForeignEntry, name: str) -> None:
    """Set the architecture and the compiler of an entry from its JSON file `name`. Add a problem if
    it cannot be read."""
    value = entry.directory.read_json(f"{entry.path}/{name}")
    if not isinstance(value, dict):
        entry.add_problem("is missing or not JSON", name)
        return
    target = value.get("target")
    if isinstance(target, dict) and target.get("backend") == "cuda":
        entry.declared_arch = f"sm_{target.get('arch')}"
    entry.compiled_by = f"triton {value.get('triton_version', '')}".strip()


def _list_temporary_files(directory: CacheDirectory, key: str) -> list[StaleFile]:
    """Return the leftovers of killed processes in the directory of a key."""
    stale_files = []
    for name in directory.list_directories(key, _TEMPORARY):
        path = f"{key}/{name}"
        size, modified = directory.measure_files(directory.list_files(path))
        stale_files.append(StaleFile(path, "a leftover of a killed process", size, modified))
    return stale_files
