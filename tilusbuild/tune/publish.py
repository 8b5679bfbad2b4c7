"""What was decided, written for calls and people: tables and latency reports.

A case speaks for its bucket; of several in one bucket the one with the greatest sizes does, because
a bucket is known by the greatest size in it. But a program that is out at any of them is out for
the bucket; and one that computed wrong or crashed there is chosen nowhere until it is rebuilt
(`dispatch/latency.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from tilusbuild.builder.project import Project
from tilusbuild.cache import layout
from tilusbuild.dispatch import latency, tables
from tilusbuild.dispatch.dispatcher import refresh
from tilusbuild.dispatch.latency import refuse as write_refusals
from tilusbuild.dispatch.latency import spread
from tilusbuild.runtime.choose import Chooser
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.table_file import Refusal, by_number
from tilusbuild.runtime.tables import TableEntry, read_dispatch
from tilusbuild.tune.bench.race import Decision, cleared, condemned
from tilusbuild.tune.bench.work import Scalar

Key = tuple[int, ...]


def key_of(script: Script, integers: Mapping[str, Scalar]) -> Key:
    """Return the bucket of a call. Raises `KeyError` for a dispatch key that has no value."""
    pairs = zip(script.keys, script.buckets, strict=True)
    return tuple(to_bucket(int(integers[name])) for name, to_bucket in pairs)


class SharedBucket(Struct, frozen=True):
    """Two cases of one bucket, by their labels."""

    key: Key
    decides: str
    gives_way: str


class Publisher:
    """Writes the decisions of one tuning as they come. `judge` is the digest of what results are
    judged by."""

    def __init__(self, script: Script, fingerprint: Mapping[str, str], judge: str = "") -> None:
        self._script = script
        self._fingerprint = dict(fingerprint)
        self._judge = judge
        self._decided: dict[Key, dict[str, tuple[tuple[int, ...], Decision]]] = {}
        self.shared: list[SharedBucket] = []
        self._refused = {each.program: each for each in read_dispatch(script).refused}

    @property
    def reasons(self) -> dict[int, str]:
        """Return why programs are chosen nowhere, by their numbers."""
        return by_number(self._script.programs, self._refused.values())

    @property
    def refused(self) -> dict[str, Refusal]:
        """Return who is chosen nowhere, by hash."""
        return dict(self._refused)

    def refuse(self, refusals: Iterable[Refusal]) -> None:
        """Have programs chosen nowhere. Raises `LoadError` and `OSError`."""
        new = {r.program: r for r in refusals if r.program not in self._refused}
        self._refused |= new
        write_refusals(self._script, new.values())

    def add(self, integers: Mapping[str, Scalar], decision: Decision) -> None:
        """Note a decision and bring the files up to date. Raises `LoadError` and `OSError`."""
        self._judge_by(decision)
        key = key_of(self._script, integers)
        known = self._decided.setdefault(key, {})
        sized = tuple(int(integers[name]) for name in self._script.keys)
        before = self._in_order(key)
        is_new = decision.case.digest not in known
        known[decision.case.digest] = sized, decision
        found = self._in_order(key)
        if before and is_new:
            other = decision if found[0] is before[0] else before[0]
            self.shared.append(SharedBucket(key, found[0].case.label, other.case.label))
        self._write(key, found)

    def _in_order(self, key: Key) -> list[Decision]:
        """Return the decisions of a bucket, the one that decides first; of equal sizes, the
        last."""
        found = sorted(self._decided[key].values(), key=lambda sized: sized[0])
        return [decision for _, decision in reversed(found)]

    def _judge_by(self, decision: Decision) -> None:
        """Take in who is condemned, and who is cleared of what another judge found."""
        out = {each.program: each for each in condemned(decision, self._judge)}
        clear = cleared(decision, self._refused, self._judge)
        for digest in clear:
            del self._refused[digest]
        self._refused |= out
        write_refusals(self._script, out.values(), clear)

    def _write(self, key: Key, decisions: Sequence[Decision]) -> None:
        decides, refused = decisions[0], dict[int, str]()
        for decision in decisions:
            where = "" if decision is decides else f"at {decision.case.label}: "
            for outcome in decision.outcomes:
                if outcome.seconds is None:
                    why = f"{outcome.status}: {outcome.why}" if outcome.why else outcome.status
                    refused.setdefault(outcome.program.index, where + why)
        refused = {**self.reasons, **refused}
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

    def end(self, project: Project) -> None:
        """Have every other directory of the cache refuse the same, and make the dispatchers of the
        tables as they are now. Raises as `remake_dispatcher`."""
        for script in [self._script, *spread(self._script)]:
            if script is self._script or os.path.isdir(os.path.join(script.path, layout.DISPATCH)):
                remake_dispatcher(project, script)


def remake_dispatcher(project: Project, script: Script) -> None:
    """Make the script's C dispatcher of the tables as they are now.

    Raises `InputError` without a C compiler, `LoadError`, `CacheError` and `TilusbuildError`.
    """
    refresh(project.cache, script, project.toolchain(cuda=False), project.runner)


def record_models(
    script: Script, available: frozenset[int], sizes: Iterable[Mapping[str, Scalar]]
) -> list[TableEntry]:
    """Write rows for any device, from the model or the default, where nothing can be measured.

    Raises `LoadError` and `OSError`.
    """
    refused = by_number(script.programs, read_dispatch(script).refused)
    chooser = Chooser(script, (), available, refused)
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
