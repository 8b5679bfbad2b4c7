"""`run`: one program of a script, built if need be, called at each size, checked and timed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tilusbuild.build.build import build_planned
from tilusbuild.build.project import Project
from tilusbuild.engine.config import BuildConfig
from tilusbuild.engine.events import Reporter
from tilusbuild.errors import InputError, TilusbuildError, input_error
from tilusbuild.expr import Value
from tilusbuild.plan.jobs import ProgramJob, jobs
from tilusbuild.plan.planner import Plan
from tilusbuild.plan.selection import Selection, targets_of
from tilusbuild.process.local import LocalRunner
from tilusbuild.signature import Signature
from tilusbuild.tune import inputs, prepare, reference, trial
from tilusbuild.tune.bench.bench import INCORRECT, OK, DeviceBench
from tilusbuild.tune.bench.work import Program
from tilusbuild.tune.inputs import Input

_LIMIT = 60.0
"""Seconds for one check or sample on a GPU."""
_SAMPLES = 15


@dataclass(frozen=True, slots=True)
class Wanted:
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
class Ran:
    """One call at one size."""

    sizes: Mapping[str, Value]
    max_error: float | None
    """The largest absolute error; None where nothing says what is right, or where that is not
    known of a wrong result."""
    wrong: str | None
    """What is wrong, in words."""
    seconds: float
    """The median of a call."""
    calls: int
    bytes: int
    """Of all tensors, once."""


class NotBuiltError(TilusbuildError):
    """The program that was asked for does not compile."""


class CallFailedError(TilusbuildError):
    """The program's own complaint about a call."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The program to run."""

    job: ProgramJob
    schedule: Mapping[str, Value]
    library: str


def choose(project: Project, wanted: Wanted) -> tuple[Plan, Selection, ProgramJob]:
    """The program that `wanted` means. Raises `InputError`."""
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
    """The cpu target where the script has one: it runs everywhere."""
    names = project.manifest.targets_of(script)
    kinds = {name: target.kind for name, target in targets_of(project.manifest).items()}
    return next((name for name in names if kinds[name] == "cpu"), names[0])


def _has_params(params: Mapping[str, Value], wanted: Mapping[str, str]) -> bool:
    return all(name in params and str(params[name]) == text for name, text in wanted.items())


def build(
    project: Project, plan: Plan, selection: Selection, job: ProgramJob, reporter: Reporter
) -> Chosen:
    """Have the program. Raises `NotBuiltError` when there can be none."""
    options = BuildConfig(jobs=1)
    result = build_planned(project, plan, selection, options, reporter, only=[job])
    status = result.statuses.get(job.hash, "missing")
    folder = project.cache.program_path(job.hash)
    if status != "built":
        raise NotBuiltError(f"{job.label} is not built: {status}")
    values = job.schedule.values
    schedule = {name: values[name] for name in job.planned.parameters}
    return Chosen(job, schedule, f"{folder}/module/lib.so")


def run(project: Project, wanted: Wanted, chosen: Chosen) -> list[Ran]:
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
    if chosen.job.script_instance.target.kind == "cpu":
        launch = trial.load(chosen.library)
        return [_here(chosen, launch, check, size, wanted.seed) for size in sizes]
    program = Program(chosen.job.index, chosen.job.hash, chosen.library, chosen.schedule)
    with tempfile.TemporaryDirectory(prefix="tilusbuild-run-") as folder:
        return [
            on_gpu(
                project.runner,
                os.path.join(folder, str(number)),
                signature,
                program,
                check,
                size,
                wanted.seed,
            )
            for number, size in enumerate(sizes)
        ]


def _here(
    chosen: Chosen,
    launch: Callable[..., Any],
    check: prepare.Checking,
    size: Mapping[str, Value],
    seed: int,
) -> Ran:
    """In this process, through tvm-ffi."""
    signature = chosen.job.script_instance.signature
    made: dict[str, Input] = inputs.generate(signature, size, seed=seed)
    found: trial.Check | None = None
    try:
        got = trial.call(launch, signature, made)
        if check.function is not None:
            wide = {name: inputs.widen(inputs.copied(value)) for name, value in made.items()}
            want = reference.expected(check.function, signature, wide)
            found = trial.compare(signature, got, want, rtol=check.rtol, atol=check.atol)
        seconds, calls = trial.timed(launch, made)
    except (InputError, TilusbuildError):
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        raise CallFailedError(f"{chosen.job.label}: {error}") from None
    wrong = str(found.mismatch) if found and found.mismatch else None
    largest = found.max_error if found else None
    return Ran(size, largest, wrong, seconds, calls, trial.bytes_moved(signature, made))


def on_gpu(
    runner: LocalRunner,
    folder: str,
    signature: Signature,
    program: Program,
    check: prepare.Checking,
    size: Mapping[str, Value],
    seed: int,
) -> Ran:
    """On the first GPU that the driver shows, in a worker, as tuning does it: arguments go to the
    device and back, and the time is the kernel's own, with warm caches. `folder` is made.

    Raises `InputError`, `CallFailedError` and `WorkerUnusableError`.
    """
    case = prepare.prepare_case(folder, signature, size, check, seed=seed, cold=False)
    bench = DeviceBench(runner, "cuda", 0, {case.digest: folder}, limit=_LIMIT)
    try:
        first = bench.check(case, program, 0)
        if first.status not in (OK, INCORRECT):
            raise CallFailedError(f"program {program.index}: {first.status}: {first.why}")
        samples = [bench.sample(case, program, number, 0.0) for number in range(_SAMPLES)]
    finally:
        bench.close()
    seconds = [sample.seconds for sample in samples if sample.seconds is not None]
    if not seconds:
        raise CallFailedError(f"program {program.index}: {samples[0].status}: {samples[0].why}")
    moved = sum(argument.bytes for argument in case.arguments)
    checked = first.error if check.function is not None and first.status == OK else None
    wrong = first.why if first.status == INCORRECT else None
    return Ran(size, checked, wrong, median(seconds), len(seconds), moved)
