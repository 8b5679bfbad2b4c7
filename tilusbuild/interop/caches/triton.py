"""Triton: a folder a key, of base32 or hexadecimal digits, with groups of files named in `__grp__`.

The group holds absolute paths: a cache that was moved has groups that lead nowhere, which Triton
takes for a miss.
"""

from __future__ import annotations

import os
import re

from tilusbuild.interop.caches.look import Folder, Reading, matching
from tilusbuild.interop.caches.model import Cache, Entry, Litter

SYSTEM = "triton"
_KEY = re.compile(r"[A-Z2-7]{52}|[0-9a-f]{64}")
_TEMPORARY = re.compile(r"tmp\.pid_.*")


def is_one(folder: Folder) -> bool:
    """Whether a folder is laid out so."""
    return any(_is_entry(folder, key) for key in matching(folder.folders(), _KEY))


def read(folder: Folder) -> Cache:
    """The whole cache."""
    keys = [key for key in matching(folder.folders(), _KEY) if _is_entry(folder, key)]
    entries = tuple(_kernel(folder, key) for key in keys)
    versions = {entry.by.partition(" ")[2] for entry in entries} - {""}
    litter = tuple(piece for key in keys for piece in _temporary(folder, key))
    return Cache(SYSTEM, ", ".join(sorted(versions)), folder.root, entries, litter)


def _is_entry(folder: Folder, key: str) -> bool:
    return any(
        name.startswith("__grp__") or name.endswith((".cubin", ".so", ".ptx", ".hsaco"))
        for name in folder.names(key)
    )


def _kernel(folder: Folder, key: str) -> Entry:
    names = folder.names(key)
    group = next((name for name in names if name.startswith("__grp__")), None)
    stem = group.removeprefix("__grp__").removesuffix(".json") if group else ""
    code = next((name for name in names if name.endswith((".cubin", ".hsaco", ".so"))), None)
    reading = Reading(
        folder, key, "kernel" if group else "helper", stem or os.path.splitext(code or "")[0]
    )
    if group is not None:
        _group(reading, group)
        _metadata(reading, f"{stem}.json")
    if code is not None:
        reading.read_library(code)
        reading.compare(code)
    elif group is not None:
        reading.wrong("has no compiled code")
    return reading.entry()


def _group(reading: Reading, group: str) -> None:
    value = reading.folder.json(reading.path, group)
    paths = value.get("child_paths") if isinstance(value, dict) else None
    if not isinstance(paths, dict):
        reading.wrong("is no group", group)
        return
    away = [name for name, path in paths.items() if not os.path.isfile(str(path))]
    here = [name for name in away if reading.folder.is_file(reading.path, name)]
    if here:
        what = f"names {len(here)} files by paths that do not exist: it was moved"
        reading.wrong(what, group, moved=True)
    for name in away:
        if name not in here:
            reading.wrong("is missing", name)


def _metadata(reading: Reading, name: str) -> None:
    value = reading.folder.json(reading.path, name)
    if not isinstance(value, dict):
        reading.wrong("is missing or is no JSON", name)
        return
    target = value.get("target")
    if isinstance(target, dict) and target.get("backend") == "cuda":
        reading.says = f"sm_{target.get('arch')}"
    reading.by = f"triton {value.get('triton_version', '')}".strip()


def _temporary(folder: Folder, key: str) -> list[Litter]:
    found = []
    for name in matching(folder.folders(key), _TEMPORARY):
        size, modified = folder.measured(folder.below(key, name))
        found.append(Litter(f"{key}/{name}", "what a killed process left", size, modified))
    return found
