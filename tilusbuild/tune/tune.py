"""`tune`: build and measure a script's programs on this machine's device, write what was decided.

The samples are kept in the cache's state directory, a file for each script and device. They outlive
the tables: a table can be made again from them without measuring anything.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from tilusbuild.builder.project import Project
from tilusbuild.cache import layout
from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.tree import Tree
from tilusbuild.dispatch.describe import describe_planned
from tilusbuild.dispatch.measurements import (
    CommittedRows,
    append_rows,
    are_recorded,
    find_committed_rows,
    fold_refusals,
    make_row,
    make_tuning_time,
    measure_cases,
    read_rows,
)
from tilusbuild.dispatch.recorded import read_recorded_sizes
from tilusbuild.dispatch.refresh import refresh_dispatcher, refresh_tables
from tilusbuild.engine.events import CompositeReporter, Reporter
from tilusbuild.errors import input_error
from tilusbuild.expr import Value
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.measured import MeasuredRow, select_numbers
from tilusbuild.plan.model import PlanSelection, Target
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.naming import NamePattern
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.table_file import Refusal, explain_refusals, find_fastest
from tilusbuild.tune import prepare
from tilusbuild.tune.ahead import ProgramBuilder
from tilusbuild.tune.bench.bench import WARMUP, lock_device, to_device
from tilusbuild.tune.bench.race import Decision, decide_cases
from tilusbuild.tune.bench.session import (
    ROUNDS,
    Budget,
    SampleLog,
    TuningSession,
    format_run_note,
    list_integers,
)
from tilusbuild.tune.bench.work import CallScalar, Case, make_work
from tilusbuild.tune.benches import BenchSource, LocalBenches, select_one_model
from tilusbuild.tune.display import TuningReporter, list_sample_notes, list_unwatched
from tilusbuild.tune.input_rules import find_input_rules
from tilusbuild.tune.run import check_cpu


class TuningPublisher:
    """Adds the decisions of one tuning to the measurements of the cache, one after the other, and
    writes the tables that follow. `judge` is the digest of the reference and the tolerances."""

    def __init__(
        self, cache: Tree, script: Script, device: Device, judge: str, committed: CommittedRows
    ) -> None:
        self._cache = cache
        self._script = script
        self._device = device
        self._judge = judge
        self._committed = committed
        self._directory = os.path.basename(os.path.dirname(script.path))
        self._rows = read_rows(cache, self._directory)

    @property
    def refusals(self) -> dict[str, Refusal]:
        """Return the refusals of programs, by their hashes."""
        return fold_refusals(self._rows)

    def list_winners(self) -> list[tuple[Mapping[str, CallScalar], int]]:
        """Return sizes with the best program there: by the rows of the repository, of other devices
        and for earlier code."""
        # Not those of this tuning: when it is resumed, it begins as it did before.
        hashes = {*self._script.programs.values()}
        foreign_rows = [
            row
            for row in self._rows
            if row.device != self._device.name or row.program not in hashes
        ]
        winners = []
        for rows in (self._committed.rows, foreign_rows):
            for measurement, sizes in measure_cases(self._script, rows, self.refusals):
                best = find_fastest(measurement.seconds)
                if best is not None:
                    winners.append((sizes, best))
        return winners

    def add_decision(self, integers: Mapping[str, CallScalar], decision: Decision) -> None:
        """Add a row for each program that was measured in a case, and write the tables. Raises
        `LoadError` and `CacheError`."""
        rows = self._make_rows(integers, decision, make_tuning_time(self._rows))
        # A tuning that only reads its log again adds nothing.
        if not are_recorded(self._script, self._rows, rows):
            self._append_rows(rows)
        # Read again: the description of a planned script does not say what is built.
        self._script = refresh_tables(self._script.path, self._rows, self._committed)

    def add_rejections(self, integers: Mapping[str, CallScalar], decision: Decision) -> None:
        """Add the rows of programs that computed wrong or crashed in a case that is not decided.
        Raises `CacheError`."""
        # Without a time, so that they replace no tuning of these sizes.
        rows = self._make_rows(integers, decision, "")
        self._append_rows([row for row in rows if row.rejected])

    def _make_rows(
        self, integers: Mapping[str, CallScalar], decision: Decision, time: str
    ) -> list[MeasuredRow]:
        """Return the rows of a case. Programs that were refused before have none."""
        sizes = {**decision.case.sizes, **{key: integers[key] for key in self._script.keys}}
        refusals = self.refusals
        return [
            make_row(
                self._script,
                outcome.program.index,
                self._device.name,
                self._device.arch,
                sizes=select_numbers(sizes),
                seconds=outcome.seconds,
                program=outcome.program.hash,
                status="" if outcome.seconds is not None else outcome.status,
                why=outcome.why,
                rejected=outcome.is_refusal,
                judge=self._judge,
                time=time,
            )
            for outcome in decision.outcomes
            if outcome.samples or outcome.is_refusal or outcome.program.hash not in refusals
        ]

    def _append_rows(self, rows: Sequence[MeasuredRow]) -> None:
        append_rows(self._cache, self._directory, rows)
        self._rows += rows

    def finish_tuning(self, project: Project, decisions: Sequence[Decision]) -> TunedInstance:
        """Write the tables of the other directories of the script, which list the same programs,
        and build the dispatchers again. Return the results.

        Raises `InputError` without a C compiler, `LoadError`, `CacheError` and `TilusbuildError`.
        """
        siblings = self._cache.list_names(layout.SCRIPTS, self._directory)
        scripts = [self._script]
        for digest in siblings:
            path = self._cache.script_path(self._directory, digest)
            if path != self._script.path:
                with suppress(LoadError):
                    scripts.append(refresh_tables(path, self._rows, self._committed))
        find_toolchain = partial(project.find_toolchain, cuda=False)
        for script in scripts:
            # Another directory's dispatcher is built again only if it was built before.
            has_dispatcher = os.path.isdir(os.path.join(script.path, layout.DISPATCH))
            if script is self._script or has_dispatcher:
                refresh_dispatcher(project.cache, script, find_toolchain, project.runner)
        refused = explain_refusals(self._script.programs, self.refusals.values())
        shared_buckets = tuple(_find_shared_buckets(self._script, decisions))
        return TunedInstance(self._script, self._device, tuple(decisions), shared_buckets, refused)


def _find_shared_buckets(
    script: Script, decisions: Iterable[Decision]
) -> Iterator[tuple[str, str]]:
    """Yield two cases of one bucket, by their labels: first the one with the greatest sizes, which
    decides."""
    groups: dict[tuple[int, ...], list[tuple[tuple[int, ...], str]]] = {}
    for decision in decisions:
        integers = list_integers(decision.case)
        sizes = tuple(int(integers[name]) for name in script.keys)
        bucket = script.find_bucket(integers)
        groups.setdefault(bucket, []).append((sizes, decision.case.label))
    for group in groups.values():
        (_, deciding), *others = sorted(group, key=lambda sized: sized[0])[::-1]
        yield from ((deciding, label) for _, label in others)


class TuneRequest(Struct, frozen=True):
    """A request to tune instances of a script."""

    script: str
    target: str | None = None
    constants: tuple[tuple[str, str], ...] = ()
    """Names and values of the constants that choose instances, as in a name."""
    sizes: Sequence[Mapping[str, Value]] = ()
    """Empty for those of the manifest."""
    sizes_from: str | None = None
    """The file of `tilusbuild.record` whose sizes are measured, too."""
    budget: Budget = field(default_factory=Budget)
    cold: bool = True
    limit: float = 30.0
    """Seconds for one check or sample."""
    seed: int = 0
    unchecked: bool = False
    fresh: bool = False
    """Whether to discard the log of earlier measurements."""

    def to_name(self, target: str | None) -> NamePattern:
        """Return the name of the instances to tune, for a target."""
        return NamePattern(self.script, self.constants, None, target)


class TunedInstance(Struct, frozen=True):
    """The results of tuning an instance."""

    script: Script
    device: Device
    decisions: tuple[Decision, ...]
    shared_buckets: tuple[tuple[str, str], ...]
    """Two cases of one bucket, by their labels; the first decides."""
    reasons_by_number: Mapping[int, str]
    """Why programs are chosen nowhere, by their numbers."""
    notes: Sequence[str] = ()
    """How many samples were disturbed, and by what."""


def tune_script(
    project: Project,
    request: TuneRequest,
    target: Target,
    source: BenchSource,
    reporter: Reporter,
    display: TuningReporter,
    on_decision: Callable[[Script, Decision], None],
) -> list[TunedInstance]:
    """Tune the requested instances for a target, build their programs meanwhile, and return the
    results. `on_decision` is called with each decision.

    Raises `InputError` for wrong sizes and for an instance without a built program, `CacheError`,
    `WorkerUnusableError` when the device cannot be used, `CancelledError`, and `TilusbuildError`
    when a build stops.
    """
    selection = PlanSelection((request.to_name(target.name),), (), project.settings.level.value)
    plan = project.make_plan(selection)
    if isinstance(source, LocalBenches):
        check_cpu(project, plan)
    # Found before the build: a mistake in the sizes need not wait for it.
    sizes = [find_request_sizes(project, request, instance) for instance in plan.instances]
    builder = ProgramBuilder(
        project,
        plan,
        selection,
        CompositeReporter(display, reporter),
        builds_all=request.budget == Budget(),
    )
    with builder:
        return [
            tune_instance(project, request, *pair, source, builder, display, on_decision)
            for pair in zip(plan.instances, sizes, strict=True)
        ]


def find_request_sizes(
    project: Project, request: TuneRequest, instance: PlannedInstance
) -> list[dict[str, Value]]:
    """Return the sizes to measure. Raises `InputError` when there is none."""
    signature, sizes = instance.spec.signature, request.sizes
    if request.sizes_from is not None:
        recorded = read_recorded_sizes(request.sizes_from, instance.script, instance.params)
        script = describe_planned(project.manifest, instance)
        sizes = [*sizes, *recorded.select_by_bucket(script)]
    return prepare.find_sizes(project.manifest, request.script, sizes, signature)


def find_log_path(project: Project, script: Script, facts: Mapping[str, Any]) -> str:
    """Return the path of the log of a script's samples on a device."""
    # The driver is a part of the name: samples that were taken with another driver do not count.
    device = re.sub(r"[^A-Za-z0-9]+", "-", f"{facts['name']} {facts['arch']} {facts['driver']}")
    directory = os.path.basename(os.path.dirname(script.path))
    return os.path.join(project.cache.state_path, "tune", directory, device.strip("-") + ".jsonl")


