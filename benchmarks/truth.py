"""`tune` where the truth is known: programs of 1, 1.1, 2 and 4 times the work, and identical ones.

    python benchmarks/truth.py [--tunings N]

Counted are the tunings whose choice is within 5 % of the best, and
those that claim a difference among programs of the same bytes. The truth of a program is its
shortest sample of all tunings: nothing makes a call shorter than it is. `--busy` loads every core
meanwhile. The order of the programs is turned round in every second tuning.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _projects import write_work


def tune(directory: Path, tenths: list[int], copies: list[int], n: int, caches: str) -> Any:
    """Return the line of a tuning that forgets earlier ones."""
    write_work(directory, f"{{ tenths = {tenths}, copy = {copies} }}", "{{ tenths }}", n)
    words = ("tune", "work", "--unchecked", "--cache", caches, "--fresh", "--json", "-q")
    output = subprocess.run(
        [sys.executable, "-m", "tilusbuild", *words],
        cwd=directory,
        check=True,
        capture_output=True,
    ).stdout
    return next(line for line in map(json.loads, output.splitlines()) if line["event"] == "tuned")


def list_samples(directory: Path) -> Iterator[tuple[str, float]]:
    """Yield (hash of the program, seconds) of each sample in the logs of a project."""
    for log in directory.rglob("cache/state/tune/work/*-*.jsonl"):
        for row in map(json.loads, log.read_text().splitlines()):
            if row["what"] == "sample" and row["seconds"]:
                yield row["program"], row["seconds"]


def load_core() -> None:
    """Compute for ever."""
    while True:
        sum(range(100_000))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tunings", type=int, default=10, help="of each case")
    parser.add_argument("--busy", action="store_true", help="with every core loaded")
    arguments = parser.parse_args()
    loads = [
        multiprocessing.Process(target=load_core, daemon=True) for _ in range(os.cpu_count() or 1)
    ]
    for load in loads if arguments.busy else ():
        load.start()
    print(f"{arguments.tunings} tunings a case, {'busy' if arguments.busy else 'idle'}")
    print(f"{'n':>9} {'caches':>6}  {'within 5 %':>10}  {'claims among identical':>22}  choices")
    for n in (1_000, 30_000, 1_000_000):
        for caches in ("cold", "warm"):
            choices: Counter[str] = Counter()
            work_of: dict[str, int] = {}
            truths: dict[str, float] = {}
            claims = 0
            with tempfile.TemporaryDirectory() as root:
                for number in range(arguments.tunings):
                    directory = Path(root, f"work{number % 2}")
                    line = tune(
                        directory, [10, 11, 20, 40][:: -1 if number % 2 else 1], [0], n, caches
                    )
                    for program, seconds in list_samples(directory):
                        truths[program] = min(seconds, truths.get(program, seconds))
                    chosen = json.loads(
                        next(directory.rglob("scripts/work/*/script.json")).read_bytes()
                    )
                    digest = chosen["programs"][line["program"]]
                    choices[digest] += 1
                    work_of[digest] = line["schedule"]["tenths"]
                    line = tune(Path(root, "same"), [10], [0, 1, 2, 3], n, caches)
                    _, low, high = line["speedup"]
                    claims += not low <= 1 <= high
            best = min(truths.values())
            right = sum(count for digest, count in choices.items() if truths[digest] <= 1.05 * best)
            named = {work_of[digest]: count for digest, count in choices.items()}
            print(f"{n:9} {caches:>6}  {right:10}  {claims:22}  {named}", flush=True)
    for load in loads if arguments.busy else ():
        load.terminate()


if __name__ == "__main__":
    main()
