"""After one edit: how long until everything is as it should be again.

Ten scripts of N programs in all; then a comment is added to one template that changes no rendered
source, the constant in another that changes all of its programs, and a header that all of them
include is touched. Compiles are by the toolkit of the tests, which takes milliseconds. The peer is
ninja on the same graph, with a source edited the same way; it compares times, so that it compiles
after a touch, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import _bench
import _projects
from _bench import Arm, Ran, process


def arm(
    name: str, directory: Path, change: Callable[[int], None], compiled: int, programs: int
) -> Arm:
    """An arm that changes something, builds, and checks how much was compiled."""
    number = [0]
    last: list[dict[str, object]] = []

    def prepare() -> None:
        number[0] += 1
        change(number[0])

    def run() -> Ran:
        import json

        ran = process((*_bench.TILUSBUILD, "build", "--json"), directory)
        last.append(json.loads(ran.out.splitlines()[-1]))
        return ran

    def check() -> bool:
        return (last[-1]["compiled"], last[-1]["programs"]) == (compiled, programs)

    return Arm(name, run, check, prepare)


def main() -> None:
    asked = _bench.arguments(__doc__, rounds=3, programs=2000)
    programs = 40 if asked.small else asked.programs
    rounds = 1 if asked.small else asked.rounds
    with _bench.workshop() as directory:
        nvcc = _projects.fake_toolkit(directory / "toolkit")
        ours, theirs = directory / "tilus", directory / "graph"
        _projects.project(ours, programs, nvcc)
        _projects.fill(ours)
        process((*_bench.TILUSBUILD, "build"), ours)

        def comment(number: int) -> None:
            with open(ours / "kernels/s0.cu.j2", "a") as file:
                file.write(f"{{# {number} #}}")

        def touch(number: int) -> None:
            os.utime(ours / "include/h7.h")

        def edit(number: int) -> None:
            text = _projects.TEMPLATE.replace("step {{", f"edit {number}, step {{{{")
            (ours / "kernels/s1.cu.j2").write_text(text)

        _projects.graph(theirs, programs)
        ninja = _bench.ninja()
        process((ninja, "-j2"), theirs)
        said = [""]

        def edited_sources(number: int) -> None:
            for i in range(programs // 10):
                (theirs / f"src/p{i}.cu").write_text(f"// edit {number} {i}\n")

        def touched(number: int) -> None:
            os.utime(theirs / "include/h7.h")

        def ninjas(name: str, change: Callable[[int], None], count: int) -> Arm:
            number = [0]

            def prepare() -> None:
                number[0] += 1
                change(number[0])

            def run() -> Ran:
                ran = process((ninja, "-j2"), theirs)
                said[0] = ran.out
                return ran

            return Arm(name, run, lambda: f"[{count}/{count}]" in said[0], prepare)

        tenth = programs // 10
        arms = [
            arm("a comment of a template", ours, comment, 0, programs),
            arm("a header touched", ours, touch, 0, programs),
            ninjas("ninja, a header touched", touched, programs),
            arm(f"a template: {tenth} compiles", ours, edit, tenth, programs),
            ninjas(f"ninja, {tenth} sources", edited_sources, tenth),
        ]
        _bench.alternate(arms, rounds, warm_up=False)
        results = [_bench.report(f"after one edit, {programs:,} programs", arms)]
        shutil.rmtree(ours)
    _bench.finish(asked, results)


if __name__ == "__main__":
    main()
