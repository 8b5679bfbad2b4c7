"""Planning and scale: time and memory as a project grows from 1,000 programs by tens.

For each size: the plan made anew, the plan by what is remembered, a build from nothing with a
compiler that takes no time, the build with nothing to do, and the build after an edit of one script
of ten that changes no rendered source. A program's share of each must not grow.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import _bench
import _projects
from _bench import process

PLAN = """\
import os, resource, sys, time, tracemalloc
from tilusbuild.plan.model import PlanSelection
from tilusbuild.builder.project import Project
with Project.open(os.getcwd(), {}, os.environ) as project:
    planner = project.make_planner(PlanSelection())
    if sys.argv[1] == "fresh":
        planner.memo = None
    if sys.argv[2] == "memory":
        tracemalloc.start()
    started = time.process_time()
    plan = planner.make_plan(PlanSelection())
    seconds = time.process_time() - started
    memory = tracemalloc.get_traced_memory()[0] if sys.argv[2] == "memory" else 0
print(plan.size, seconds, memory, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def plan(directory: Path, programs: int, how: str, what: str = "time") -> tuple[float, int, int]:
    """CPU seconds of a plan; bytes that it holds; peak memory of the process."""
    words = [sys.executable, "-c", PLAN, how, what]
    ran = subprocess.run(words, cwd=directory, check=True, capture_output=True, text=True)
    size, seconds, memory, peak = ran.stdout.split()
    assert int(size) == programs, (size, programs)
    return float(seconds), int(memory), int(peak)


def main() -> None:
    asked = _bench.arguments(__doc__, largest=100_000)
    sizes = [40] if asked.small else [10**n for n in range(3, 7) if 10**n <= asked.largest]
    print(
        f"{'programs':>9}{'plan':>9}{'again':>9}{'held':>9}{'build':>9}{'schedule':>9}{'peak':>9}"
        f"{'no-op':>9}{'peak':>9}{'edit':>9}{'peak':>9}\n"
        f"{'':9}{'ms each':>9}{'ms each':>9}{'B each':>9}{'ms each':>9}{'ms each':>9}{'MiB':>9}"
        f"{'ms':>9}{'MiB':>9}{'s':>9}{'MiB':>9}"
    )
    with _bench.workshop() as directory:
        nvcc = _projects.fake_toolkit(directory / "toolkit")
        results = [measured(directory / str(size), size, nvcc) for size in sizes]
    _bench.finish(asked, results)


def measured(directory: Path, programs: int, nvcc: str) -> dict[str, object]:
    _projects.project(directory, programs, nvcc)
    fresh, _, _ = plan(directory, programs, "fresh")
    filled = _projects.fill(directory)
    again, _, _ = plan(directory, programs, "memo")
    _, held, _ = plan(directory, programs, "memo", "memory")
    if programs >= _bench.MANY:
        _bench.settle()
    time.sleep(0.1)
    process((*_bench.TILUSBUILD, "build"), directory)
    runs = [process((*_bench.TILUSBUILD, "build"), directory) for _ in range(3)]
    nothing = min(runs, key=lambda ran: ran.wall)
    assert "nothing to do" in nothing.out
    for number in range(2):  # the first reads from the disk what was put away before
        with open(directory / "kernels/s0.cu.j2", "a") as file:
            file.write(f"{{# edit {number} #}}")
        edited = process((*_bench.TILUSBUILD, "build"), directory)
        assert "nothing to do" in edited.out
    shutil.rmtree(directory)
    mib = 1 << 20
    row = {
        "programs": programs,
        "plan_ms": fresh / programs * 1e3,
        "again_ms": again / programs * 1e3,
        "held_bytes": held / programs,
        "build_ms": filled.cpu / programs * 1e3,
        "schedule_ms": filled.scheduling / programs * 1e3,
        "build_mib": filled.peak_rss / mib,
        "noop_ms": nothing.wall * 1e3,
        "noop_mib": nothing.peak_rss / mib,
        "edit_s": edited.cpu,
        "edit_mib": edited.peak_rss / mib,
    }
    numbers = [f"{value:>9.3g}" if value < 100 else f"{value:>9.0f}" for value in row.values()]
    print(f"{programs:>9,}" + "".join(numbers[1:]), flush=True)
    return dict(row)


if __name__ == "__main__":
    main()
