"""`tune`: build a script, measure its programs on this machine's device, write what was decided.

The samples are kept in the cache's state directory, a file for each script and device. They outlive
the tables: a table can be made again from them without measuring anything.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import Struct, field

from tilusbuild.builder.build import BuildRequest, build_request
from tilusbuild.builder.project import Project
from tilusbuild.cache import layout
from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.dispatch import latency, tables
from tilusbuild.dispatch.latency import copy_refusals
from tilusbuild.dispatch.latency import update_refusals as write_refusals
from tilusbuild.dispatch.refresh import refresh_dispatcher
from tilusbuild.engine.events import Reporter
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import TilusbuildError, input_error
from tilusbuild.expr import Value
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.model import PlanSelection, Target
from tilusbuild.process.stopping import StoppedError
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.naming import NamePattern
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.table_file import Refusal, explain_refusals
from tilusbuild.runtime.tables import TableEntry, read_dispatch_table
from tilusbuild.tune import prepare
from tilusbuild.tune.bench.bench import WARMUP, DeviceBench, lock_device, to_device
from tilusbuild.tune.bench.race import (
    Decision,
    collect_logged_refusals,
    collect_refusals,
    decide_cases,
    find_lifted,
)
from tilusbuild.tune.bench.session import (
    ROUNDS,
    Budget,
    SampleLog,
    TuningSession,
    format_run_note,
    list_integers,
    read_lines,
)
from tilusbuild.tune.bench.work import CallScalar, Case, Work, make_work
from tilusbuild.tune.display import TuningReporter
from tilusbuild.tune.input_rules import find_input_rules

BucketKey = tuple[int, ...]


class TuningPublisher:
    """Writes the decisions of one tuning, one after the other, as tables and latency reports.
    `judge` is the digest of the reference and the tolerances.

    A program without a time in one of the cases of a bucket is not chosen for the bucket. A program
    that was incorrect or crashed is refused at all sizes until it is rebuilt
    (`dispatch/latency.py`).
    """

    def __init__(self, script: Script, fingerprint: Mapping[str, str], judge: str = "") -> None:
        self._script = script
        self._fingerprint = dict(fingerprint)
        self._judge = judge
        # By bucket and digest of the case: the sizes and the decision. A case that is decided again
        # replaces its first decision.
        self._decisions: dict[BucketKey, dict[str, tuple[tuple[int, ...], Decision]]] = {}
        self._refused = {
            refusal.program: refusal for refusal in read_dispatch_table(script).refused
        }

    @property
    def reasons_by_number(self) -> dict[int, str]:
        """Return the reason for each refused program, by its number."""
        return explain_refusals(self._script.programs, self._refused.values())

    @property
    def refusals(self) -> dict[str, Refusal]:
        """Return the refusals, by the hashes of the programs."""
        return dict(self._refused)

    def add_refusals(self, refusals: Iterable[Refusal]) -> None:
        """Add refusals of programs that are not refused yet to the script's table file. Raises
        `LoadError` and `OSError`."""
        new_refusals = {
            refusal.program: refusal for refusal in refusals if refusal.program not in self._refused
        }
        self._refused |= new_refusals
        write_refusals(self._script, new_refusals.values())

    def add_decision(self, integers: Mapping[str, CallScalar], decision: Decision) -> None:
        """Record a decision. Update the refusals by it, and write the report and the table row of
        its bucket. Raises `LoadError` and `OSError`."""
        self._update_refusals(decision)
        sizes = tuple(int(integers[name]) for name in self._script.keys)
        buckets = self._script.buckets.items()
        key = tuple(to_bucket(int(integers[name])) for name, to_bucket in buckets)
        self._decisions.setdefault(key, {})[decision.case.digest] = sizes, decision
        self._write_bucket(key)

    def _sort_decisions(self, key: BucketKey) -> list[tuple[tuple[int, ...], Decision]]:
        """Return the sizes and decisions of a bucket, the greatest and latest first."""
        # Reversed after a stable sort, as `reverse=True` would keep the earliest first.
        return sorted(self._decisions[key].values(), key=lambda sized: sized[0])[::-1]

    def _update_refusals(self, decision: Decision) -> None:
        """Refuse the programs that computed wrong or crashed. Lift the refusals by another judge of
        programs that are right now. Write both to the table file."""
        new_refusals = {
            refusal.program: refusal for refusal in collect_refusals(decision, self._judge)
        }
        lifted_hashes = find_lifted(decision, self._refused, self._judge)
        for digest in lifted_hashes:
            del self._refused[digest]
        self._refused |= new_refusals
        write_refusals(self._script, new_refusals.values(), lifted_hashes)

    def _write_bucket(self, key: BucketKey) -> None:
        """Write the report and the table row of a bucket. The case of the greatest sizes decides;
        the others only exclude programs. Without a usable program the row is removed."""
        # The first case has the greatest sizes, which a bucket stands for.
        (sizes, deciding), *others = self._sort_decisions(key)
        refused: dict[int, str] = {}
        for decision in (deciding, *(decision for _, decision in others)):
            prefix = "" if decision is deciding else f"at {decision.case.label}: "
            for outcome in decision.outcomes:
                if outcome.seconds is None:
                    why = f"{outcome.status}: {outcome.why}" if outcome.why else outcome.status
                    refused.setdefault(outcome.program.index, prefix + why)
        refused = {**self.reasons_by_number, **refused}
        seconds = {
            outcome.program.index: outcome.seconds
            for outcome in deciding.outcomes
            if outcome.seconds is not None and outcome.program.index not in refused
        }
        measured = latency.Measurement(self._fingerprint, key, seconds, refused, sizes)
        latency.write_measurement(self._script, measured)
        best = measured.find_best()
        # The race checked its winner twice, so it is better than the best by time alone.
        if deciding.winner is not None and deciding.winner.program.index in seconds:
            winner = deciding.winner
            best = TableEntry(key, winner.program.index, "measured", winner.seconds, sizes)
        if best is not None:
            tables.update_rows(self._script, self._fingerprint, [best])
        else:
            # An earlier row is removed: its program may be one of those that are refused now.
            tables.update_rows(self._script, self._fingerprint, [], removed_keys=[key])

    def finish_tuning(
        self, project: Project, device: Device, decisions: Sequence[Decision]
    ) -> TunedInstance:
        """Copy the refusals to all script directories with the same programs, and build the
        dispatchers of the changed ones again. Return the results.

        Raises `InputError` without a C compiler, `LoadError`, `CacheError` and `TilusbuildError`.
        """
        find_toolchain = partial(project.find_toolchain, cuda=False)
        for script in [self._script, *copy_refusals(self._script)]:
            # Another script's dispatcher is built again only if it was built before.
            has_dispatcher = os.path.isdir(os.path.join(script.path, layout.DISPATCH))
            if script is self._script or has_dispatcher:
                refresh_dispatcher(project.cache, script, find_toolchain, project.runner)
        shared_buckets = []
        for key in self._decisions:
            (_, deciding), *others = self._sort_decisions(key)
            shared_buckets += [(deciding.case.label, other.case.label) for _, other in others]
        return TunedInstance(
            self._script, device, tuple(decisions), tuple(shared_buckets), self.reasons_by_number
        )


class TuneRequest(Struct, frozen=True):
    """A request to tune instances of a script."""

    script: str
    target: str | None = None
    constants: tuple[tuple[str, str], ...] = ()
    """Names and values of the constants that choose instances, as in a name."""
    sizes: Sequence[Mapping[str, Value]] = ()
    """Empty for those of the manifest."""
    budget: Budget = field(default_factory=Budget)
    cold: bool = True
    limit: float = 30.0
    """Seconds for one check or sample."""
    seed: int = 0
    device: int = 0
    unchecked: bool = False
    fresh: bool = False
    """Whether to discard the log of earlier measurements."""

    def to_name(self, target: str | None) -> NamePattern:
        """Return the name of the instances to tune, for a target."""
        return NamePattern(self.script, self.constants, None, target)


class BuiltInstance(Struct, frozen=True):
    """An instance whose programs are built."""

    instance: PlannedInstance
    script: Script
    work: Work


class TunedInstance(Struct, frozen=True):
    """The results of tuning an instance."""

    script: Script
    device: Device
    decisions: tuple[Decision, ...]
    shared_buckets: tuple[tuple[str, str], ...]
    """Two cases of one bucket, by their labels; the first decides."""
    reasons_by_number: Mapping[int, str]
    """Why programs are chosen nowhere, by their numbers."""


def build_instances(
    project: Project,
    request: TuneRequest,
    target: Target,
    level: int,
    jobs: int,
    reporter: Reporter,
) -> list[BuiltInstance]:
    """Build the programs of the requested instances for a target, and return the instances. Raises
    `InputError` for wrong sizes and for an instance without a built program, `StoppedError` on a
    signal, and `TilusbuildError` when a build stops."""
    selection = PlanSelection((request.to_name(target.name),), (), level)
    plan = project.make_plan(selection)
    # Called for its errors alone: a mistake in the sizes need not wait for the build.
    for instance in plan.instances:
        find_request_sizes(project, request, instance)
    result = build_request(project, BuildRequest(plan, selection), BuildConfig(jobs=jobs), reporter)
    if result.summary.signal is not None:
        raise StoppedError(result.summary.signal)
    if result.summary.error is not None:
        raise TilusbuildError(f"the build stopped: {result.summary.error}")
    instances = []
    for instance in plan.instances:
        script = read_script(project.cache.script_path(instance.directory, instance.hash))
        programs = [index for index in script.programs if index not in script.not_built]
        if not programs:
            raise input_error(f"none of the programs of {script.label} is built")
        groups = [parameter.names for parameter in instance.spec.space.spec.parameters]
        instances.append(BuiltInstance(instance, script, make_work(script, programs, groups)))
    return instances


def find_request_sizes(
    project: Project, request: TuneRequest, instance: PlannedInstance
) -> list[dict[str, Value]]:
    """Return the sizes to measure. Raises `InputError` when there is none."""
    signature = instance.spec.signature
    return prepare.find_sizes(project.manifest, request.script, request.sizes, signature)


def find_log_path(project: Project, script: Script, facts: Mapping[str, Any]) -> str:
    """Return the path of the log of a script's samples on a device."""
    # The driver is a part of the name: samples that were taken with another driver do not count.
    device = re.sub(r"[^A-Za-z0-9]+", "-", f"{facts['name']} {facts['arch']} {facts['driver']}")
    directory = os.path.basename(os.path.dirname(script.path))
    return os.path.join(project.cache.state_path, "tune", directory, device.strip("-") + ".jsonl")