def tune_instance(
    project: Project,
    request: TuneRequest,
    instance: PlannedInstance,
    sizes: Sequence[Mapping[str, Value]],
    source: BenchSource,
    builder: ProgramBuilder,
    display: TuningReporter,
    on_decision: Callable[[Script, Decision], None],
) -> TunedInstance:
    """Measure one instance at `sizes` and write its tables. Return the results. Raises as
    `tune_script`."""
    check = prepare.find_output_check(project.manifest, request.script, unchecked=request.unchecked)
    rules = find_input_rules(instance.spec)
    path = project.cache.script_path(instance.directory, instance.hash)
    script = describe_planned(project.manifest, instance, path)
    groups = [parameter.names for parameter in instance.spec.space.spec.parameters]
    work = make_work(script, script.programs, groups)
    warmup, repeat = project.settings.bench_warmup.value, project.settings.bench_repeat.value

    # The two functions are called below, where `private` and `publisher` have their values.
    @contextmanager
    def open_case(number: int) -> Iterator[Case]:
        """Yield a case, whose files exist in the block."""
        directory = os.path.join(private.path, str(number))
        case = prepare.prepare_case(
            directory,
            instance.spec.signature,
            sizes[number],
            check,
            rules,
            seed=request.seed,
            cold=request.cold,
        )
        yield case
        shutil.rmtree(directory)

    def publish_decision(decision: Decision) -> None:
        """Write a decision to the tables, and pass it on."""
        builder.publish_scripts()
        if len(read_script(path).not_built) == len(script.programs):
            raise input_error(f"none of the programs of {script.label} is built")
        publisher.add_decision(list_integers(decision.case), decision)
        on_decision(script, decision)

    with ExitStack() as stack:
        opened = source.open_benches(
            script.kind,
            limit=request.limit,
            warmup=WARMUP if warmup is None else warmup,
        )
        for bench in opened:
            stack.enter_context(closing(bench))
        benches, devices = select_one_model(opened, display.print_line)
        facts = devices[0]
        stack.enter_context(wrap_oserror(project.cache.root))
        # The garbage collection of another process waits: it would remove what is measured.
        stack.enter_context(project.cache.hold_use())
        waiting = f"waiting for another tuning on {facts['name']} to end"
        # Sorted, so that two tunings do not each wait for a device of the other's.
        for name in sorted({str(description["id"]) for description in devices}):
            stack.enter_context(lock_device(name, partial(display.print_line, waiting)))
        device = to_device(facts, 0)
        committed = find_committed_rows(project.manifest, request.script)
        publisher = TuningPublisher(project.cache, script, device, check.judge, committed)
        log_path = find_log_path(project, script, facts)
        # Without the log, refusals remain: the measurements have them, too.
        if request.fresh and os.path.exists(log_path):
            os.unlink(log_path)
        log = SampleLog(log_path)
        private = project.cache.make_private(is_waited_for=False)
        stack.callback(private.discard)
        session = TuningSession(
            log,
            benches,
            request.budget,
            builder,
            display.report_run,
            lambda why: display.print_line(f"a device is left out: {why}"),
            rounds=repeat or ROUNDS,
        )
        # Each tuning writes one. `--import` reads the number of sizes from the last one.
        log.append_line(format_run_note(script, work, facts, len(sizes), check.judge))
        caches = "cold caches" if request.cold else "warm caches"
        display.begin_tuning(
            script.label, f"{device}, {caches}", len(work.programs), len(sizes), len(benches)
        )
        decisions = decide_cases(
            session,
            work,
            open_case,
            sizes,
            request.seed,
            publish_decision,
            publisher.refusals,
            publisher.list_winners(),
        )
        digests = {decision.case.digest for decision in decisions}
        answers = [answer for (case, *_), answer in log.answers.items() if case in digests]
        tuned = publisher.finish_tuning(project, decisions)
        return replace(tuned, notes=[*list_unwatched(facts), *list_sample_notes(answers)])
