"""`run`: one program of a script, built if need be, called at each size, checked and timed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from statistics import median

from tilusbuild.builder.build import BuildRequest, build_planned
from tilusbuild.builder.project import Project
from tilusbuild.builder.publish import Nothing
from tilusbuild.engine.events import Reporter
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import TilusbuildError, input_error
from tilusbuild.expr import Value
from tilusbuild.plan.model import PlanSelection, apart
from tilusbuild.plan.planner import Plan, ProgramJob, jobs
from tilusbuild.process.local import LocalRunner
from tilusbuild.report.jsonl import CallLine
from tilusbuild.runtime.naming import Name, as_typed
from tilusbuild.signature import Signature
from tilusbuild.state.temporary import TemporaryDirectory
from tilusbuild.tune import prepare
from tilusbuild.tune.bench.bench import INCORRECT, OK, DeviceBench
from tilusbuild.tune.bench.work import Candidate
from tilusbuild.tune.here import target_here

_SAMPLES = 15


def choose(
    project: Project, name: Name, target: str | None
) -> tuple[Plan, PlanSelection, ProgramJob]:
    """Return the program that a name means: of several the one that is otherwise like the default,
    and without a target the one for the cpu, which runs everywhere, else for
    this GPU. Raises `InputError`."""
    target = name.target or target
    name = apart(project.manifest, name)
    target = target_here(project, name, target, cpu_first=True).name
    # One program is wanted: whatever the project's level is, no more is planned.
    selection = PlanSelection((name,), (target,), 0)
    plan = project.plan(selection)
    if len(plan.instances) > 1:
        raise input_error(
            f'"{name}" names {len(plan.instances)} instances',
            hint="name one of them:\n" + as_typed(instance.label for instance in plan.instances),
        )
    return plan, selection, next(jobs(plan))


def build(
    project: Project, plan: Plan, selection: PlanSelection, job: ProgramJob, reporter: Reporter
) -> Candidate:
    """Have the program. Raises `TilusbuildError` when there can be none."""
    request = BuildRequest(plan, selection, Nothing((job,)))
    result = build_planned(project, request, BuildConfig(jobs=1), reporter)
    status = result.statuses.get(job.hash, "missing")
    if status != "built":
        raise TilusbuildError(f"{job.label} is not built: {status}")
    values = job.schedule.values
    schedule = {name: values[name] for name in job.planned.parameters}
    library = f"{project.cache.program_path(job.hash)}/module/lib.so"
    return Candidate(job.index, job.hash, library, schedule)


def run(
    project: Project,
    job: ProgramJob,
    program: Candidate,
    sizes: Sequence[Mapping[str, Value]],
    seed: int,
    *,
    cold: bool,
) -> list[CallLine]:
    """Call at each size, with cold caches or warm ones. Raises `InputError`, `TilusbuildError` for
    the program's own complaint about a call, and `WorkerUnusableError` without a device."""
    script = project.manifest.scripts[job.script]
    unchecked = script.tune is None or script.tune.ref is None
    check = prepare.checking(project.manifest, job.script, unchecked=unchecked)
    with TemporaryDirectory("run") as directory:
        return [
            call(
                project.runner,
                job.planned.target.kind,
                os.path.join(directory.path, str(number)),
                job.planned.spec.signature,
                program,
                check,
                size,
                seed,
                cold=cold,
            )
            for number, size in enumerate(sizes)
        ]


def call(
    runner: LocalRunner,
    kind: str,
    directory: str,
    signature: Signature,
    program: Candidate,
    check: prepare.OutputCheck,
    size: Mapping[str, Value],
    seed: int,
    *,
    cold: bool,
) -> CallLine:
    """Call a program on the processor, or on the first GPU that the driver shows, in a worker, as
    tuning does it: the time is the kernel's own. The directory `directory` is made.

    Raises `InputError`, `TilusbuildError` and `WorkerUnusableError`.
    """
    case = prepare.prepare_case(directory, signature, size, check, seed=seed, cold=cold)
    bench = DeviceBench(runner, kind, 0, {case.digest: directory}, limit=60.0)
    try:
        first = bench.check(case, program, 0)
        if first.status not in (OK, INCORRECT):
            raise TilusbuildError(f"program {program.index}: {first.status}: {first.why}")
        samples = [bench.sample(case, program, number, 0.0) for number in range(_SAMPLES)]
    finally:
        bench.close()
    seconds = [sample.seconds for sample in samples if sample.seconds is not None]
    if not seconds:
        raise TilusbuildError(f"program {program.index}: {samples[0].status}: {samples[0].why}")
    wrong = first.why if first.status == INCORRECT else None
    return CallLine(
        program=program.hash,
        sizes=size,
        # A write beside a tensor is found before anything is compared: then no error is known.
        max_error=first.error if check.function and (first.error or not wrong) else None,
        mismatch=wrong,
        seconds=median(seconds),
        calls=len(seconds),
        bytes=sum(argument.bytes for argument in case.arguments),
    )
