"""Tuning spaces: how long until a space is known, from a cold start of the library.

The published spaces (Dedispersion, MicroHH, Hotspot and the CLBlast GEMM), made by tilusbuild, by
kernel_tuner's Searchspace and by python-constraint2. Every run is a process of its own; imports are
not counted; the published number of valid points is checked in each. "decoded" has every value of
every point, derived ones too, as NumPy's columns; "objects" makes a schedule of each point, too, as
kernel_tuner's list has a tuple for each. Memory is what the work added to the process at its most.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import _bench
from _bench import Arm, Ran

CHILD = """\
import resource, sys, time
sys.path[:0] = [{here!r}, {tests!r}]
import space

def memory(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))

name, library = sys.argv[1:]
published = space.published(name)
make = getattr(space, "make_" + library)(published)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # from now on, the most is that of the work
held = memory("VmRSS")
before = resource.getrusage(resource.RUSAGE_SELF)
started = time.perf_counter()
made = make()
wall = time.perf_counter() - started
after = resource.getrusage(resource.RUSAGE_SELF)
count = made if isinstance(made, int) else len(made)
assert count == published.count, (count, published.count)
cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
print(wall, cpu, memory("VmHWM") - held, "counted")
"""


def published(name: str) -> Any:
    """A space with its published number of points."""
    from support.published_spaces import PUBLISHED

    return PUBLISHED[name]()


def plain(space: Any) -> tuple[dict[str, list[Any]], list[str]]:
    """Parameters and rules as other libraries take them: no derived values, no constants."""
    spec = space.spec
    known = {name: f"({expr.source})" for name, expr in spec.derived}
    known.update({name: repr(value) for name, value in spec.constants.items()})
    rules = []
    for _, expr in spec.restrict:
        text = expr.source
        for _ in range(len(known) + 1):
            for name, value in known.items():
                text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", value, text)
        rules.append(text)
    return {p.names[0]: [row[0] for row in p.values] for p in spec.parameters}, rules


def make_tilusbuild(space: Any) -> Any:
    import tilusbuild.space.component  # noqa: F401 - imports numpy, not counted either
    from tilusbuild.space.space import Space

    return lambda: Space(space.spec).count


def make_decoded(space: Any) -> Any:
    import tilusbuild.space.component  # noqa: F401
    from tilusbuild.space.space import Space

    def make() -> Any:
        columns: Any = Space(space.spec).take_all().columns
        arrays = {name: column.array for name, column in columns.items()}
        return arrays[next(iter(arrays))]

    return make


def make_objects(space: Any) -> Any:
    import tilusbuild.space.component  # noqa: F401
    from tilusbuild.space.space import Space

    return lambda: list(Space(space.spec))


def make_kernel_tuner(space: Any) -> Any:
    from kernel_tuner.searchspace import Searchspace

    parameters, rules = plain(space)
    return lambda: Searchspace(parameters, rules, 1024).list


def make_constraint(space: Any) -> Any:
    from constraint import Problem

    parameters, rules = plain(space)

    def make() -> Any:
        problem = Problem()
        for name, values in parameters.items():
            problem.addVariable(name, values)
        for rule in rules:
            problem.addConstraint(rule)
        return problem.getSolutions()

    return make


def arm(label: str, name: str, library: str) -> Arm:
    ran: list[Ran] = []

    def run() -> Ran:
        code = CHILD.format(here=str(_bench.ROOT / "benchmarks"), tests=str(_bench.ROOT / "tests"))
        words = [sys.executable, "-c", code, name, library]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode:
            raise _bench.WorkNotDoneError(done.stderr[-2000:])
        wall, cpu, memory, output = done.stdout.split()[-4:]
        ran.append(Ran(float(wall), float(cpu), int(memory), output))
        return ran[-1]

    return Arm(label, run, lambda: ran[-1].out == "counted")


def main() -> None:
    asked = _bench.arguments(__doc__, rounds=5)
    sys.path.append(str(_bench.ROOT / "tests"))
    names = ["dedispersion"] if asked.small else ["dedispersion", "microhh", "gemm", "hotspot"]
    results = []
    for name in names:
        space = published(name)
        arms = [
            arm("tilusbuild", name, "tilusbuild"),
            arm("tilusbuild, decoded", name, "decoded"),
            arm("tilusbuild, objects", name, "objects"),
            arm("kernel_tuner", name, "kernel_tuner"),
            arm("python-constraint2", name, "constraint"),
        ]
        _bench.alternate(arms, 1 if asked.small else asked.rounds, warm_up=False)
        title = f"{name}: {space.count:,} valid of {space.cartesian:,}"
        results.append(_bench.report(title, arms))
        memory = ", ".join(f"{a.name} {max(r.peak_rss for r in a.runs) >> 20} MiB" for a in arms)
        print(f"  memory: {memory}")
        by = [_bench.ratio(arms[3], to=arms[1], what=what) for what in ("wall", "cpu", "peak_rss")]
        print(f"  kernel_tuner by decoded: {by[0]} elapsed, {by[1]} of CPU, {by[2]} of memory")
    _bench.finish(asked, results)


if __name__ == "__main__":
    main()
