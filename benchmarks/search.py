"""How good the search is after some evaluations: measured spaces, replayed.

    python benchmarks/search.py DIRECTORY [--peer PYTHON]

DIRECTORY has measured spaces: caches of Kernel Tuner, or results in the T4 format, as `.json` or
`.json.gz`. Each is searched with 30 seeds and 50, 100, 200 and 400 evaluations. The numbers are
median and mean of the best time of a search by the best time of the space. With `--peer`, a Python
that has Kernel Tuner (`python -m venv kt && kt/bin/pip install kernel-tuner`), its optimizers
search the same spaces in its simulation mode.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilusbuild.tune.bench.search import LOOK_SHARE, find_linked_groups, search_programs
from tilusbuild.tune.bench.session import Budget, Quota
from tilusbuild.tune.bench.work import Candidate, Work

BUDGETS = (50, 100, 200, 400)
STRATEGIES = (
    "random_sample",
    "genetic_algorithm",
    "diff_evo",
    "pso",
    "firefly_algorithm",
    "simulated_annealing",
    "mls",
    "greedy_ils",
    "greedy_mls",
    "basinhopping",
    "dual_annealing",
    "hybrid_vndx",
    "adaptive_tabu_greywolf",
)
Configurations = Sequence[tuple[Mapping[str, Any], float | None]]

# Run by the peer's Python: a line of JSON on standard input, one on standard output for each run.
PEER = """
import contextlib, io, json, random, sys
import numpy, kernel_tuner
task = json.load(sys.stdin)
points = {tuple(point) for point in task["points"]}
names = list(task["parameters"])
text = f"lambda {', '.join(names)}: ({', '.join(names)},) in points"
restrict = eval(text, {"points": points})
for strategy in task["strategies"]:
    for budget in task["budgets"]:
        for seed in range(task["seeds"]):
            random.seed(seed)
            numpy.random.seed(seed)
            with contextlib.redirect_stdout(io.StringIO()):
                results, _ = kernel_tuner.tune_kernel(
                    "kernel", "", 1, [], task["parameters"], restrictions=restrict,
                    strategy=strategy, strategy_options={"max_fevals": budget},
                    cache=task["cache"], simulation_mode=True, device=0)
            times = [r["time"] for r in results if isinstance(r.get("time"), (int, float))]
            print(json.dumps([strategy, budget, min(times, default=None)]), flush=True)
"""


def read_space(path: Path) -> Configurations:
    """Return the configurations of a measured space, with their times; None where one failed."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    value = json.loads(data)
    if "results" in value:
        rows = []
        for result in value["results"]:
            (objective, *_) = result.get("objectives") or ["time"]
            measured = {m["name"]: m["value"] for m in result.get("measurements", [])}
            is_right = result.get("invalidity", "correct") == "correct"
            rows.append((result["configuration"], measured.get(objective) if is_right else None))
    else:
        names, objective = value["tune_params_keys"], value.get("objective", "time")
        rows = [({n: row[n] for n in names}, row[objective]) for row in value["cache"].values()]
    return [(p, float(t) if isinstance(t, int | float) else None) for p, t in rows]


def make_work(space: Configurations) -> Work:
    """Return the space as programs whose numbers are their places in the declared order."""
    order = sorted(range(len(space)), key=lambda i: [*map(_sort_key, space[i][0].values())])
    programs = tuple(Candidate(n, str(n), "", space[i][0]) for n, i in enumerate(order))
    groups = tuple((name,) for name in space[0][0])
    work = Work(None, groups, programs)
    return Work(None, find_linked_groups(work), programs)


def _sort_key(value: Any) -> tuple[str, Any]:
    return ("", value) if isinstance(value, int | float) else (type(value).__name__, str(value))


def search(work: Work, times: Mapping[int, float | None], count: int, seed: int) -> float:
    """Return the best time of a search with this number of evaluations."""
    quota = Quota(Budget(seconds=count))
    best, looks = float("inf"), 0

    def look(wanted: Any) -> float | None:
        nonlocal best, looks
        seconds = times[next(iter(wanted)).index]
        looks += 1
        # The quota's end of the looks is the last evaluation.
        quota.seconds = looks * LOOK_SHARE
        best = min(best, best if seconds is None else seconds)
        return seconds

    search_programs(work, quota, seed, look)
    assert looks == min(count, len(work.programs)), looks
    return best


def search_with_peer(
    python: str,
    space: Configurations,
    strategies: Sequence[str],
    budgets: Sequence[int],
    seeds: int,
) -> dict[tuple[str, int], list[float]]:
    """Return the best times of Kernel Tuner's searches, by optimizer and number of evaluations."""
    names = list(space[0][0])
    parameters = {name: sorted({p[name] for p, _ in space}, key=_sort_key) for name in names}
    rows = {
        ",".join(str(v) for v in p.values()): {
            **p,
            "time": "RuntimeFailedConfig" if t is None else t,
            **dict.fromkeys(
                ("compile_time", "verification_time", "benchmark_time", "strategy_time"), 0
            ),
            "framework_time": 0,
            "timestamp": "2026-01-01",
            "times": [] if t is None else [t],
        }
        for p, t in space
    }
    head = {"device_name": "d", "kernel_name": "kernel", "problem_size": 1, "objective": "time"}
    with tempfile.TemporaryDirectory() as directory:
        cache = os.path.join(directory, "space.json")
        value = {**head, "tune_params_keys": names, "tune_params": parameters, "cache": rows}
        Path(cache).write_text(json.dumps(value))
        task = {
            "points": [[*p.values()] for p, _ in space],
            "parameters": parameters,
            "strategies": strategies,
            "budgets": budgets,
            "seeds": seeds,
            "cache": cache,
        }
        lines = subprocess.run(
            [python, "-c", PEER],
            input=json.dumps(task),
            capture_output=True,
            text=True,
            cwd=directory,
        )
    if lines.returncode:
        raise SystemExit(lines.stderr[-3000:])
    times_by_strategy: dict[tuple[str, int], list[float]] = {}
    for line in lines.stdout.splitlines():
        strategy, budget, best = json.loads(line)
        times_by_strategy.setdefault((strategy, budget), []).append(
            float("inf") if best is None else best
        )
    return times_by_strategy


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--peer", metavar="PYTHON", help="a Python that has Kernel Tuner")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    asked = parser.parse_args()
    paths = sorted(p for p in asked.directory.iterdir() if ".json" in p.suffixes)
    for path in paths:
        space = read_space(path)
        work = make_work(space)
        times_of = {json.dumps(p): t for p, t in space}
        times = {p.index: times_of[json.dumps(p.schedule)] for p in work.programs}
        best = min(t for t in times.values() if t is not None)
        print(
            f"{path.name}: {len(space)} configurations,"
            f" {sum(seconds is None for seconds in times.values())} fail"
        )
        times_by_strategy = {
            ("tilusbuild", n): [search(work, times, n, seed) for seed in range(asked.seeds)]
            for n in asked.budgets
        }
        if asked.peer:
            times_by_strategy |= search_with_peer(
                asked.peer, space, asked.strategies, asked.budgets, asked.seeds
            )
        for name in dict.fromkeys(name for name, _ in times_by_strategy):
            cells = []
            for n in asked.budgets:
                ratios = [time / best for time in times_by_strategy[name, n]]
                cells.append(f"{statistics.median(ratios):.3f} {statistics.mean(ratios):.3f}")
            print(f"  {name:22}" + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
