"""What was decided, written for calls, people and other tools: tables, latency reports, T4 files.

A case speaks for its bucket; of several in one bucket the one with the greatest sizes does, because
a bucket is known by the greatest size in it. But a program that is out at any of them, wrong there
or crashing, is out for the bucket.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilusbuild.builder.project import Project
from tilusbuild.dispatch import latency, tables
from tilusbuild.dispatch.dispatcher import refresh
from tilusbuild.runtime.choose import Chooser
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.tables import TableEntry
from tilusbuild.status import Status
from tilusbuild.tune.bench.bench import CRASH, INCORRECT, LAUNCH_ERROR, OK, TIMEOUT
from tilusbuild.tune.bench.race import Decision, Outcome
from tilusbuild.tune.bench.work import Scalar

Key = tuple[int, ...]


def key_of(script: Script, integers: Mapping[str, Scalar]) -> Key:
    """Return the bucket of a call. Raises `KeyError` for a dispatch key that has no value."""
    pairs = zip(script.keys, script.buckets, strict=True)
    return tuple(to_bucket(int(integers[name])) for name, to_bucket in pairs)


@dataclass(frozen=True, slots=True)
class SharedBucket:
    """Two cases of one bucket, by their labels."""

    key: Key
    decides: str
    gives_way: str


class Publisher:
    """Writes the decisions of one tuning as they come."""

    def __init__(self, script: Script, fingerprint: Mapping[str, str]) -> None:
        self._script = script
        self._fingerprint = dict(fingerprint)
        self._decided: dict[Key, list[tuple[tuple[int, ...], Decision]]] = {}
        self.shared: list[SharedBucket] = []

    def add(self, integers: Mapping[str, Scalar], decision: Decision) -> None:
        """Note a decision and bring the files up to date. Raises `LoadError` and `OSError`."""
        key = key_of(self._script, integers)
        known = self._decided.setdefault(key, [])
        before = known[-1][1] if known else None
        known.append((tuple(int(integers[name]) for name in self._script.keys), decision))
        known.sort(key=lambda sized: sized[0])  # the one that decides is the last
        if before is not None:
            other = decision if known[-1][1] is before else before
            self.shared.append(SharedBucket(key, known[-1][1].case.label, other.case.label))
        self._write(key, [each for _, each in reversed(known)])

    def _write(self, key: Key, decisions: Sequence[Decision]) -> None:
        decides, refused = decisions[0], dict[int, str]()
        for decision in decisions:
            where = "" if decision is decides else f"at {decision.case.label}: "
            for outcome in decision.outcomes:
                if outcome.seconds is None:
                    why = f"{outcome.status}: {outcome.why}" if outcome.why else outcome.status
                    refused.setdefault(outcome.program.index, where + why)
        seconds = {
            o.program.index: o.seconds
            for o in decides.outcomes
            if o.seconds is not None and o.program.index not in refused
        }
        measured = latency.Measured(self._fingerprint, key, seconds, refused)
        latency.write(self._script, measured)
        best = measured.best()
        if decides.winner is not None and decides.winner.program.index in seconds:
            best = TableEntry(key, decides.winner.program.index, "measured", decides.winner.seconds)
        if best is not None:
            tables.put(self._script, self._fingerprint, [best])
        else:  # what was chosen before may be what was just found wrong
            tables.put(self._script, self._fingerprint, [], without=[key])


def remake_dispatcher(project: Project, script: Script) -> None:
    """Make the script's C dispatcher of the tables as they are now.

    Raises `InputError` without a C compiler, `LoadError`, `CacheError` and `TilusbuildError`.
    """
    refresh(project.cache, script, project.toolchain(cuda=False), project.runner)


def record_models(
    script: Script, there: frozenset[int], sizes: Iterable[Mapping[str, Scalar]]
) -> list[TableEntry]:
    """Write rows for any device, from the model or the default, where nothing can be measured.

    Raises `LoadError` and `OSError`.
    """
    chooser = Chooser(script, (), there)
    entries = []
    for integers in sizes:
        choice = chooser.choose(integers)
        if choice.source != "table":  # the rule is asked at every call anyway
            entries.append(
                TableEntry(key_of(script, integers), choice.program, choice.source, None)
            )
    anywhere = {"script": script.hash, "device": "*", "arch": "*"}
    tables.put(script, anywhere, entries)
    return entries


# The T4 form (Open Autotuning Results Schema, 1.0.0), which Kernel Tuner and others read. It
# describes one problem; a file of ours has a result for each program and combination of sizes,
# which stand in `problem`. Times are in milliseconds. Programs that did not compile, or were pruned
# after compiling, are results too.

_INVALIDITY = {
    OK: "correct",
    INCORRECT: "correctness",
    TIMEOUT: "timeout",
    CRASH: "runtime",
    LAUNCH_ERROR: "runtime",
}
_NOT_BUILT: dict[str, str] = {Status.FAILED: "compile", Status.PRUNED: "constraints"}


def t4_json(tuned: list[tuple[Script, str, tuple[Decision, ...]]]) -> str:
    """Return the text of a T4 file, of scripts, the devices' names, and the decisions."""
    results = [row for script, device, found in tuned for row in _t4_results(script, device, found)]
    return json.dumps({"schema_version": "1.0.0", "results": results}, indent=1) + "\n"


def _t4_results(script: Script, device: str, decisions: tuple[Decision, ...]) -> Iterator[Any]:
    for decision in decisions:
        problem = {"script": script.label, "device": device, **decision.case.sizes}
        for outcome in decision.outcomes:
            yield {**_t4_outcome(outcome), "problem": problem}
        for index, why in sorted(script.not_built.items()):
            if why in _NOT_BUILT:
                yield {**_t4_not_built(script, index, why), "problem": problem}


def _t4_outcome(outcome: Outcome) -> dict[str, Any]:
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


def _t4_not_built(script: Script, index: int, why: str) -> dict[str, Any]:
    return {
        "configuration": script.schedule(index),
        "objectives": ["time"],
        "times": {"compilation_time": 0, "runtimes": []},
        "invalidity": _NOT_BUILT[why],
        "correctness": 0,
        "measurements": [],
    }
