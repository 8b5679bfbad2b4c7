"""`run`: one program of a script, built if need be, called at each size, checked and timed."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tilusbuild.build.build import build_planned
from tilusbuild.build.project import Project
from tilusbuild.engine.config import BuildConfig
from tilusbuild.engine.events import Reporter
from tilusbuild.errors import TilusbuildError, input_error
from tilusbuild.expr import Value
from tilusbuild.plan.jobs import ProgramJob, jobs
from tilusbuild.plan.planner import Plan
from tilusbuild.plan.selection import Selection, targets_of
from tilusbuild.process.local import LocalRunner
from tilusbuild.signature import Signature
from tilusbuild.tune import prepare
from tilusbuild.tune.bench.bench import INCORRECT, OK, Answer, DeviceBench
from tilusbuild.tune.bench.work import Candidate

_LIMITS = {"cuda": 60.0, "cpu": 3600.0}
"""Seconds for one check or sample; on the cpu a large call may well take minutes."""
_SPAN, _MIN_SAMPLES, _MAX_SAMPLES = 1.0, 5, 15
"""Seconds to go on sampling, and how many samples to take at least and at most."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run."""

    script: str
    target: str | None
    params: Mapping[str, str]
    """Constants that choose the instance, as written on the command line."""
    schedule: int | None
    """Which schedule of the plan; None is the default."""
    sizes: Sequence[Mapping[str, Value]]
    """None given: those of the manifest."""
    seed: int


@dataclass(frozen=True, slots=True)
class CallResult:
    """One call at one size."""

    sizes: Mapping[str, Value]
    max_error: float | None
    """The largest absolute error; None where nothing was compared."""
    wrong: str | None
    """What is wrong, in words."""
    seconds: float
    """The median of a call."""
    calls: int
    """Samples that the median is of."""
    bytes: int
    """Of all tensors, once."""


class NotBuiltError(TilusbuildError):
    """The program that was asked for does not compile."""


class CallFailedError(TilusbuildError):
    """The program's own complaint about a call."""


@dataclass(frozen=True, slots=True)
class ChosenProgram:
    """The program to run."""

    job: ProgramJob
    schedule: Mapping[str, Value]
    library: str


def choose(project: Project, wanted: RunRequest) -> tuple[Plan, Selection, ProgramJob]:
    """Return the program that `wanted` means. Raises `InputError`."""
    script = project.manifest.scripts.get(wanted.script)
    selection = Selection((wanted.script,), (), 2 if wanted.schedule is not None else 0)
    if script is not None:
        target = wanted.target or _usual_target(project, wanted.script)
        selection = Selection((wanted.script,), (target,), selection.level)
    plan = project.plan(selection)
    matching = [job for job in jobs(plan) if _has_params(job.planned.params, wanted.params)]
    if not matching:
        known = sorted({str(dict(i.params)) for i in plan.instances})
        raise input_error(
            f"no instance of {wanted.script} has these constants",
            hint="there are: " + ", ".join(known),
        )
    if wanted.schedule is None:
        return plan, selection, matching[0]
    for job in matching:
        if job.index == wanted.schedule:
            return plan, selection, job
    count = sum(job.planned is matching[0].planned for job in matching)
    raise input_error(
        f"{wanted.script} has no schedule {wanted.schedule}: they go from 0 to {count - 1}"
    )


def _usual_target(project: Project, script: str) -> str:
    """Return the cpu target where the script has one: it runs everywhere."""
    names = project.manifest.targets_of(script)
    kinds = {name: target.kind for name, target in targets_of(project.manifest).items()}
    return next((name for name in names if kinds[name] == "cpu"), names[0])


def _has_params(params: Mapping[str, Value], wanted: Mapping[str, str]) -> bool:
    return all(name in params and str(params[name]) == text for name, text in wanted.items())


def build(
    project: Project, plan: Plan, selection: Selection, job: ProgramJob, reporter: Reporter
) -> ChosenProgram:
    """Have the program. Raises `NotBuiltError` when there can be none."""
    options = BuildConfig(jobs=1)
    result = build_planned(project, plan, selection, options, reporter, only=[job])
    status = result.statuses.get(job.hash, "missing")
    directory = project.cache.program_path(job.hash)
    if status != "built":
        raise NotBuiltError(f"{job.label} is not built: {status}")
    values = job.schedule.values
    schedule = {name: values[name] for name in job.planned.parameters}
    return ChosenProgram(job, schedule, f"{directory}/module/lib.so")


def run(project: Project, wanted: RunRequest, chosen: ChosenProgram) -> list[CallResult]:
    """Call at each size. Raises `InputError`, `CallFailedError`, and `WorkerUnusableError` without
    a device."""
    script = project.manifest.scripts[wanted.script]
    sizes = list(wanted.sizes) or [
        dict(size) for size in (script.tune.sizes if script.tune else ())
    ]
    signature = chosen.job.script_instance.signature
    if not sizes:
        if signature.dimensions:
            names = " ".join(f"--size {a.name}=1024" for a in signature.dimensions)
            raise input_error(
                f"no sizes to call {wanted.script} with",
                hint=f"give [script.{wanted.script}.tune] sizes, or {names}",
            )
        sizes = [{}]
    unchecked = script.tune is None or script.tune.ref is None
    check = prepare.checking(project.manifest, wanted.script, unchecked=unchecked)
    kind = chosen.job.script_instance.target.kind
    program = Candidate(chosen.job.index, chosen.job.hash, chosen.library, chosen.schedule)
    with tempfile.TemporaryDirectory(prefix="tilusbuild-run-") as directory:
        return [
            called(
                project.runner,
                kind,
                os.path.join(directory, str(number)),
                signature,
                program,
                check,
                size,
                wanted.seed,
            )
            for number, size in enumerate(sizes)
        ]


def called(
    runner: LocalRunner,
    kind: str,
    directory: str,
    signature: Signature,
    program: Candidate,
    check: prepare.OutputCheck,
    size: Mapping[str, Value],
    seed: int,
) -> CallResult:
    """Call a program on the cpu, or on the first GPU that the driver shows, in a worker, as tuning
    does it, with warm caches. The directory `directory` is made.

    Raises `InputError`, `CallFailedError` and `WorkerUnusableError`.
    """
    case = prepare.prepare_case(directory, signature, size, check, seed=seed, cold=False)
    bench = DeviceBench(runner, kind, 0, {case.digest: directory}, limit=_LIMITS[kind])
    try:
        first = bench.check(case, program, 0)
        if first.status not in (OK, INCORRECT):
            raise CallFailedError(f"program {program.index}: {first.status}: {first.why}")
        samples, end = list[Answer](), time.monotonic() + _SPAN
        while len(samples) < _MIN_SAMPLES or (
            len(samples) < _MAX_SAMPLES and time.monotonic() < end
        ):
            samples.append(bench.sample(case, program, len(samples), 0.0))
    finally:
        bench.close()
    seconds = [sample.seconds for sample in samples if sample.seconds is not None]
    if not seconds:
        raise CallFailedError(f"program {program.index}: {samples[0].status}: {samples[0].why}")
    wrong = first.why if first.status == INCORRECT else None
    return CallResult(
        sizes=size,
        # A write beside a tensor is found before anything is compared: then no error is known.
        max_error=first.error if check.function and (first.error or not wrong) else None,
        wrong=wrong,
        seconds=median(seconds),
        calls=len(seconds),
        bytes=sum(argument.bytes for argument in case.arguments),
    )
