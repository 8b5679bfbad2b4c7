"""Hidet 0.6: `ops/<target>_space_<n>/<operator>/<16 digits>/`, `ir_modules/`, `graphs/`.

An operator's folder is named by the start of sha256(task.txt), which is checked. The architecture
is no part of the name, so Hidet itself does not see that a library is for another GPU.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator

from tilusbuild.interop.caches.look import Folder, Reading, command_arch, matching
from tilusbuild.interop.caches.model import Cache, Entry

SYSTEM = "hidet"
_SPACE = re.compile(r"([a-z]+)_space_([0-9]+)")
_KEY = re.compile(r"[0-9a-f]{16}")


def is_one(folder: Folder) -> bool:
    """Whether a folder is laid out so."""
    homes = (_operators(folder), _modules(folder), _copies(folder))
    return any(folder.names(home) for found in homes for home in found)


def read(folder: Folder) -> Cache:
    """The whole cache."""
    entries = [_operator(folder, home, keyed=True) for home in _operators(folder)]
    entries += [_module(folder, home) for home in _modules(folder)]
    entries += [_operator(folder, home, keyed=False) for home in _copies(folder)]
    versions = {folder.text(entry.path, "version.txt") or "" for entry in entries} - {""}
    return Cache(
        system=SYSTEM,
        version=", ".join(sorted(versions)),
        root=folder.root,
        entries=tuple(entries),
        shared=tuple(_of_graphs(folder, entries)),
    )


def _operators(folder: Folder) -> Iterator[str]:
    for space in matching(folder.folders("ops"), _SPACE):
        for name in folder.folders("ops", space):
            for key in matching(folder.folders("ops", space, name), _KEY):
                yield f"ops/{space}/{name}/{key}"


def _modules(folder: Folder) -> Iterator[str]:
    for key in matching(folder.folders("ir_modules"), _KEY):
        yield f"ir_modules/{key}"


def _copies(folder: Folder) -> Iterator[str]:
    """Operators that a graph carries."""
    for graph in matching(folder.folders("graphs"), _KEY):
        for number in folder.folders("graphs", graph, "kernels"):
            yield f"graphs/{graph}/kernels/{number}"


def _operator(folder: Folder, home: str, *, keyed: bool) -> Entry:
    meta = folder.json(home, "meta.json")
    known = meta if isinstance(meta, dict) else {}
    name = str(known.get("name", os.path.basename(os.path.dirname(home))))
    reading = Reading(folder, home, "op" if keyed else "op of a graph", name)
    _common(reading, f"hidet {folder.text(home, 'version.txt') or ''}".strip())
    if not keyed:
        reading.unit = os.path.dirname(os.path.dirname(home))
    if known.get("target") == "cpu":
        reading.says = "cpu"
    if reading.has("task.txt", "version.txt", "func_types.pickle") and keyed:
        text = folder.text(home, "task.txt") or ""
        if not hashlib.sha256(text.encode()).hexdigest().startswith(os.path.basename(home)):
            reading.wrong("is not named by its task.txt")
    reading.compare("lib.so")
    return reading.entry()


def _module(folder: Folder, home: str) -> Entry:
    reading = Reading(folder, home, "module", "")
    _common(reading, "hidet")
    reading.compare("lib.so")
    return reading.entry()


def _common(reading: Reading, by: str) -> None:
    folder, home = reading.folder, reading.path
    reading.by = by
    reading.says = command_arch(folder.text(home, "compile.sh") or "")
    reading.lock = f"{home}/.lock" if folder.is_file(home, ".lock") else None
    reading.read_library("lib.so")


def _of_graphs(folder: Folder, entries: list[Entry]) -> Iterator[str]:
    taken = {name for entry in entries for name in entry.files}
    for graph in folder.folders("graphs"):
        yield from (name for name in folder.below("graphs", graph) if name not in taken)
