"""Nothing to do: how long until a build system has seen that everything is there.

tilusbuild against ninja and make on the same graph: N programs, each of its own source and of 120
headers, with real outputs and depfiles (`deps = gcc` for ninja). A small example is compared with
the start of the interpreter that it runs in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import _bench
import _projects
from _bench import Arm, Ran, process


def measure_size(
    directory: Path, programs: int, nvcc: str, rounds: int, with_make: bool
) -> dict[str, object]:
    own_project, ninja_project = directory / "tilus", directory / "graph"
    _projects.project(own_project, programs, nvcc)
    _projects.fill(own_project, sync=False)
    _projects.build(own_project)
    ours_ran: list[Ran] = []

    def run(*command: str) -> Ran:
        ours_ran.append(process((*command, "build"), own_project))
        return ours_ran[-1]

    def found_nothing() -> bool:
        return "nothing to do" in ours_ran[-1].out

    _projects.graph(ninja_project, programs)
    ninja = _bench.ninja()
    process((ninja, "-j2"), ninja_project)
    last: list[str] = [""]

    def peer(*words: str) -> Ran:
        ran = process(words, ninja_project)
        last[0] = ran.out
        return ran

    libraries = len(list(own_project.glob(".cache/programs/*/module/lib.so")))
    outputs = len(list(ninja_project.glob("out/*.so")))
    assert libraries == outputs == programs, (libraries, outputs)
    arms = [
        Arm("python -m tilusbuild", lambda: run(*_bench.TILUSBUILD), found_nothing),
        Arm("ninja", lambda: peer(ninja), lambda: "no work to do" in last[0]),
    ]
    if with_make:
        process(("make", "-s", "-j2"), ninja_project)
        assert len(list(ninja_project.glob("mk/*.so"))) == programs
        arms.append(Arm("make", lambda: peer("make", "-s"), lambda: last[0] == ""))
    if _bench.COMMAND:
        arms.append(Arm("the command tilusbuild", lambda: run(*_bench.COMMAND), found_nothing))
        run(*_bench.COMMAND)
    if programs >= _bench.MANY:
        _bench.settle()
    _bench.alternate(arms, rounds)
    result = _bench.report(f"nothing to do, {programs:,} programs", arms)
    if _bench.COMMAND:
        print(f"  the command by ninja: {_bench.ratio(arms[-1], arms[1])}, and of CPU "
              f"{_bench.ratio(arms[-1], arms[1], 'cpu')}")  # fmt: skip
    profile(own_project)
    assert_sees_changes(own_project, programs)
    shutil.rmtree(directory)
    return result


def assert_sees_changes(directory: Path, programs: int) -> None:
    """The last check that nothing was skipped: one library less, and it is made again."""
    library = next(directory.glob(".cache/scripts/*/*/programs/0/module/lib.so")).resolve()
    library.unlink()
    summary = _projects.build(directory)
    assert (summary["compiled"], summary["programs"]) == (1, programs), summary


PROFILE = """\
import sys, time
began = time.process_time()
import os
from tilusbuild import noop
from tilusbuild import noop
imported = time.process_time()
name = noop.make_key(["build"], os.environ)
with open(noop.find_record_path(name, os.environ), "rb") as file:
    data = file.read()
pieces = noop.split_pieces(data)
read = time.process_time()
groups = noop.split_groups(pieces)
ends = [bytes(names).split(b"\\0", 2)[1] for names, _ in groups]
assert noop._is_share_unchanged([group for group, end in zip(groups, ends) if not end])
seen = time.process_time()
assert noop._is_share_unchanged([group for group, end in zip(groups, ends) if end])
held = time.process_time()
print(imported - began, read - imported, seen - read, held - seen, len(data))
"""


def profile(directory: Path) -> None:
    """Where the milliseconds of our arm go."""
    env = {**os.environ}
    lines = []
    for _ in range(5):
        ran = subprocess.run(
            [sys.executable, "-c", PROFILE],
            cwd=directory, env=env, check=True, capture_output=True, text=True,
        )  # fmt: skip
        lines.append([float(word) for word in ran.stdout.split()])
    imports, reading, inputs, entries, size = (
        sorted(column)[2] for column in zip(*lines, strict=True)
    )
    bare = sorted(process((sys.executable, "-c", "pass"), directory).cpu for _ in range(5))[2]
    print(
        f"  CPU of it: interpreter {bare * 1e3:.1f} ms, our imports {imports * 1e3:.1f} ms, record "
        f"({size / 1024:.0f} KiB) {reading * 1e3:.1f} ms, "
        f"inputs {inputs * 1e3:.1f} ms, programs {entries * 1e3:.1f} ms"
    )


def small(directory: Path, rounds: int) -> dict[str, object]:
    """The quickstart's host kernels against `python -c pass` and `python -I -S -c pass`."""
    source = _bench.ROOT / "examples/quickstart"
    shutil.copytree(source, directory)
    words = (*_bench.TILUSBUILD, "build", "--target", "cpu", "--cache-dir", "cache")
    process(words, directory)
    process(words, directory)
    ran: list[Ran] = []

    def run() -> Ran:
        ran.append(process(words, directory))
        return ran[-1]

    def bare(*options: str) -> Ran:
        return process((sys.executable, *options, "-c", "pass"), directory)

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
    rounds = 1 if asked.small else asked.rounds
    with _bench.workshop() as directory:
        nvcc = _projects.fake_toolkit(directory / "toolkit")
        results = [small(directory / "small", rounds)]
        for programs in sizes:
            few = rounds if programs <= 10_000 else min(rounds, 5)
            make = programs <= 10_000
            results.append(measure_size(directory / str(programs), programs, nvcc, few, make))
    _bench.finish(asked, results)


if __name__ == "__main__":
    main()
