"""The compiles of `tune`: of 4,096 programs under a budget, and of 64 without one.

    python benchmarks/search_compiles.py

The first table counts the compiles under a budget of N runs, of which at most N + 2j may be, and
those that were done before the first program was called. The second compares `tune`, which compiles
while it measures, with `build` and then `tune`, in turn.
"""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path

from _bench import TILUSBUILD, Arm, Ran, alternate, arguments, finish, process, report, workshop
from _projects import write_work

TUNE = (*TILUSBUILD, "tune", "work", "--unchecked", "--cache", "warm", "--json", "-q")


def write_project(directory: Path, side: int) -> None:
    """Write a project whose script has side x side programs, and no cache."""
    shutil.rmtree(directory, ignore_errors=True)
    axis = f"{{ range = [1, {side}] }}"
    repeats = "1 + ({{ a }} - 7) * ({{ a }} - 7) + {{ b }}"
    write_work(directory, f"{{ a = {axis}, b = {axis} }}", repeats, 10_000)


def count_programs(directory: Path) -> int:
    """Return how many programs the cache of a project has."""
    return len(os.listdir(directory / "cache" / "programs"))


def count_before_first_check(directory: Path) -> int:
    """Return how many compiles a tuning had waited for before it called a program."""
    (log,) = (directory / "cache/state/tune/work").glob("*-*.jsonl")
    rows = map(json.loads, log.read_text().splitlines())
    return [row["what"] for row in rows if "number" in row].index("check")


def main() -> None:
    asked = arguments(__doc__, rounds=3, jobs=2, side=64)
    side = 8 if asked.small else asked.side
    results: list[dict[str, object]] = []
    with workshop() as root:
        print(f"{side * side} programs, -j {asked.jobs}")
        print(f"{'budget':>8}{'compiles':>10}{'at most':>10}{'before the first call':>24}")
        for budget in (30,) if asked.small else (50, 100, 200):
            write_project(root / "search", side)
            process((*TUNE, "--budget", str(budget), "-j", str(asked.jobs)), root / "search")
            compiles = count_programs(root / "search")
            first = count_before_first_check(root / "search")
            most = budget + 2 * asked.jobs
            assert compiles <= most, f"{compiles} compiles under a budget of {budget}"
            print(f"{budget:8}{compiles:10}{most:10}{first:24}", flush=True)
            results.append({"budget": budget, "compiles": compiles, "before": first})

        small_side = 3 if asked.small else 8
        directory = root / "all"

        def tune() -> Ran:
            return process((*TUNE, "-j", str(asked.jobs)), directory)

        def build_then_tune() -> Ran:
            words = (*TILUSBUILD, "build", "-q", "-j", str(asked.jobs))
            built, tuned = process(words, directory), tune()
            return Ran(built.wall + tuned.wall, built.cpu + tuned.cpu, 0)

        def is_built() -> bool:
            return count_programs(directory) == small_side**2

        prepare = partial(write_project, directory, small_side)
        arms = [
            Arm("build, then tune", build_then_tune, is_built, prepare),
            Arm("tune", tune, is_built, prepare),
        ]
        alternate(arms, 1 if asked.small else asked.rounds)
        results.append(report(f"all of {small_side**2} programs", arms, unit=1.0))
    finish(asked, results)


if __name__ == "__main__":
    main()
