"""Tilus 0.2: `programs/<12 digits>/` and `scripts/<name>/<constants>-<8 digits>/` with links there.

A program's name is the start of sha256(options.txt + program.txt), which is checked. Tilus
considers a program whole when three files exist, and so loads what a killed compiler left.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from tilusbuild.interop.caches.directory import (
    CacheDirectory,
    ForeignCache,
    ForeignEntry,
    ForeignProblem,
    StaleFile,
    matching,
)
from tilusbuild.state.files import sha256_text

SYSTEM = "tilus"
_PROGRAM = re.compile(r"[0-9a-f]{12}")
_SCRIPT = re.compile(r"(?:.*-)?[0-9a-f]{8}", re.DOTALL)
_FAILED = "failed/building"
_TARGET = re.compile(r"arch='sm(\d+[af]?)'")


def is_one(directory: CacheDirectory) -> bool:
    """Return whether a directory has this layout."""
    programs = list(matching(directory.directories("programs"), _PROGRAM))
    return any(directory.is_file("programs", name, "options.txt") for name in programs) or any(
        directory.is_file("scripts", name, key, "build_options.txt")
        for name in directory.directories("scripts")
        for key in directory.directories("scripts", name)
    )


def read(directory: CacheDirectory) -> ForeignCache:
    """Return the whole cache."""
    named: dict[str, str] = {}
    failed = set()
    for name, home in _script_directories(directory):
        for path, program in _links(directory, home):
            named[program] = name
            if path.startswith(f"{home}/{_FAILED}/"):
                failed.add(program)
    entries = [
        _program(directory, digest, named.get(digest, ""), failed=digest in failed)
        for digest in matching(directory.directories("programs"), _PROGRAM)
    ]
    problems, stale, shared = _scripts(directory)
    return ForeignCache(
        system=SYSTEM,
        version="",
        root=directory.root,
        entries=tuple(entries),
        stale=tuple(stale),
        problems=tuple(problems),
        shared=tuple(shared),
    )


def _program(directory: CacheDirectory, digest: str, name: str, *, failed: bool) -> ForeignEntry:
    home = f"programs/{digest}"
    entry = ForeignEntry(directory, home, "program", name)
    entry.lock = f"{home}/.lock" if directory.is_file(home, ".lock") else None
    options = directory.text(home, "options.txt") or ""
    found = _TARGET.search(options)
    entry.declared_arch = f"sm_{found[1]}" if found else ""
    entry.compiled_by = "nvcc" if directory.is_file(home, "module", "nvcc_output.txt") else ""
    if entry.has("program.txt", "options.txt"):
        program = directory.text(home, "program.txt") or ""
        if not sha256_text(options + program).startswith(digest):
            entry.wrong("is not named by its options.txt and program.txt")
    if not failed or directory.is_file(home, "module", "lib.so"):
        entry.read_library("module/lib.so")
        entry.compare("module/lib.so")
    return entry.whole()


def _script_directories(directory: CacheDirectory) -> Iterator[tuple[str, str]]:
    for name in directory.directories("scripts"):
        for key in matching(directory.directories("scripts", name), _SCRIPT):
            yield name, f"scripts/{name}/{key}"


def _links(directory: CacheDirectory, home: str) -> Iterator[tuple[str, str]]:
    """Yield links to programs: their paths, and the program that each leads to."""
    for above in ("programs", _FAILED):
        for name in directory.names(home, above):
            path = f"{home}/{above}/{name}"
            if os.path.islink(directory.path(path)):
                yield path, os.path.basename(os.readlink(directory.path(path)))


def _scripts(directory: CacheDirectory) -> tuple[list[ForeignProblem], list[StaleFile], list[str]]:
    problems, stale, shared = [], [], []
    for _, home in _script_directories(directory):
        links = list(_links(directory, home))
        for path, program in links:
            if not directory.is_directory("programs", program):
                problems.append(
                    ForeignProblem(path, f"leads to program {program}, which is missing")
                )
        files = directory.below(home)
        shared += files
        if not links and not directory.names(home, "failed", "scheduling"):
            size, modified = directory.measured(files)
            stale.append(StaleFile(home, "a script without programs", size, modified))
    return problems, stale, shared
