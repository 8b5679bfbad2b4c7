"""`run`: one program of a script, built if need be, called at each size, checked and timed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from tilusbuild.builder.build import BuildRequest, build_planned
from tilusbuild.builder.project import Project
from tilusbuild.builder.publish import Nothing
from tilusbuild.engine.events import Reporter
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import TilusbuildError, input_error
from tilusbuild.expr import Value
from tilusbuild.plan.model import PlanSelection, called_script_of, targets_of
from tilusbuild.plan.planner import Plan, ProgramJob, jobs, position
from tilusbuild.process.local import LocalRunner
from tilusbuild.report.jsonl import CallLine
from tilusbuild.runtime.dtypes import DTYPES
from tilusbuild.runtime.library import open_launcher
from tilusbuild.runtime.naming import Name, as_typed
from tilusbuild.signature import Signature
from tilusbuild.state.temporary import TemporaryDirectory
from tilusbuild.tune import inputs, prepare
from tilusbuild.tune.bench.bench import INCORRECT, OK, DeviceBench
from tilusbuild.tune.bench.elements import Mismatch, compare
from tilusbuild.tune.bench.work import Candidate
from tilusbuild.tune.inputs import DLPackArray, Input

_LIMIT = 60.0
"""Seconds for one check or sample on a GPU."""
_GPU_SAMPLES = 15
_CPU_SECONDS, _MIN_CALLS, _MAX_CALLS = 0.2, 5, 10_000
"""How long calls on the cpu are timed, and how many of them at least and at most."""


def choose(
    project: Project, name: Name, target: str | None
) -> tuple[Plan, PlanSelection, ProgramJob]:
    """Return the program that a name means, numbered as `build` numbers it; without a number the
    default one of the one instance, without a target for the usual one. Raises `InputError`."""
    level = project.settings.level.value
    target = name.target or target
    script = called_script_of(project.manifest, name)
    if target is None:
        target = _usual_target(project, script)
    selection = PlanSelection((name,), (target,), level)
    plan = project.plan(selection)
    if len(plan.instances) > 1:
        raise input_error(
            f'"{name}" names {len(plan.instances)} instances',
            hint="name one of them:\n" + as_typed(instance.label for instance in plan.instances),
        )
    wanted_jobs = list(jobs(plan))
    if name.program is not None:
        return plan, selection, wanted_jobs[0]
    (instance,) = plan.instances
    default = instance.default
    if default is None:
        default = position(instance.schedules, instance.spec.space.complete({}))
    return plan, selection, wanted_jobs[default or 0]


def _usual_target(project: Project, script: str) -> str:
    """Return the cpu target where the script has one: it runs everywhere."""
    names = project.manifest.targets_of(script)
    kinds = {name: target.kind for name, target in targets_of(project.manifest).items()}
    return next((name for name in names if kinds[name] == "cpu"), names[0])


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
) -> list[CallLine]:
    """Call at each size. Raises `InputError`, `TilusbuildError` for the program's own complaint
    about a call, and `WorkerUnusableError` without a device."""
    script = project.manifest.scripts[job.script]
    signature = job.planned.spec.signature
    unchecked = script.tune is None or script.tune.ref is None
    check = prepare.checking(project.manifest, job.script, unchecked=unchecked)
    if job.planned.target.kind == "cpu":
        launch = open_launcher(program.library)
        return [_call_here(job, launch, check, size, seed) for size in sizes]
    with TemporaryDirectory("run") as directory:
        return [
            call_on_gpu(
                project.runner,
                os.path.join(directory.path, str(number)),
                signature,
                program,
                check,
                size,
                seed,
            )
            for number, size in enumerate(sizes)
        ]


def tensor(value: Input | bytes, dtype: str) -> Any:
    """Return an array as a tvm-ffi tensor that shares its memory; a scalar as it is."""
    import tvm_ffi

    if not isinstance(value, np.ndarray):
        return value
    # What NumPy cannot export is exactly what `struct` has no letter for.
    return tvm_ffi.from_dlpack(value if DTYPES[dtype].struct else DLPackArray(value, dtype))


def _tensors(signature: Signature, values: Mapping[str, Input]) -> list[Any]:
    return [tensor(inputs.passed(a, values[a.name]), a.dtype) for a in signature.callable_arguments]


def _call_here(
    job: ProgramJob,
    launch: Callable[..., Any],
    check: prepare.OutputCheck,
    size: Mapping[str, Value],
    seed: int,
) -> CallLine:
    """Call in this process through tvm-ffi, as a deployment does: the launcher's checks of the
    arguments are part of what is tried, and of the time."""
    signature = job.planned.spec.signature
    made = inputs.generate(signature, size, seed=seed)
    largest, mismatch = None, None
    try:
        # The checked call has copies: the inputs of the reference and of the timed calls must not
        # be what the kernel left behind.
        own = {name: inputs.copied(value) for name, value in made.items()}
        launch(*_tensors(signature, own))
        if check.function is not None:
            wide = {name: inputs.widen(inputs.copied(value)) for name, value in made.items()}
            want = prepare.call_reference(check.function, signature, wide)
            largest, mismatch = compare_outputs(signature, own, want, check)
        seconds, calls = _time_calls(launch, _tensors(signature, made))
    except TilusbuildError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        raise TilusbuildError(f"{job.label}: {error}") from None
    moved = sum(value.nbytes for value in made.values() if isinstance(value, np.ndarray))
    wrong = str(mismatch) if mismatch else None
    return CallLine(job.hash, size, seconds, calls, moved, largest, wrong)


def compare_outputs(
    signature: Signature,
    got: Mapping[str, Input],
    want: Mapping[str, Any],
    check: prepare.OutputCheck,
) -> tuple[float, Mismatch | None]:
    """Return the largest absolute error of all outputs, and the worst element of the first output
    that is outside its tolerance. Raises `InputError` for a reference of another shape."""
    largest, mismatch = 0.0, None
    for argument in signature.callable_arguments:
        if not argument.out:
            continue
        actual = np.asarray(got[argument.name])
        expected = prepare.expected(argument, actual.shape, want[argument.name], check)
        error, wrong = compare(
            argument.name,
            actual.shape,
            actual.tobytes(),
            argument.dtype,
            expected.tobytes(),
            prepare.kept_type(argument.dtype),
            *prepare.tolerances(argument.dtype, check.rtol, check.atol),
        )
        largest, mismatch = max(largest, error), mismatch or wrong
    return largest, mismatch


def _time_calls(launch: Callable[..., Any], arguments: Sequence[Any]) -> tuple[float, int]:
    """Return the median time of a call in seconds, and how many were timed, after two that were
    not. On the cpu target only: a GPU's launch returns before the kernel has run."""
    for _ in range(2):
        launch(*arguments)
    samples: list[float] = []
    end = time.perf_counter() + _CPU_SECONDS
    while len(samples) < _MIN_CALLS or (time.perf_counter() < end and len(samples) < _MAX_CALLS):
        start = time.perf_counter()
        launch(*arguments)
        samples.append(time.perf_counter() - start)
    return median(samples), len(samples)


def call_on_gpu(
    runner: LocalRunner,
    directory: str,
    signature: Signature,
    program: Candidate,
    check: prepare.OutputCheck,
    size: Mapping[str, Value],
    seed: int,
) -> CallLine:
    """Call a program on the first GPU that the driver shows, in a worker, as tuning does it:
    arguments go to the device and back, and the time is the kernel's own, with warm caches. The
    directory `directory` is made.

    Raises `InputError`, `TilusbuildError` and `WorkerUnusableError`.
    """
    case = prepare.prepare_case(directory, signature, size, check, seed=seed, cold=False)
    bench = DeviceBench(runner, "cuda", 0, {case.digest: directory}, limit=_LIMIT)
    try:
        first = bench.check(case, program, 0)
        if first.status not in (OK, INCORRECT):
            raise TilusbuildError(f"program {program.index}: {first.status}: {first.why}")
        samples = [bench.sample(case, program, number, 0.0) for number in range(_GPU_SAMPLES)]
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
