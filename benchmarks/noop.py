"""Nothing to do: how long until a build system has seen that everything is there.

tilusbuild against ninja and make on the same graph: N programs, each of its own source and of 120
headers, with real outputs and depfiles (`deps = gcc` for ninja). A small example is compared with
the start of the interpreter that it runs in.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import _bench
import _projects
from _bench import Arm, Ran, process

from tilusbuild import record

LAID_OUT = 10_000
"""Above so many programs the entries are laid out by `laid_out`: building them takes an hour."""


def laid_out(folder: Path, programs: int, nvcc: str) -> None:
    """A small project whose record speaks of many more entries, all of them on the disk: what is
    looked at is what it would be for a project of that size."""
    _projects.project(folder, 40, nvcc)
    _projects.fill(folder, sync=False)
    _projects.build(folder)
    with _bench.entered(folder):
        name = record.key(["build"], os.environ)
        path = record.path(name, os.environ)
        assert path is not None
        data = Path(path).read_bytes()
        answer, inputs = record.holds(data, name), record.inputs(data)
        assert answer is not None
        there = os.path.join(os.getcwd(), ".cache/programs", "")
        hashes = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(programs - 40)]
        for digest in hashes:
            os.makedirs(f"{there}{digest}/module")
            with open(f"{there}{digest}/module/lib.so", "wb") as file:
                file.write(bytes(8000))
        text = answer.replace(b"40 programs", f"{programs} programs".encode())
        around = (there, "/module/lib.so")
        entries = {around: [*record.entries(data, around), *hashes]}
        made = record.make(name, text, inputs, entries, time.time_ns() + 10**9)
        assert made is not None
        Path(path).write_bytes(made)


def at(folder: Path, programs: int, nvcc: str, rounds: int, with_make: bool) -> dict[str, object]:
    ours, theirs = folder / "tilus", folder / "graph"
    if programs <= LAID_OUT:
        _projects.project(ours, programs, nvcc)
        _projects.fill(ours, sync=False)
        _projects.build(ours)
    else:
        laid_out(ours, programs, nvcc)
    ours_ran: list[Ran] = []

    def run() -> Ran:
        ours_ran.append(process((*_bench.TILUSBUILD, "build"), ours))
        return ours_ran[-1]

    _projects.graph(theirs, programs)
    ninja = _bench.ninja()
    process((ninja, "-j2"), theirs)
    last: list[str] = [""]

    def peer(*words: str) -> Ran:
        ran = process(words, theirs)
        last[0] = ran.out
        return ran

    libraries = len(list(ours.glob(".cache/programs/*/module/lib.so")))
    outputs = len(list(theirs.glob("out/*.so")))
    assert libraries == outputs == programs, (libraries, outputs)
    arms = [
        Arm("tilusbuild", run, lambda: "nothing to do" in ours_ran[-1].out),
        Arm("ninja", lambda: peer(ninja), lambda: "no work to do" in last[0]),
    ]
    if with_make:
        process(("make", "-s", "-j2"), theirs)
        assert len(list(theirs.glob("mk/*.so"))) == programs
        arms.append(Arm("make", lambda: peer("make", "-s"), lambda: last[0] == ""))
    _bench.alternate(arms, rounds)
    result = _bench.report(f"nothing to do, {programs:,} programs", arms)
    profile(ours)
    assert_sees_changes(ours, programs if programs <= LAID_OUT else 40)
    shutil.rmtree(folder)
    return result


def assert_sees_changes(folder: Path, programs: int) -> None:
    """The last check that nothing was skipped: one library less, and it is made again."""
    library = next(folder.glob(".cache/scripts/*/*/programs/0/module/lib.so")).resolve()
    library.unlink()
    summary = _projects.build(folder)
    assert (summary["compiled"], summary["programs"]) == (1, programs), summary


PROFILE = """\
import sys, time
began = time.perf_counter()
import os
from tilusbuild import record
from tilusbuild.cli import unchanged
imported = time.perf_counter()
name = record.key(["build"], os.environ)
with open(record.path(name, os.environ), "rb") as file:
    data = file.read()
read = time.perf_counter()
looked = []
def stat(*words, **more):
    looked.append(1)
    return found
found = os.stat(".")
t0 = time.perf_counter()
assert record.holds(data, name) is not None
held = time.perf_counter() - t0
print(imported - began, read - imported, held, len(data))
"""


def profile(folder: Path) -> None:
    """Where the milliseconds of our arm go."""
    env = {**os.environ}
    lines = []
    for _ in range(5):
        ran = subprocess.run(
            [sys.executable, "-c", PROFILE],
            cwd=folder, env=env, check=True, capture_output=True, text=True,
        )  # fmt: skip
        lines.append([float(word) for word in ran.stdout.split()])
    imports, reading, holding, size = (sorted(column)[2] for column in zip(*lines, strict=True))
    bare = sorted(process((sys.executable, "-c", "pass"), folder).wall for _ in range(5))[2]
    print(
        f"  of which: interpreter {bare * 1e3:.1f} ms, our imports {imports * 1e3:.1f} ms, reading "
        f"the record ({size / 1024:.0f} KiB) {reading * 1e3:.1f} ms, stats and comparing "
        f"{holding * 1e3:.1f} ms"
    )


def small(folder: Path, rounds: int) -> dict[str, object]:
    """The quickstart's host kernels against `python -c pass` and `python -I -S -c pass`."""
    source = _bench.ROOT / "examples/quickstart"
    shutil.copytree(source, folder)
    words = (*_bench.TILUSBUILD, "build", "--target", "cpu", "--cache-dir", "cache")
    process(words, folder)
    process(words, folder)
    ran: list[Ran] = []

    def run() -> Ran:
        ran.append(process(words, folder))
        return ran[-1]

    def bare(*options: str) -> Ran:
        return process((sys.executable, *options, "-c", "pass"), folder)

    arms = [
        Arm("tilusbuild", run, lambda: "nothing to do" in ran[-1].out),
        Arm("python -c pass", bare, lambda: True),
        Arm("python -I -S -c pass", lambda: bare("-I", "-S"), lambda: True),
    ]
    _bench.alternate(arms, rounds)
    return _bench.report("nothing to do, examples/quickstart for the host", arms)


def main() -> None:
    asked = _bench.arguments(__doc__, rounds=11, programs=0)
    sizes = [asked.programs] if asked.programs else [40] if asked.small else [10_000, 100_000]
    rounds = 2 if asked.small else asked.rounds
    with _bench.workshop() as folder:
        nvcc = _projects.fake_toolkit(folder / "toolkit")
        results = [small(folder / "small", rounds)]
        for programs in sizes:
            few = rounds if programs <= 10_000 else min(rounds, 5)
            make = programs <= 10_000
            results.append(at(folder / str(programs), programs, nvcc, few, make))
    _bench.finish(asked, results)


if __name__ == "__main__":
    main()
