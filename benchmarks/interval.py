"""`run` beside `tune`: does the ratio of two calls of `run` lie in the interval that `tune` prints?

    python benchmarks/interval.py [--pairs N]

Each pair is a tuning that forgets earlier ones, and then a `run` of the default and one of the
winner, at the same size. A tuning whose winner is the default compares nothing, and is not a pair.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import tempfile
import time
from itertools import chain, cycle, product
from pathlib import Path
from statistics import median
from typing import Any

from _bench import ROOT, TILUSBUILD
from _projects import write_work

CASES = [
    *(("work", f"n={n}") for n in (1_000, 30_000, 1_000_000)),
    *(("quickstart/rms_norm", f"m={m},n={n}") for m, n in ((1, 1000), (128, 4096), (1024, 1024))),
    *(("quickstart/saxpy", f"n={n}") for n in (1000, 65_536, 1_048_576)),
]
"""(A script, perhaps of an example; the sizes.)"""


def run_line(directory: Path, event: str, *words: str) -> Any:
    """Return the line of an event that `tilusbuild` with these words prints."""
    command = [*TILUSBUILD, *words, "--target", "cpu", "--json", "-q"]
    output = subprocess.run(command, cwd=directory, check=True, stdout=subprocess.PIPE).stdout
    return next(line for line in map(json.loads, output.splitlines()) if line["event"] == event)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=100)
    arguments = parser.parse_args()
    counts: dict[tuple[str, ...], list[tuple[bool, float, float]]] = {}
    durations: list[float] = []
    with tempfile.TemporaryDirectory() as root:
        write_work(Path(root, "work"), "{ tenths = [12, 10, 20] }", "{{ tenths }}", 1000)
        shutil.copytree(ROOT / "examples/quickstart", Path(root, "quickstart"))
        cases = cycle(product(CASES, ("cold", "warm")))
        while sum(map(len, counts.values())) < arguments.pairs:
            (path, size), caches = next(cases)
            project, script = path.split("/")[0], path.split("/")[-1]
            directory = Path(root, project)
            options = ("--size", size, "--cache", caches)
            unchecked = () if project == "quickstart" else ("--unchecked",)
            start = time.monotonic()
            tuned = run_line(directory, "tuned", "tune", script, "--fresh", *options, *unchecked)
            durations.append(time.monotonic() - start)
            default = 0 if script == "work" else 1
            if tuned["program"] == default:
                continue
            times = [
                run_line(directory, "call", "run", f"{script}/{program}", *options)["seconds"]
                for program in (default, tuned["program"])
            ]
            ratio, low, high = tuned["speedup"]
            run_ratio = times[0] / times[1]
            counts.setdefault((script, size, caches), []).append(
                (low <= run_ratio <= high, run_ratio / ratio, math.sqrt(high / low))
            )
            print(f"{script} {size} {caches}: {low:.3f} {run_ratio:.3f} {high:.3f}", flush=True)
    load = os.getloadavg()[0]
    print(f"{'pairs':>5} {'within':>6} {'run by tune':>11} {'interval':>8}  load {load:.1f}")
    for case, rows in [*sorted(counts.items()), (("all",), [*chain(*counts.values())])]:
        within, quotients, widths = zip(*rows, strict=True)
        print(
            f"{len(rows):5} {sum(within):6} {median(quotients):11.3f}"
            f" ±{median(widths) - 1:7.1%}  {' '.join(case)}"
        )
    print(f"seconds a tuning: {median(durations):.2f}, of {len(durations)}")


if __name__ == "__main__":
    main()
