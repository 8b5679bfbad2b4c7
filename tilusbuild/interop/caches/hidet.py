"""Hidet 0.6: `ops/<target>_space_<n>/<operator>/<16 digits>/`, `ir_modules/`, `graphs/`.

An operator's directory is named by the start of sha256(task.txt), which is checked. The name says
nothing of the architecture, so Hidet itself does not see that a library is for another GPU.

Hidet's own documentation draws an operator with fewer files (`nvcc_log.txt`, `summary.txt`). So a
file is missing only where another file of the version that writes it is there. `onnx/` holds models
and no kernels, and is left alone.
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
)
from tilusbuild.state.files import sha256_text

SYSTEM = "hidet"
_LOGS = ("compile.sh", "nvcc_log.txt", "nvcc_output.txt")
"""The files that may have the command of a compile."""
_OF_COMPLETE = ("version.txt", "func_types.pickle")
"""The files of an operator that the version in the documentation does not write."""
_SPACE = re.compile(r"([a-z]+)_space_([0-9]+)")
_KEY = re.compile(r"[0-9a-f]{16}")


def is_cache_root(directory: CacheDirectory) -> bool:
    """Return whether a directory is a cache of Hidet."""
    path_lists = (_list_operators(directory), _list_modules(directory), _list_copies(directory))
    return any(directory.list_names(path) for paths in path_lists for path in paths)


def read_cache(directory: CacheDirectory) -> ForeignCache:
    """Read all entries of a cache of Hidet, and the files that its graphs share."""
    entries = [_read_operator(directory, home, keyed=True) for home in _list_operators(directory)]
    entries += [_read_module(directory, home) for home in _list_modules(directory)]
    entries += [_read_operator(directory, home, keyed=False) for home in _list_copies(directory)]
    versions = {directory.read_text(f"{entry.path}/version.txt") for entry in entries} - {""}
    return ForeignCache(
        system=SYSTEM,
        version=", ".join(sorted(versions)),
        root=directory.root,
        entries=tuple(entries),
        shared=tuple(_list_graph_files(directory, entries)),
    )


def _list_operators(directory: CacheDirectory) -> Iterator[str]:
    for space in directory.list_directories("ops", _SPACE):
        for name in directory.list_directories(f"ops/{space}"):
            for key in directory.list_directories(f"ops/{space}/{name}", _KEY):
                yield f"ops/{space}/{name}/{key}"


def _list_modules(directory: CacheDirectory) -> Iterator[str]:
    for key in directory.list_directories("ir_modules", _KEY):
        yield f"ir_modules/{key}"


def _list_copies(directory: CacheDirectory) -> Iterator[str]:
    """Yield the paths of the copies of operators in graphs."""
    for graph in directory.list_directories("graphs", _KEY):
        for number in directory.list_directories(f"graphs/{graph}/kernels"):
            yield f"graphs/{graph}/kernels/{number}"


def _read_operator(directory: CacheDirectory, home: str, *, keyed: bool) -> ForeignEntry:
    """Read the entry of an operator at `home`, and note its problems.

    With `keyed`, its directory is named by a digest, which is checked; else it is the copy in a
    graph, with which it is removed.
    """
    value = directory.read_json(f"{home}/meta.json")
    meta = value if isinstance(value, dict) else {}
    name = str(meta.get("name", os.path.basename(os.path.dirname(home))))
    entry = ForeignEntry(directory, home, "op" if keyed else "op of a graph", name)
    # A graph is removed as a whole: Hidet loads none with a part of its kernels.
    entry.unit = "" if keyed else os.path.dirname(os.path.dirname(home))
    _read_library(entry, is_cpu=meta.get("target") == "cpu")
    is_complete_version = any(map(directory.is_file, (f"{home}/{n}" for n in _OF_COMPLETE)))
    # `has_files` adds a problem for each missing file, also of a copy in a graph.
    has_all_files = is_complete_version and entry.has_files("task.txt", *_OF_COMPLETE)
    if has_all_files and keyed:
        text = directory.read_text(f"{home}/task.txt")
        if not sha256_text(text).startswith(os.path.basename(home)):
            entry.add_problem("is not named by its task.txt")
    return entry.measure_files()


def _read_module(directory: CacheDirectory, home: str) -> ForeignEntry:
    entry = ForeignEntry(directory, home, "module", "")
    _read_library(entry)
    return entry.measure_files()


def _read_library(entry: ForeignEntry, *, is_cpu: bool = False) -> None:
    """Set compiler, declared architecture and lock of an entry, and read and check its library."""
    directory, home = entry.directory, entry.path
    entry.compiled_by = f"hidet {directory.read_text(f'{home}/version.txt')}".strip()
    commands = (directory.read_text(f"{home}/{name}") for name in _LOGS)
    arch = next(filter(None, map(find_command_arch, commands)), "")
    entry.declared_arch = "cpu" if is_cpu else arch
    entry.lock = f"{home}/.lock" if directory.is_file(f"{home}/.lock") else None
    entry.read_library("lib.so")
    entry.check_declared_arch("lib.so")


def _list_graph_files(directory: CacheDirectory, entries: list[ForeignEntry]) -> Iterator[str]:
    """Yield the files of graphs that belong to no entry."""
    entry_files = {name for entry in entries for name in entry.files}
    for graph in directory.list_directories("graphs"):
        names = directory.list_files(f"graphs/{graph}")
        yield from (name for name in names if name not in entry_files)
