"""`tune`: build a script, measure its programs on this machine's device, write what was decided.

The samples are kept in the cache's state directory, a file for each script and device. They outlive
the tables: a table can be made again from them without measuring anything.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import Struct, field

from tilusbuild.builder.build import BuildRequest, build_planned
from tilusbuild.builder.project import Project
from tilusbuild.cache import layout
from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.dispatch import latency, tables
from tilusbuild.dispatch.latency import refuse as write_refusals
from tilusbuild.dispatch.latency import spread
from tilusbuild.dispatch.refresh import refresh_dispatcher
from tilusbuild.engine.events import Reporter
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import TilusbuildError, input_error
from tilusbuild.expr import Value
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.model import PlanSelection, Target
from tilusbuild.process.stopping import StoppedError
from tilusbuild.report.tuning import TuningReporter
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.naming import Name
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.table_file import Refusal, by_number
from tilusbuild.runtime.tables import TableEntry, read_dispatch
from tilusbuild.tune import prepare
from tilusbuild.tune.bench.bench import WARMUP, DeviceBench, device_lock, device_of
from tilusbuild.tune.bench.race import Decision, campaign, cleared, condemned, condemned_before
from tilusbuild.tune.bench.session import (
    ROUNDS,
    Budget,
    SampleLog,
    TuningSession,
    integers,
    lines,
    run_note,
)
from tilusbuild.tune.bench.work import Case, Scalar, Work, instance_work

Key = tuple[int, ...]


def key_of(script: Script, integers: Mapping[str, Scalar]) -> Key:
    """Return the bucket of a call. Raises `KeyError` for a dispatch key that has no value."""
    return tuple(to_bucket(int(integers[name])) for name, to_bucket in script.buckets.items())


class Publisher:
    """Writes the decisions of one tuning as they come: tables and latency reports. `judge` is the
    digest of what results are judged by.

    A case speaks for its bucket; of several in one bucket the one with the greatest sizes does,
    because a bucket is known by the greatest size in it. But a program that is out at any of them
    is out for the bucket; and one that computed wrong or crashed there is chosen nowhere until it
    is rebuilt (`dispatch/latency.py`).
    """

    def __init__(self, script: Script, fingerprint: Mapping[str, str], judge: str = "") -> None:
        self._script = script
        self._fingerprint = dict(fingerprint)
        self._judge = judge
        self._decided: dict[Key, dict[str, tuple[tuple[int, ...], Decision]]] = {}
        self.shared: list[tuple[str, str]] = []
        """Two cases of one bucket, by their labels; the first decides."""
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
        self._update_refusals(decision)
        key = key_of(self._script, integers)
        known = self._decided.setdefault(key, {})
        sized = tuple(int(integers[name]) for name in self._script.keys)
        before = self._in_order(key)
        is_new = decision.case.digest not in known
        known[decision.case.digest] = sized, decision
        found = self._in_order(key)
        if before and is_new:
            other = decision if found[0] is before[0] else before[0]
            self.shared.append((found[0].case.label, other.case.label))
        self._write(key, found, known[found[0].case.digest][0])

    def _in_order(self, key: Key) -> list[Decision]:
        """Return the decisions of a bucket, the one that decides first; of equal sizes, the
        last."""
        found = sorted(self._decided[key].values(), key=lambda sized: sized[0])
        return [decision for _, decision in reversed(found)]

    def _update_refusals(self, decision: Decision) -> None:
        """Refuse programs that computed wrong; lift refusals that another reference or tolerance
        had decided."""
        out = {each.program: each for each in condemned(decision, self._judge)}
        clear = cleared(decision, self._refused, self._judge)
        for digest in clear:
            del self._refused[digest]
        self._refused |= out
        write_refusals(self._script, out.values(), clear)

    def _write(self, key: Key, decisions: Sequence[Decision], at: tuple[int, ...]) -> None:
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
        measured = latency.Measured(self._fingerprint, key, seconds, refused, at)
        latency.write(self._script, measured)
        best = measured.best()
        if decides.winner is not None and decides.winner.program.index in seconds:
            winner = decides.winner
            best = TableEntry(key, winner.program.index, "measured", winner.seconds, at)
        if best is not None:
            tables.put(self._script, self._fingerprint, [best])
        else:  # what was chosen before may be what was just found wrong
            tables.put(self._script, self._fingerprint, [], without=[key])

    def end(self, project: Project) -> None:
        """Have every other directory of the cache refuse the same, and make the dispatchers of the
        tables as they are now. Raises `InputError` without a C compiler, `LoadError`, `CacheError`
        and `TilusbuildError`."""
        for script in [self._script, *spread(self._script)]:
            if script is self._script or os.path.isdir(os.path.join(script.path, layout.DISPATCH)):
                find_toolchain = partial(project.toolchain, cuda=False)
                refresh_dispatcher(project.cache, script, find_toolchain, project.runner)


class TuneRequest(Struct, frozen=True):
    """What to tune, and how."""

    script: str
    target: str | None = None
    constants: tuple[tuple[str, str], ...] = ()
    """Choose instances, as in a name."""
    sizes: Sequence[Mapping[str, Value]] = ()
    """None given: those of the manifest."""
    budget: Budget = field(default_factory=Budget)
    cold: bool = True
    limit: float = 30.0
    """Seconds for one check or sample."""
    seed: int = 0
    device: int = 0
    unchecked: bool = False
    fresh: bool = False
    """Forget what was measured before."""

    def name(self, target: str | None) -> Name:
        """Return the name of what is tuned, for a target."""
        return Name(self.script, self.constants, None, target)


class BuiltInstance(Struct, frozen=True):
    """An instance that is built."""

    instance: PlannedInstance
    script: Script
    work: Work


class TunedInstance(Struct, frozen=True):
    """An instance that is tuned."""

    script: Script
    device: Device
    decisions: tuple[Decision, ...]
    shared: tuple[tuple[str, str], ...]
    refused: Mapping[int, str]
    """Why programs are chosen nowhere, by their numbers."""


def built(
    project: Project, wanted: TuneRequest, target: Target, level: int, jobs: int, reporter: Reporter
) -> list[BuiltInstance]:
    """Build the instances for a target. Raises `InputError`, and `TilusbuildError` when a build
    stops."""
    selection = PlanSelection((wanted.name(target.name),), (), level)
    plan = project.plan(selection)
    for instance in plan.instances:  # a mistake in them need not wait for a build
        sizes_of(project, wanted, instance)
    result = build_planned(project, BuildRequest(plan, selection), BuildConfig(jobs=jobs), reporter)
    if result.summary.signal is not None:
        raise StoppedError(result.summary.signal)
    if result.summary.error is not None:
        raise TilusbuildError(f"the build stopped: {result.summary.error}")
    found = []
    for instance in plan.instances:
        script = read_script(project.cache.script_path(instance.directory, instance.hash))
        programs = [index for index in script.programs if index not in script.not_built]
        if not programs:
            raise input_error(f"none of the programs of {script.label} is built")
        groups = [parameter.names for parameter in instance.spec.space.spec.parameters]
        found.append(BuiltInstance(instance, script, instance_work(script, programs, groups)))
    return found


def sizes_of(
    project: Project, wanted: TuneRequest, instance: PlannedInstance
) -> list[dict[str, Value]]:
    """Return the sizes to call with. Raises `InputError` when there is none."""
    signature = instance.spec.signature
    return prepare.sizes_of(project.manifest, wanted.script, wanted.sizes, signature)


def log_path(project: Project, script: Script, facts: Mapping[str, Any]) -> str:
    """Return where the samples of a script on a device are kept."""
    device = re.sub(r"[^A-Za-z0-9]+", "-", f"{facts['name']} {facts['arch']} {facts['driver']}")
    directory = os.path.basename(os.path.dirname(script.path))
    return os.path.join(project.cache.state_path, "tune", directory, device.strip("-") + ".jsonl")


def tune(
    project: Project,
    wanted: TuneRequest,
    ready: BuiltInstance,
    display: TuningReporter,
    decided: Callable[[Work, Decision], None],
) -> TunedInstance:
    """Measure one instance and write its tables; `decided` is called with each decision.

    Raises `InputError`, `CacheError`, `WorkerUnusableError` when the device cannot be used, and
    `CancelledError`. What was measured by then is kept.
    """
    directories: dict[str, str] = {}
    warmup = project.settings.bench_warmup.value
    bench = DeviceBench(
        project.runner,
        ready.script.kind,
        wanted.device,
        directories,
        limit=wanted.limit,
        warmup=WARMUP if warmup is None else warmup,
    )
    with closing(bench):
        facts = bench.describe()
        device_id = str(facts["id"])
        with (
            wrap_oserror(project.cache.root),
            project.cache.in_use(),
            device_lock(device_id, lambda: display.report_waiting(str(facts["name"]))),
        ):
            return _measured(project, wanted, ready, display, decided, bench, directories, facts)


def _measured(
    project: Project,
    wanted: TuneRequest,
    ready: BuiltInstance,
    display: TuningReporter,
    decided: Callable[[Work, Decision], None],
    bench: DeviceBench,
    directories: dict[str, str],
    facts: Mapping[str, Any],
) -> TunedInstance:
    sizes = sizes_of(project, wanted, ready.instance)
    check = prepare.checking(project.manifest, wanted.script, unchecked=wanted.unchecked)
    script, work = ready.script, replace(ready.work, judge=check.judge)
    device = device_of(facts, wanted.device)
    publisher = Publisher(script, device.fingerprint(script.hash), check.judge)
    path = log_path(project, script, facts)
    if wanted.fresh and os.path.exists(path):
        os.unlink(path)
    publisher.refuse(condemned_before(lines(path)).values())
    known = publisher.refused
    log = SampleLog(path)
    rounds = project.settings.bench_repeat.value or ROUNDS

    heard = lambda answer, replayed: display.report_run(answer.cost, replayed)  # noqa: E731
    session = TuningSession(log, bench, wanted.budget, heard, rounds=rounds)
    private = project.cache.private(uses=False)

    def cases(numbers: Sequence[int]) -> Iterator[Case]:
        """Yield each with its files on disk, for as long as it is measured."""
        for number in numbers:
            directory = os.path.join(private.path, str(number))
            case = prepare.prepare_case(
                directory,
                ready.instance.spec.signature,
                sizes[number],
                check,
                seed=wanted.seed,
                cold=wanted.cold,
            )
            directories[case.digest] = directory
            yield case
            shutil.rmtree(directory)

    def done(decision: Decision) -> None:
        publisher.add(integers(decision.case), decision)
        decided(work, decision)

    try:
        log.note(run_note(work, facts, len(sizes)))
        caches = "cold caches" if wanted.cold else "warm caches"
        display.begin_tuning(work.label, f"{device}, {caches}", len(work.programs), len(sizes))
        decisions = campaign(session, work, cases, sizes, wanted.seed, done, known)
    finally:
        log.close()
        private.discard()
    publisher.end(project)
    buckets, refused = tuple(publisher.shared), publisher.reasons
    return TunedInstance(script, device, tuple(decisions), buckets, refused)
