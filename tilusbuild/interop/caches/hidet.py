"""Hidet 0.6: `ops/<target>_space_<n>/<operator>/<16 digits>/`, `ir_modules/`, `graphs/`.

An operator's directory is named by the start of sha256(task.txt), which is checked. The name says
nothing of the architecture, so Hidet itself does not see that a library is for another GPU.

Hidet's own documentation draws an operator with fewer files (`nvcc_log.txt`, `summary.txt`). So a
file is missing only where another file of the version that writes it is there. `onnx/` holds models
and no kernels: it is named, and left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from tilusbuild.interop.caches.directory import (
    CacheDirectory,
    ForeignCache,
    ForeignEntry,
    command_arch,
    matching,
)
from tilusbuild.state.files import sha256_text

SYSTEM = "hidet"
_NOT_KERNELS = ("onnx",)
_LOGS = ("compile.sh", "nvcc_log.txt", "nvcc_output.txt")
"""The files that a compile's command stands in."""
_SPACE = re.compile(r"([a-z]+)_space_([0-9]+)")
_KEY = re.compile(r"[0-9a-f]{16}")


def is_one(directory: CacheDirectory) -> bool:
    """Return whether a directory has this layout."""
    homes = (_operators(directory), _modules(directory), _copies(directory))
    return any(directory.names(home) for found in homes for home in found)


def read(directory: CacheDirectory) -> ForeignCache:
    """Return the whole cache."""
    entries = [_operator(directory, home, keyed=True) for home in _operators(directory)]
    entries += [_module(directory, home) for home in _modules(directory)]
    entries += [_operator(directory, home, keyed=False) for home in _copies(directory)]
    versions = {directory.text(entry.path, "version.txt") or "" for entry in entries} - {""}
    return ForeignCache(
        system=SYSTEM,
        version=", ".join(sorted(versions)),
        root=directory.root,
        entries=tuple(entries),
        shared=tuple(_of_graphs(directory, entries)),
        out_of_scope=tuple(name for name in _NOT_KERNELS if directory.is_directory(name)),
    )


def _operators(directory: CacheDirectory) -> Iterator[str]:
    for space in matching(directory.directories("ops"), _SPACE):
        for name in directory.directories("ops", space):
            for key in matching(directory.directories("ops", space, name), _KEY):
                yield f"ops/{space}/{name}/{key}"


def _modules(directory: CacheDirectory) -> Iterator[str]:
    for key in matching(directory.directories("ir_modules"), _KEY):
        yield f"ir_modules/{key}"


def _copies(directory: CacheDirectory) -> Iterator[str]:
    """Yield the copies of operators in graphs."""
    for graph in matching(directory.directories("graphs"), _KEY):
        for number in directory.directories("graphs", graph, "kernels"):
            yield f"graphs/{graph}/kernels/{number}"


def _operator(directory: CacheDirectory, home: str, *, keyed: bool) -> ForeignEntry:
    meta = directory.json(home, "meta.json")
    known = meta if isinstance(meta, dict) else {}
    name = str(known.get("name", os.path.basename(os.path.dirname(home))))
    entry = ForeignEntry(directory, home, "op" if keyed else "op of a graph", name)
    _common(entry, f"hidet {directory.text(home, 'version.txt') or ''}".strip())
    if not keyed:
        entry.unit = os.path.dirname(os.path.dirname(home))
    if known.get("target") == "cpu":
        entry.declared_arch = "cpu"
    written = directory.is_file(home, "version.txt") or directory.is_file(home, "func_types.pickle")
    if written and entry.has("task.txt", "version.txt", "func_types.pickle") and keyed:
        text = directory.text(home, "task.txt") or ""
        if not sha256_text(text).startswith(os.path.basename(home)):
            entry.wrong("is not named by its task.txt")
    entry.compare("lib.so")
    return entry.whole()


def _module(directory: CacheDirectory, home: str) -> ForeignEntry:
    entry = ForeignEntry(directory, home, "module", "")
    _common(entry, "hidet")
    entry.compare("lib.so")
    return entry.whole()


def _common(entry: ForeignEntry, by: str) -> None:
    directory, home = entry.directory, entry.path
    entry.compiled_by = by
    commands = (directory.text(home, name) or "" for name in _LOGS)
    entry.declared_arch = next(filter(None, map(command_arch, commands)), "")
    entry.lock = f"{home}/.lock" if directory.is_file(home, ".lock") else None
    entry.read_library("lib.so")


def _of_graphs(directory: CacheDirectory, entries: list[ForeignEntry]) -> Iterator[str]:
    taken = {name for entry in entries for name in entry.files}
    for graph in directory.directories("graphs"):
        yield from (name for name in directory.below("graphs", graph) if name not in taken)
