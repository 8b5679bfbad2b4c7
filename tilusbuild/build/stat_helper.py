"""Compiles the stat helper that large no-op records are checked with, `noop/stat_helper.c`.

It is there for builds of 100,000 entries with nothing to do, of whose time Python's `os.stat` would
be half. One is made by the host compiler for each compiler and source, and kept beside the records;
before it is used it is tried on files whose answer is known. Where there is none, Python checks.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress

from tilusbuild.noop import stat_helper
from tilusbuild.noop.write import packed_names, packed_stamps
from tilusbuild.process.base import CancelledError, Command, Runner, RunnerLostError
from tilusbuild.state.files import write_atomic
from tilusbuild.state.hashing import sha256_text
from tilusbuild.state.stamp import ABSENT, Stamp, stamp_of
from tilusbuild.toolchain import Toolchain

WORTH = 2000
"""Entries. For fewer, loading the helper takes as long as it saves."""
_FLAGS = ("-O2", "-shared", "-fPIC")
_SECONDS = 60.0


def stat_helper_for(records: str, toolchain: Toolchain, runner: Runner) -> str:
    """Return the path of a stat helper that was tried, made if need be; "" when there is none."""
    source = os.path.join(os.path.dirname(stat_helper.__file__), "stat_helper.c")
    with suppress(OSError, CancelledError, RunnerLostError):
        with open(source, encoding="utf-8") as file:
            identity = "\0".join([file.read(), *_FLAGS, toolchain.cc.line, os.uname().machine])
        path = os.path.join(stat_helper.directory(records), f"{sha256_text(identity)}.so")
        if is_right(path):
            return path
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        _make(path, source, toolchain, runner)
        if is_right(path):
            return path
    return ""


def _make(path: str, source: str, toolchain: Toolchain, runner: Runner) -> None:
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=os.path.dirname(path)) as directory:
        made = os.path.join(directory, "helper.so")
        argv = (toolchain.cc.path, *_FLAGS, source, "-o", made)
        if runner.run(Command(argv, directory, toolchain.environment(), _SECONDS)).ok:
            with open(made, "rb") as file:
                write_atomic(path, file.read(), mode=0o600)


def is_right(path: str) -> bool:
    """Return whether a stat helper loads and answers every case rightly. Raises `OSError`."""
    same = stat_helper.load(path, stamp_of(path))
    if same is None:
        return False
    with tempfile.TemporaryDirectory() as directory:
        for names, stats, expected in _cases(os.path.join(directory, "")):
            if same(memoryview(names), memoryview(stats)) != expected:
                return False
    return True


def _cases(directory: str) -> Iterator[tuple[bytes, bytes, bool]]:
    """Yield groups and their answers: a file and a directory as they are, with each number changed,
    missing, and not expected to be there."""
    around, words = (directory, ".x"), ("file", "folder")
    file, inner = (f"{directory}{word}.x" for word in words)
    with open(file, "w") as made:
        made.write("something")
    os.mkdir(inner)
    names = packed_names(around, words)
    twice = packed_names(around, [words[0], words[0]])
    now = [stamp_of(file), stamp_of(inner)]
    yield names, packed_stamps(now), True
    yield packed_names(("", ""), [file, inner]), packed_stamps(now), True
    yield packed_names(around, ["none"]), packed_stamps([ABSENT]), True
    yield packed_names(around, ["none"]), packed_stamps(now[:1]), False
    for changed in (ABSENT, *_neighbours(now[0])):
        yield names, packed_stamps([changed, now[1]]), False
        yield twice, packed_stamps([now[0], changed]), False
    yield packed_names((f"{directory}none/", ".x"), words), packed_stamps(now), False


def _neighbours(stamp: Stamp) -> Iterator[Stamp]:
    """Yield the stamp with each number one more."""
    for place in range(len(stamp)):
        yield Stamp(*(number + (place == at) for at, number in enumerate(stamp)))
