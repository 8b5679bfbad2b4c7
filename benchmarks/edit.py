"""After one edit: how long until everything is as it should be again.

First one script of six programs, and a comment of its template that changes no source, so that
nothing is compiled. The peer is ninja with one step that renders the six sources with Jinja2, in a
process that does nothing else, and writes those that changed; `restat` sees that none did.

Then ten scripts of N programs in all: a comment is added to one template that changes no rendered
source, the constant in another that changes all of its programs, and a header that all of them
include is touched. Compiles are by the toolkit of the tests, which takes milliseconds. The peer is
ninja on the same graph, with a source edited the same way; it compares times, so that it compiles
after a touch, too.
"""

from __future__ import annotations

import os
import shutil
import sys
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


_RENDER = """\
import os, sys
import jinja2
made = jinja2.Environment(undefined=jinja2.StrictUndefined)
template = made.from_string(open(sys.argv[1]).read())
for threads in (128, 256):
    for step in (1, 2, 3):
        path = f"src/{threads}_{step}.cu"
        text = template.render(threads=threads, step=step, script={"name": "s0"})
        if not os.path.exists(path) or open(path).read() != text:
            open(path, "w").write(text)
"""


def six(directory: Path, nvcc: str, rounds: int) -> dict[str, object]:
    """One template edited, six programs, nothing to compile."""
    own_project, ninja_project = directory / "six", directory / "six-ninja"
    _projects.project(own_project, 6, nvcc, scripts=1)
    process((*_bench.TILUSBUILD, "build"), own_project)
    names = [f"{threads}_{step}" for threads in (128, 256) for step in (1, 2, 3)]
    _projects.write(ninja_project / "s0.cu.j2", _projects.TEMPLATE)
    _projects.write(ninja_project / "render.py", _RENDER)
    sources = " ".join(f"src/{name}.cu" for name in names)
    lines = [
        "rule render",
        f"  command = {sys.executable} render.py $in",
        "  restat = 1",
        "rule compile",
        "  command = cp $in $out",
        f"build {sources}: render s0.cu.j2 | render.py",
        *(f"build out/{name}.so: compile src/{name}.cu" for name in names),
    ]
    _projects.write(ninja_project / "build.ninja", "\n".join(lines) + "\n")
    ninja = _bench.ninja()
    process((ninja, "-j2"), ninja_project)

    def comment(template: Path) -> Callable[[int], None]:
        def change(number: int) -> None:
            with open(template, "a") as file:
                file.write(f"{{# {number} #}}")

        return change

    outputs = [""]
    number = [0]

    def prepare() -> None:
        number[0] += 1
        comment(ninja_project / "s0.cu.j2")(number[0])

    def run() -> Ran:
        ran = process((ninja, "-j2"), ninja_project)
        outputs[0] = ran.out
        return ran

    arms = [
        arm("tilusbuild", own_project, comment(own_project / "kernels/s0.cu.j2"), 0, 6),
        Arm("ninja, rendering with Jinja2", run, lambda: "render.py" in outputs[0], prepare),
    ]
    arms[0].once(keep=False)  # the first edit imports what enumerates, and remembers the manifest
    _bench.alternate(arms, rounds)
    return _bench.report("one template edited, 6 programs, nothing to compile", arms)


def main() -> None:
    asked = _bench.arguments(__doc__, rounds=3, programs=2000, small_rounds=11)
    programs = 40 if asked.small else asked.programs
    rounds = 1 if asked.small else asked.rounds
    with _bench.workshop() as directory:
        nvcc = _projects.fake_toolkit(directory / "toolkit")
        own_project, ninja_project = directory / "tilus", directory / "graph"
        results = [six(directory, nvcc, 1 if asked.small else asked.small_rounds)]
        if asked.programs == 0:
            _bench.finish(asked, results)
            return
        _projects.project(own_project, programs, nvcc)
        _projects.fill(own_project)
        process((*_bench.TILUSBUILD, "build"), own_project)

        def comment(number: int) -> None:
            with open(own_project / "kernels/s0.cu.j2", "a") as file:
                file.write(f"{{# {number} #}}")

        def touch(number: int) -> None:
            os.utime(own_project / "include/h7.h")

        def edit(number: int) -> None:
            text = _projects.TEMPLATE.replace("step {{", f"edit {number}, step {{{{")
            (own_project / "kernels/s1.cu.j2").write_text(text)

        _projects.graph(ninja_project, programs)
        ninja = _bench.ninja()
        process((ninja, "-j2"), ninja_project)
        outputs = [""]

        def edited_sources(number: int) -> None:
            for i in range(programs // 10):
                (ninja_project / f"src/p{i}.cu").write_text(f"// edit {number} {i}\n")

        def touched(number: int) -> None:
            os.utime(ninja_project / "include/h7.h")

        def ninjas(name: str, change: Callable[[int], None], count: int) -> Arm:
            number = [0]

            def prepare() -> None:
                number[0] += 1
                change(number[0])

            def run() -> Ran:
                ran = process((ninja, "-j2"), ninja_project)
                outputs[0] = ran.out
                return ran

            return Arm(name, run, lambda: f"[{count}/{count}]" in outputs[0], prepare)

        tenth = programs // 10
        arms = [
            arm("a comment of a template", own_project, comment, 0, programs),
            arm("a header touched", own_project, touch, 0, programs),
            ninjas("ninja, a header touched", touched, programs),
            arm(f"a template: {tenth} compiles", own_project, edit, tenth, programs),
            ninjas(f"ninja, {tenth} sources", edited_sources, tenth),
        ]
        _bench.alternate(arms, rounds, warm_up=False)
        results.append(_bench.report(f"after one edit, {programs:,} programs", arms))
        shutil.rmtree(own_project)
    _bench.finish(asked, results)


if __name__ == "__main__":
    main()