def tune_instance(
    project: Project,
    request: TuneRequest,
    built: BuiltInstance,
    display: TuningReporter,
    on_decision: Callable[[Work, Decision], None],
) -> TunedInstance:
    """Measure one instance and write its tables; call `on_decision` with each decision.

    Raises `InputError`, `CacheError`, `WorkerUnusableError` when the device cannot be used, and
    `CancelledError`.
    """
    sizes = find_request_sizes(project, request, built.instance)
    check = prepare.find_output_check(project.manifest, request.script, unchecked=request.unchecked)
    rules = find_input_rules(built.instance.spec)
    script, work = built.script, replace(built.work, judge=check.judge)
    directories: dict[str, str] = {}
    warmup, repeat = project.settings.bench_warmup.value, project.settings.bench_repeat.value
    bench = DeviceBench(
        project.runner,
        script.kind,
        request.device,
        directories,
        limit=request.limit,
        warmup=WARMUP if warmup is None else warmup,
    )

    # The two functions are called below, where `private` and `publisher` have their values.
    def prepare_cases(numbers: Sequence[int]) -> Iterator[Case]:
        """Yield each case. Its files exist until the next one is asked for."""
        for number in numbers:
            directory = os.path.join(private.path, str(number))
            case = prepare.prepare_case(
                directory,
                built.instance.spec.signature,
                sizes[number],
                check,
                rules,
                seed=request.seed,
                cold=request.cold,
            )
            directories[case.digest] = directory
            yield case
            shutil.rmtree(directory)

    def publish_decision(decision: Decision) -> None:
        """Write a decision to the tables, and pass it on."""
        publisher.add_decision(list_integers(decision.case), decision)
        on_decision(work, decision)

    with ExitStack() as stack:
        stack.enter_context(closing(bench))
        facts = bench.describe_device()
        stack.enter_context(wrap_oserror(project.cache.root))
        # The garbage collection of another process waits: it would remove what is measured.
        stack.enter_context(project.cache.hold_use())
        report_waiting = partial(display.report_waiting, str(facts["name"]))
        stack.enter_context(lock_device(str(facts["id"]), report_waiting))
        device = to_device(facts, request.device)
        publisher = TuningPublisher(script, device.make_fingerprint(script.hash), check.judge)
        path = find_log_path(project, script, facts)
        # Without the log, refusals remain: the tables have them, too.
        if request.fresh and os.path.exists(path):
            os.unlink(path)
        # The table may have been deleted since the log was written: it gets the log's refusals.
        publisher.add_refusals(collect_logged_refusals(read_lines(path)).values())
        log = stack.enter_context(closing(SampleLog(path)))
        private = project.cache.make_private(is_waited_for=False)
        stack.callback(private.discard)
        session = TuningSession(
            log, bench, request.budget, display.report_run, rounds=repeat or ROUNDS
        )
        # Each tuning writes one. `--import` reads the number of sizes from the last one.
        log.append_line(format_run_note(work, facts, len(sizes)))
        caches = "cold caches" if request.cold else "warm caches"
        display.begin_tuning(work.label, f"{device}, {caches}", len(work.programs), len(sizes))
        decisions = decide_cases(
            session, work, prepare_cases, sizes, request.seed, publish_decision, publisher.refusals
        )
        return publisher.finish_tuning(project, device, decisions)
