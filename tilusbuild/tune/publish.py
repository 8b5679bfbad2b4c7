"""What was decided, written where calls and people look for it: tables and latency reports.

A case speaks for its bucket; of several in one bucket the one with the greatest sizes does, because
a bucket is known by the greatest size in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilusbuild.dispatch import latency, tables
from tilusbuild.runtime.choose import Chooser
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.tables import Entry
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
        self._decided: dict[Key, tuple[Mapping[str, Scalar], Decision]] = {}
        self.shared: list[Shared] = []

    def add(self, integers: Mapping[str, Scalar], decision: Decision) -> None:
        """Note a decision and bring the files up to date. Raises `LoadError` and `OSError`."""
        key = key_of(self._script, integers)
        if key in self._decided:
            before, other = self._decided[key]
            wins = self._rank(integers) >= self._rank(before)
            first, second = (decision, other) if wins else (other, decision)
            self.shared.append(Shared(key, first.case.label, second.case.label))
            if not wins:
                return
        self._decided[key] = integers, decision
        self._write(key, decision)

    def _rank(self, integers: Mapping[str, Scalar]) -> tuple[int, ...]:
        return tuple(int(integers[name]) for name in self._script.keys)

    def _write(self, key: Key, decision: Decision) -> None:
        measured = latency.Measured(
            self._fingerprint,
            key,
            {o.program.index: o.seconds for o in decision.outcomes if o.seconds is not None},
            {
                o.program.index: f"{o.status}: {o.why}" if o.why else o.status
                for o in decision.outcomes
                if o.seconds is None
            },
        )
        latency.write(self._script, measured)
        if decision.winner is not None:
            winner = decision.winner
            entry = Entry(key, winner.program.index, "measured", winner.seconds)
            tables.put(self._script, self._fingerprint, [entry])


def record_models(
    script: Script, there: frozenset[int], sizes: Iterable[Mapping[str, Scalar]]
) -> list[Entry]:
    """Rows for any device, from the model or the default, where nothing can be measured.

    Raises `LoadError` and `OSError`.
    """
    chooser = Chooser(script, (), there)
    entries = []
    for integers in sizes:
        choice = chooser.choose(integers)
        if choice.source != "table":  # the rule is asked at every call anyway
            entries.append(Entry(key_of(script, integers), choice.program, choice.source, None))
    anywhere = {"script": script.hash, "device": "*", "arch": "*"}
    tables.put(script, anywhere, entries)
    return entries
