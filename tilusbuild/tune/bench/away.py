"""The command line of a bundle: measure on this machine, with nothing but Python and a driver.

What it measures goes to a log, which `tilusbuild tune --import` takes where the bundle was made.
Killed and started again, it goes on from the last sample.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilusbuild.errors import TilusbuildError
from tilusbuild.process.local import LocalRunner
from tilusbuild.tune.bench.bench import WARMUP, DeviceBench, device_lock
from tilusbuild.tune.bench.race import Decision, campaign, condemned_before
from tilusbuild.tune.bench.session import ROUNDS, Budget, SampleLog, TuningSession, lines, run_note
from tilusbuild.tune.bench.work import WORK, Case, read_case, read_work

WORKS = "works"


def main(words: Sequence[str], root: str) -> int:
    """Run the bundle at `root`; the exit status: 1 also if some sizes have no usable program."""
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__.split("\n")[0])
    parser.add_argument("--device", type=int, default=0, help="the GPU's number")
    parser.add_argument("--budget", type=Budget.parse, default=Budget(), metavar="90s|500")
    parser.add_argument("--time-limit", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warmup", type=int, default=WARMUP, help="calls before each sample")
    parser.add_argument("--repeat", type=int, default=ROUNDS, help="samples of the best")
    parser.add_argument("--log", default="results.jsonl", metavar="FILE")
    arguments, whole = parser.parse_args(words), True
    try:
        with LocalRunner() as runner:
            for name in sorted(os.listdir(os.path.join(root, WORKS)), key=int):
                whole &= _measure(runner, root, os.path.join(root, WORKS, name, WORK), arguments)
    except KeyboardInterrupt:
        _say("interrupted; run it again to go on")
        return 130
    except TilusbuildError as error:
        _say(error.render())
        return error.exit_status
    except (OSError, ValueError) as error:
        # The log cannot be written, or the bundle is not whole.
        _say(f"error: {error}")
        return 1
    _say(f"done: take {arguments.log} back, for `tilusbuild tune --import`")
    return 0 if whole else 1


def _measure(runner: LocalRunner, root: str, path: str, arguments: argparse.Namespace) -> bool:
    """Measure one work; return whether each of its sizes has a winner."""
    work = read_work(path)
    programs = tuple(replace(p, library=os.path.join(root, p.library)) for p in work.programs)
    work = replace(work, programs=programs)
    directories: dict[str, str] = {}

    def cases(numbers: Sequence[int]) -> Iterator[Case]:
        for number in numbers:
            directory = os.path.join(root, work.cases[number])
            case = read_case(directory)
            directories[case.digest] = directory
            yield case

    limit, warmup = arguments.time_limit, max(0, arguments.warmup)
    bench = DeviceBench(
        runner, work.kind, arguments.device, directories, limit=limit, warmup=warmup
    )
    log = SampleLog(os.path.abspath(arguments.log))
    try:
        facts = bench.describe()
        name, count = str(facts["name"]), len(work.cases)
        with device_lock(str(facts["id"]), lambda: _say(f"waiting for another tuning on {name}")):
            session = TuningSession(log, bench, arguments.budget, rounds=max(1, arguments.repeat))
            _say(f"{work.label} on {name}: {len(programs)} programs, {count} sizes")
            log.note(run_note(work, facts, session, arguments.seed, count))
            known = condemned_before(lines(log.path))
            sizes = [read_case(os.path.join(root, name)).sizes for name in work.cases]
            decided = campaign(session, work, cases, sizes, arguments.seed, _tell, known)
            return all(decision.winner is not None for decision in decided)
    finally:
        bench.close()
        log.close()


def _tell(decision: Decision) -> None:
    winner = decision.winner
    if winner is None or winner.seconds is None:
        _say(f"  {decision.case.label}: no program is usable")
    else:
        _say(
            f"  {decision.case.label}: program {winner.program.index},"
            f" {winner.seconds * 1e3:.4f} ms"
        )
    for outcome in decision.outcomes:
        if outcome.seconds is None:
            _say(f"    program {outcome.program.index}: {outcome.status}: {outcome.why}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
