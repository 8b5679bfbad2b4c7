"""The T4 form of tuning results, which Kernel Tuner and others read: a JSON of every program tried.

T4 (Open Autotuning Results Schema, 1.0.0) describes one problem; a file of ours has a result for
each program and combination of sizes, which stand in `problem`. Times are in milliseconds. Programs
that did not compile, or were pruned after compiling, are results too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tilusbuild.runtime.script import Script
from tilusbuild.status import Status
from tilusbuild.tune.bench.bench import CRASH, INCORRECT, LAUNCH_ERROR, OK, TIMEOUT
from tilusbuild.tune.bench.race import Decision, Outcome

_INVALIDITY = {
    OK: "correct",
    INCORRECT: "correctness",
    TIMEOUT: "timeout",
    CRASH: "runtime",
    LAUNCH_ERROR: "runtime",
}
_NOT_BUILT: dict[str, str] = {Status.FAILED: "compile", Status.PRUNED: "constraints"}


def t4_json(tuned: list[tuple[Script, str, tuple[Decision, ...]]]) -> str:
    """The file's text, of scripts, the devices' names, and the decisions."""
    results = [row for script, device, found in tuned for row in _results(script, device, found)]
    return json.dumps({"schema_version": "1.0.0", "results": results}, indent=1) + "\n"


def _results(script: Script, device: str, decisions: tuple[Decision, ...]) -> Iterator[Any]:
    for decision in decisions:
        problem = {"script": script.label, "device": device, **decision.case.sizes}
        for outcome in decision.outcomes:
            yield {**_outcome(outcome), "problem": problem}
        for index, why in sorted(script.not_built.items()):
            if why in _NOT_BUILT:
                yield {**_not_built(script, index, why), "problem": problem}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    measurements = []
    if outcome.seconds is not None:
        measurements = [{"name": "time", "value": outcome.seconds * 1e3, "unit": "ms"}]
    return {
        "configuration": dict(outcome.program.schedule),
        "objectives": ["time"],
        "times": {
            "compilation_time": 0,
            "runtimes": [seconds * 1e3 for seconds in outcome.samples],
        },
        "invalidity": _INVALIDITY[outcome.status],
        "correctness": 1 if outcome.status == OK else 0,
        "measurements": measurements,
    }


def _not_built(script: Script, index: int, why: str) -> dict[str, Any]:
    return {
        "configuration": script.schedule(index),
        "objectives": ["time"],
        "times": {"compilation_time": 0, "runtimes": []},
        "invalidity": _NOT_BUILT[why],
        "correctness": 0,
        "measurements": [],
    }
