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
    find_command_arch,
    match_names,
)
from tilusbuild.state.files import sha256_text

SYSTEM = "hidet"
_NOT_KERNELS = ("onnx",)
_LOGS = ("compile.sh", "nvcc_log.txt", "nvcc_output.txt")
"""The files that a compile's command stands in."""
_SPACE = re.compile(r"([a-z]+)_space_([0-9]+)")
_KEY = re.compile(r"[0-9a-f]{16}")


def is_cache_root(directory: CacheDirectory) -> bool:
    """Return whether a directory is a cache of Hidet."""
    path_lists = (_list_operators(directory), _list_modules(directory), _list_copies(directory))
    return any(directory.list_names(path) for paths in path_lists for path in paths)


def read_cache(directory: CacheDirectory) -> ForeignCache:
    """Read the cache."""
    entries = [_read_operator(directory, home, keyed=True) for home in _list_operators(directory)]
    entries += [_read_module(directory, home) for home in _list_modules(directory)]
    entries += [_read_operator(directory, home, keyed=False) for home in _list_copies(directory)]
    versions = {directory.read_text(entry.path, "version.txt") or "" for entry in entries} - {""}
    return ForeignCache(
        system=SYSTEM,
        version=", ".join(sorted(versions)),
        root=directory.root,
        entries=tuple(entries),
        shared=tuple(_list_graph_files(directory, entries)),
        out_of_scope=tuple(name for name in _NOT_KERNELS if directory.is_directory(name)),
    )


def _list_operators(directory: CacheDirectory) -> Iterator[str]:
    for space in match_names(directory.list_directories("ops"), _SPACE):
        for name in directory.list_directories("ops", space):
            for key in match_names(directory.list_directories("ops", space, name), _KEY):
                yield f"ops/{space}/{name}/{key}"


def _list_modules(directory: CacheDirectory) -> Iterator[str]:
    for key in match_names(directory.list_directories("ir_modules"), _KEY):
        yield f"ir_modules/{key}"


def _list_copies(directory: CacheDirectory) -> Iterator[str]:
    """Yield the paths of the copies of operators in graphs."""
    for graph in match_names(directory.list_directories("graphs"), _KEY):
        for number in directory.list_directories("graphs", graph, "kernels"):
            yield f"graphs/{graph}/kernels/{number}"


def _read_operator(directory: CacheDirectory, home: str, *, keyed: bool) -> ForeignEntry:
    """Read an operator. `keyed`: its directory is named by a digest, which is checked."""
    meta = directory.read_json(home, "meta.json")
    meta_table = meta if isinstance(meta, dict) else {}
    name = str(meta_table.get("name", os.path.basename(os.path.dirname(home))))
    entry = ForeignEntry(directory, home, "op" if keyed else "op of a graph", name)
    _read_library(entry, f"hidet {directory.read_text(home, 'version.txt') or ''}".strip())
    if not keyed:
        entry.unit = os.path.dirname(os.path.dirname(home))
    if meta_table.get("target") == "cpu":
        entry.declared_arch = "cpu"
    is_complete_version = directory.is_file(home, "version.txt") or directory.is_file(
        home, "func_types.pickle"
    )
    if (
        is_complete_version
        and entry.has_files("task.txt", "version.txt", "func_types.pickle")
        and keyed
    ):
        text = directory.read_text(home, "task.txt") or ""
        if not sha256_text(text).startswith(os.path.basename(home)):
            entry.add_problem("is not named by its task.txt")
    entry.check_declared_arch("lib.so")
    return entry.measure_files()


def _read_module(directory: CacheDirectory, home: str) -> ForeignEntry:
    entry = ForeignEntry(directory, home, "module", "")
    _read_library(entry, "hidet")
    entry.check_declared_arch("lib.so")
    return entry.measure_files()


def _read_library(entry: ForeignEntry, by: str) -> None:
    """Set compiler, declared architecture and lock of an entry, and read its library."""
    directory, home = entry.directory, entry.path
    entry.compiled_by = by
    commands = (directory.read_text(home, name) or "" for name in _LOGS)
    entry.declared_arch = next(filter(None, map(find_command_arch, commands)), "")
    entry.lock = f"{home}/.lock" if directory.is_file(home, ".lock") else None
    entry.read_library("lib.so")


def _list_graph_files(directory: CacheDirectory, entries: list[ForeignEntry]) -> Iterator[str]:
    """Yield the files of graphs that belong to no entry."""
    entry_files = {name for entry in entries for name in entry.files}
    for graph in directory.list_directories("graphs"):
        yield from (
            name for name in directory.list_files("graphs", graph) if name not in entry_files
        )
