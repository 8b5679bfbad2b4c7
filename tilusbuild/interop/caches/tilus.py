"""Tilus 0.2: `programs/<12 digits>/` and `scripts/<name>/<constants>-<8 digits>/` with links there.

A program's name is the start of sha256(options.txt + program.txt), which is checked. Tilus takes a
program for whole when three files exist, and so believes a library that a killed compiler left.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator

from tilusbuild.interop.caches.look import Folder, Reading, matching
from tilusbuild.interop.caches.model import Cache, Entry, Litter, Problem

SYSTEM = "tilus"
_PROGRAM = re.compile(r"[0-9a-f]{12}")
_SCRIPT = re.compile(r"(?:.*-)?[0-9a-f]{8}", re.DOTALL)
_TARGET = re.compile(r"arch='sm(\d+[af]?)'")


def is_one(folder: Folder) -> bool:
    """Whether a folder is laid out so."""
    programs = list(matching(folder.folders("programs"), _PROGRAM))
    return any(folder.is_file("programs", name, "options.txt") for name in programs) or any(
        folder.is_file("scripts", name, key, "build_options.txt")
        for name in folder.folders("scripts")
        for key in folder.folders("scripts", name)
    )


def read(folder: Folder) -> Cache:
    """The whole cache."""
    named = {program: name for name, program in _linked(folder)}
    entries = [
        _program(folder, digest, named.get(digest, ""))
        for digest in matching(folder.folders("programs"), _PROGRAM)
    ]
    problems, litter, shared = _scripts(folder)
    return Cache(
        system=SYSTEM,
        version="",
        root=folder.root,
        entries=tuple(entries),
        litter=tuple(litter),
        problems=tuple(problems),
        shared=tuple(shared),
    )


def _program(folder: Folder, digest: str, name: str) -> Entry:
    home = f"programs/{digest}"
    reading = Reading(folder, home, "program", name)
    reading.lock = f"{home}/.lock" if folder.is_file(home, ".lock") else None
    options = folder.text(home, "options.txt") or ""
    found = _TARGET.search(options)
    reading.says = f"sm_{found[1]}" if found else ""
    reading.by = "nvcc" if folder.is_file(home, "module", "nvcc_output.txt") else ""
    if reading.has("program.txt", "options.txt"):
        text = options + (folder.text(home, "program.txt") or "")
        if not hashlib.sha256(text.encode()).hexdigest().startswith(digest):
            reading.wrong("is not named by its options.txt and program.txt")
    reading.read_library("module/lib.so")
    reading.compare("module/lib.so")
    return reading.entry()


def _script_folders(folder: Folder) -> Iterator[tuple[str, str]]:
    for name in folder.folders("scripts"):
        for key in matching(folder.folders("scripts", name), _SCRIPT):
            yield name, f"scripts/{name}/{key}"


def _links(folder: Folder, home: str) -> Iterator[tuple[str, str]]:
    """Links to programs: their paths, and the program that each means."""
    for above in ("programs", "failed/building"):
        for name in folder.names(home, above):
            path = f"{home}/{above}/{name}"
            if os.path.islink(folder.path(path)):
                yield path, os.path.basename(os.readlink(folder.path(path)))


def _linked(folder: Folder) -> Iterator[tuple[str, str]]:
    for name, home in _script_folders(folder):
        for _, program in _links(folder, home):
            yield name, program


def _scripts(folder: Folder) -> tuple[list[Problem], list[Litter], list[str]]:
    problems, litter, shared = [], [], []
    for _, home in _script_folders(folder):
        links = list(_links(folder, home))
        for path, program in links:
            if not folder.is_folder("programs", program):
                problems.append(Problem(path, f"leads to program {program}, which is not there"))
        files = folder.below(home)
        shared += files
        if not links and not folder.names(home, "failed", "scheduling"):
            size, modified = folder.measured(files)
            litter.append(Litter(home, "a script without programs", size, modified))
    return problems, litter, shared
