"""Makes the stat helper that large records are checked with: `stat_helper.c`, by the host compiler.

One is made for each compiler and source and kept beside the records; before it is used it is tried
on files whose answer is known. Where there is none, Python looks.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

from tilusbuild.noop import record
from tilusbuild.noop import stat_helper as looker
from tilusbuild.process.base import Cancelled, Command, Runner, RunnerLost
from tilusbuild.state.files import write_atomic
from tilusbuild.state.hashing import sha256_text
from tilusbuild.toolchain import Toolchain

WORTH = 2000
"""Entries. For fewer, loading takes as long as is saved."""
_FLAGS = ("-O2", "-shared", "-fPIC")
_SECONDS = 60.0

Stat: TypeAlias = tuple[int, int, int, int]


def looker_for(records: str, toolchain: Toolchain, runner: Runner) -> str:
    """The path of a looker that was tried, made if need be; "" when there is none."""
    source = os.path.join(os.path.dirname(looker.__file__), "stat_helper.c")
    with suppress(OSError, Cancelled, RunnerLost):
        with open(source, encoding="utf-8") as file:
            identity = "\0".join([file.read(), *_FLAGS, toolchain.cc.line, os.uname().machine])
        path = os.path.join(looker.folder(records), f"{sha256_text(identity)}.so")
        if is_right(path):
            return path
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        _make(path, source, toolchain, runner)
        if is_right(path):
            return path
    return ""


def _make(path: str, source: str, toolchain: Toolchain, runner: Runner) -> None:
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=os.path.dirname(path)) as folder:
        made = os.path.join(folder, "looker.so")
        argv = (toolchain.cc.path, *_FLAGS, source, "-o", made)
        if runner.run(Command(argv, folder, toolchain.environment(), _SECONDS)).ok:
            with open(made, "rb") as file:
                write_atomic(path, file.read(), mode=0o600)


def is_right(path: str) -> bool:
    """Whether a looker loads, and answers rightly what `_cases` asks. Raises `OSError`."""
    same = looker.load(path, record.snapshot(path))
    if same is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        for names, stats, expected in _cases(os.path.join(folder, "")):
            if same(memoryview(names), memoryview(stats)) != expected:
                return False
    return True


def _cases(folder: str) -> Iterator[tuple[bytes, bytes, bool]]:
    """Groups and their answers: of a file and a folder as they are, with each fact changed, gone,
    and not expected to be there."""
    around, words = (folder, ".x"), ("file", "folder")
    file, inner = (f"{folder}{word}.x" for word in words)
    with open(file, "w") as made:
        made.write("something")
    os.mkdir(inner)
    names = record.packed_names(around, words)
    twice = record.packed_names(around, [words[0], words[0]])
    now = [record.snapshot(file), record.snapshot(inner)]
    absent = (-1, 0, 0, 0)
    yield names, record.packed_stats(now), True
    yield record.packed_names(("", ""), [file, inner]), record.packed_stats(now), True
    yield record.packed_names(around, ["none"]), record.packed_stats([absent]), True
    yield record.packed_names(around, ["none"]), record.packed_stats(now[:1]), False
    for changed in (absent, *_neighbours(now[0])):
        yield names, record.packed_stats([changed, now[1]]), False
        yield twice, record.packed_stats([now[0], changed]), False
    yield record.packed_names((f"{folder}none/", ".x"), words), record.packed_stats(now), False


def _neighbours(stat: Stat) -> Iterator[Stat]:
    """With each number one more."""
    size, mtime, ctime, inode = stat
    yield size + 1, mtime, ctime, inode
    yield size, mtime + 1, ctime, inode
    yield size, mtime, ctime + 1, inode
    yield size, mtime, ctime, inode + 1
