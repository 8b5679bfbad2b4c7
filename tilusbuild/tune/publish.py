"""What was decided, written where calls and people look for it: tables and latency reports.

A case speaks for its bucket; of several in one bucket the one with the greatest sizes does, because
a bucket is known by the greatest size in it. But a program that is out at any of them, wrong there
or crashing, is out for the bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilusbuild.build.project import Project
from tilusbuild.dispatch import latency, tables
from tilusbuild.dispatch.dispatcher import refresh
from tilusbuild.runtime.choose import Chooser
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.tables import TableEntry
from tilusbuild.tune.bench.race import Decision
from tilusbuild.tune.bench.work import Scalar

Key = tuple[int, ...]


def key_of(script: Script, integers: Mapping[str, Scalar]) -> Key:
    """The bucket of a call. Raises `KeyError` for a dispatch key that has no value."""
    pairs = zip(script.keys, script.buckets, strict=True)
    return tuple(to_bucket(int(integers[name])) for name, to_bucket in pairs)


@dataclass(frozen=True, slots=True)
class Shared:
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
        self.shared: list[Shared] = []

    def add(self, integers: Mapping[str, Scalar], decision: Decision) -> None:
        """Note a decision and bring the files up to date. Raises `LoadError` and `OSError`."""
        key = key_of(self._script, integers)
        known = self._decided.setdefault(key, [])
        before = known[-1][1] if known else None
        known.append((tuple(int(integers[name]) for name in self._script.keys), decision))
        known.sort(key=lambda sized: sized[0])  # the one that decides is the last
        if before is not None:
            other = decision if known[-1][1] is before else before
            self.shared.append(Shared(key, known[-1][1].case.label, other.case.label))
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

    Raises `InputError` without a C compiler, `LoadError`, `CacheTrouble` and `TilusbuildError`.
    """
    refresh(project.cache, script, project.toolchain(cuda=False), project.runner)


def record_models(
    script: Script, there: frozenset[int], sizes: Iterable[Mapping[str, Scalar]]
) -> list[TableEntry]:
    """Rows for any device, from the model or the default, where nothing can be measured.

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
