"""`tune --device 0,1` by `tune --device 0`: the time of two devices by that of one.

The devices are cores that workers are pinned to, of the cpu target; each round tunes 12 sizes of a
script of 24 programs again, built before.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import _bench
from _bench import Arm, Ran, process
from _projects import write_work


def main() -> None:
    """Tune on one core and on two, in turn."""
    asked = _bench.arguments(__doc__, rounds=5, sizes=12)
    sizes = 2 if asked.small else asked.sizes
    cores = sorted(os.sched_getaffinity(0))[:2]
    with _bench.workshop() as directory:
        write_work(directory, "{ tenths = { range = [10, 33] } }", "{{ tenths }}", 1000)
        process((*_bench.TILUSBUILD, "build"), directory)
        arms = [_make_arm(directory, devices, sizes) for devices in (cores[:1], cores)]
        _bench.alternate(arms, 1 if asked.small else asked.rounds)
        results = [_bench.report(f"{sizes} sizes, by the cores {cores}", arms[::-1], unit=1.0)]
    _bench.finish(asked, results)


def _make_arm(directory: Path, cores: list[int], sizes: int) -> Arm:
    """Return the arm that tunes these sizes on some cores."""
    numbers = ",".join(map(str, cores))
    grid = ",".join(str(200_000 + 100_000 * number) for number in range(sizes))
    words = ("tune", "work", "--unchecked", "--fresh", "--json", "-q", "--cache", "warm")
    lines: list[str] = []

    def run() -> Ran:
        ran = process(
            (*_bench.TILUSBUILD, *words, "--grid", f"n={grid}", "--device", numbers), directory
        )
        lines[:] = ran.out.splitlines()
        return ran

    def check() -> bool:
        return dict(json.loads(lines[-1])) == {"event": "summary", "tuned": sizes, "without": 0}

    return Arm(f"{len(cores)} of the cores", run, check)


if __name__ == "__main__":
    main()
