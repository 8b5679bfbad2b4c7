"""Tilus 0.2: `programs/<12 digits>/` and `scripts/<name>/<constants>-<8 digits>/` with links there.

A program's name is the start of sha256(options.txt + program.txt), which is checked. Tilus
considers a program whole when three files exist, and so loads the output of a killed compiler.
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
)
from tilusbuild.state.files import sha256_text

SYSTEM = "tilus"
_PROGRAM = re.compile(r"[0-9a-f]{12}")
# Before the digits are the constants, which may be any text.
_SCRIPT = re.compile(r"(?:.*-)?[0-9a-f]{8}", re.DOTALL)
_FAILED = "failed/building"
_TARGET = re.compile(r"arch='sm(\d+[af]?)'")


def is_cache_root(directory: CacheDirectory) -> bool:
    """Return whether a directory is a cache of Tilus."""
    programs = directory.list_directories("programs", _PROGRAM)
    return any(directory.is_file(f"programs/{name}/options.txt") for name in programs) or any(
        directory.is_file(f"{home}/build_options.txt")
        for _, home in _list_script_directories(directory)
    )


def read_cache(directory: CacheDirectory) -> ForeignCache:
    """Read all programs of a cache of Tilus, and the files and problems of its scripts."""
    name_by_program: dict[str, str] = {}
    failed_programs = set()
    for name, home in _list_script_directories(directory):
        for path, program in _list_program_links(directory, home):
            name_by_program[program] = name
            if path.startswith(f"{home}/{_FAILED}/"):
                failed_programs.add(program)
    entries = [
        _read_program(
            directory, digest, name_by_program.get(digest, ""), failed=digest in failed_programs
        )
        for digest in directory.list_directories("programs", _PROGRAM)
    ]
    problems, stale, shared = _read_scripts(directory)
    return ForeignCache(
        system=SYSTEM,
        version="",
        root=directory.root,
        entries=tuple(entries),
        stale=tuple(stale),
        problems=tuple(problems),
        shared=tuple(shared),
    )


def _read_program(
    directory: CacheDirectory, digest: str, name: str, *, failed: bool
) -> ForeignEntry:
    """Read the entry of a program, and note its problems. `name` is that of a script that has it;
    with `failed`, a script has it among its failures, and no library is expected."""
    home = f"programs/{digest}"
    entry = ForeignEntry(directory, home, "program", name)
    entry.lock = f"{home}/.lock" if directory.is_file(f"{home}/.lock") else None
    options = directory.read_text(f"{home}/options.txt")
    match = _TARGET.search(options)
    entry.declared_arch = f"sm_{match[1]}" if match else ""
    entry.compiled_by = "nvcc" if directory.is_file(f"{home}/module/nvcc_output.txt") else ""
    if entry.has_files("program.txt", "options.txt"):
        program = directory.read_text(f"{home}/program.txt")
        if not sha256_text(options + program).startswith(digest):
            entry.add_problem("is not named by its options.txt and program.txt")
    # A program that does not compile has no library: nothing is missing.
    if not failed or directory.is_file(f"{home}/module/lib.so"):
        entry.read_library("module/lib.so")
        entry.check_declared_arch("module/lib.so")
    return entry.measure_files()


def _list_script_directories(directory: CacheDirectory) -> Iterator[tuple[str, str]]:
    for name in directory.list_directories("scripts"):
        for key in directory.list_directories(f"scripts/{name}", _SCRIPT):
            yield name, f"scripts/{name}/{key}"


def _list_program_links(directory: CacheDirectory, home: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each link from a script at `home` to a program, and the base name of the
    program."""
    for above in ("programs", _FAILED):
        for name in directory.list_names(f"{home}/{above}"):
            path = f"{home}/{above}/{name}"
            if os.path.islink(directory.join_path(path)):
                yield path, os.path.basename(os.readlink(directory.join_path(path)))


def _read_scripts(
    directory: CacheDirectory,
) -> tuple[list[ForeignProblem], list[StaleFile], list[str]]:
    """Return three lists: links to missing programs, as problems; scripts without programs, as
    stale; and the files of all scripts."""
    problems, stale, shared = [], [], []
    for _, home in _list_script_directories(directory):
        links = list(_list_program_links(directory, home))
        for path, program in links:
            if not directory.is_directory(f"programs/{program}"):
                text = f"leads to program {program}, which is missing"
                problems.append(ForeignProblem(path, text))
        files = directory.list_files(home)
        shared += files
        # A script with failures instead records that none of its schedules could be made.
        if not links and not directory.list_names(f"{home}/failed/scheduling"):
            size, modified = directory.measure_files(files)
            stale.append(StaleFile(home, "a script without programs", size, modified))
    return problems, stale, shared
