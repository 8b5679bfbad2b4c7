"""A small list, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilusbuild.digest import sha256_text
from tilusbuild.package.coherent import digest_of_inputs, is_table
from tilusbuild.package.listing import (
    FileEntry,
    FileList,
    Image,
    Needs,
    ProgramEntry,
    ScriptEntry,
    Target,
)


def digest(word: str) -> str:
    """A sha256 to stand for something."""
    return sha256_text(word)


def program_files(program: str, *more: str) -> dict[str, FileEntry]:
    names = ("program.txt", "options.txt", "meta.json", "module/lib.so", *more)
    return {f"programs/{program}/{name}": FileEntry(7, digest(name)) for name in names}


def script_files(script: str, found: str, *more: str) -> dict[str, FileEntry]:
    names = ("script.txt", "script.json", *more)
    return {f"scripts/{script}/{found}/{name}": FileEntry(5, digest(name)) for name in names}


def coherent(found: FileList) -> FileList:
    """The list with the digest of its inputs as it must be."""
    tables = {path: file.sha256 for path, file in found.files.items() if is_table(path)}
    inputs = digest_of_inputs([s.hash for s in found.scripts], found.programs, tables)
    return replace(found, inputs=inputs)


def small_list() -> FileList:
    """Two programs of a script for a GPU, one for the CPU, and a table."""
    first, second, third = digest("p1"), digest("p2"), digest("p3")
    scripts = (
        ScriptEntry("AddOne", digest("s1"), "host", {"dtype": '"f32"'}, (third,), tables=False),
        ScriptEntry("AddOne", digest("s2"), "h100", {"dtype": '"f32"'}, (second, first), True),
    )
    found = FileList(
        name="runtime",
        version="1.2.0",
        project="kernels",
        tool="0.1.0",
        inputs="",
        targets={
            "h100": Target("cuda", ("sm_90a",), ptx=False, toolkit="13.0.88"),
            "host": Target("cpu", ("cpu",), ptx=False, toolkit=None),
        },
        needs=Needs("x86_64", "x86-64-v2", "2.14", ("libc.so.6", "libm.so.6"), "0.1"),
        scripts=tuple(sorted(scripts, key=lambda each: (each.script, each.target, each.hash))),
        programs={
            first: ProgramEntry("AddOne", "h100", (Image("sass", "sm_90a"),)),
            second: ProgramEntry("AddOne", "h100", (Image("sass", "sm_90a"),)),
            third: ProgramEntry("AddOne", "host", ()),
        },
        files={
            **script_files("add_one", digest("s1"), "schedule.txt"),
            **script_files("add_one", digest("s2"), "schedule.txt", "dispatch_table.json"),
            **program_files(first),
            **program_files(second),
            **program_files(third),
        },
    )
    return coherent(found)


@pytest.fixture(scope="session")
def listed() -> FileList:
    return small_list()
