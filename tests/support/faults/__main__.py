"""Run the laboratory: `python -m support.faults --seed 7 --seconds 600 --groups kills,lives`; the
groups of `hostile` are all classes of inputs.

Prints a table of what was tried and what was wrong, and how to try each wrong one again. Exits with
1 when anything was."""

import argparse
import sys
import time

from support.faults.laboratory import Tried, run_all, table
from support.faults.registry import INPUTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="support.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--seconds", type=float, help="stop after so long (default: at the end)")
    parser.add_argument("--groups", default="", help="names with commas (default: all faults)")
    parser.add_argument("--most", type=int, help="at most so many faults of a group")
    parser.add_argument("--jobs", type=int, default=2, help="worlds at once")
    parser.add_argument("--repeat", metavar="FAULT", help="try this one of the only group")
    options = parser.parse_args()
    groups = (
        [*INPUTS] if options.groups == "hostile" else list(filter(None, options.groups.split(",")))
    )

    def report(tried: Tried) -> None:
        if tried.findings:
            print(tried.again)
        for finding in tried.findings:
            what = finding.what.replace("\n", "\n        ")
            print(f"    {finding.column}: {what}", flush=True)

    results = run_all(
        groups,
        seed=options.seed,
        seconds=options.seconds,
        most=options.most,
        jobs=options.jobs,
        only=options.repeat,
        report=report,
    )
    print(f"seed {options.seed}")
    print(table(results))
    return 1 if any(tried.findings for tried in results) else 0


if __name__ == "__main__":
    sys.exit(main())
