"""`run`: one program of a script, built if need be, called at each size, checked and timed. And the
target that `run` and `tune` choose for this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from tilusbuild.builder.build import BuildRequest, build_request
from tilusbuild.builder.project import Project
from tilusbuild.builder.publish import NoPublication
from tilusbuild.dispatch.describe import describe_planned
from tilusbuild.engine.events import Reporter
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import TilusbuildError, input_error
from tilusbuild.expr import Value
from tilusbuild.plan.model import (
    PlanSelection,
    Target,
    find_called_script,
    select_script_targets,
    separate_schedule,
)
from tilusbuild.plan.planner import Plan, ProgramJob, iterate_jobs
from tilusbuild.runtime.choose import rank_code
from tilusbuild.runtime.device import Device, explain_cpu_refusal
from tilusbuild.runtime.naming import NamePattern, format_names
from tilusbuild.state.temporary import TemporaryDirectory
from tilusbuild.tune import prepare
from tilusbuild.tune.arguments import CallLine
from tilusbuild.tune.bench.bench import INCORRECT, OK, DeviceBench
from tilusbuild.tune.bench.scores import score_samples
from tilusbuild.tune.bench.session import ROUNDS, list_integers
from tilusbuild.tune.bench.work import Candidate, Case
from tilusbuild.tune.benches import LocalBenches
from tilusbuild.tune.display import list_sample_notes, list_unwatched
from tilusbuild.tune.input_rules import find_input_rules


def choose_target(
    project: Project,
    name: NamePattern,
    target: str | None,
    find_gpu: Callable[[], Device | None],
    *,
    cpu_first: bool = False,
) -> Target:
    """Return the target to measure: the named one, else the best for the GPU, else the cpu's;
    with `cpu_first` the cpu's before a GPU's. Raises `InputError` when none can run."""
    # Called for its errors alone: an unknown script, or a library, which has no call.
    find_called_script(project.manifest, name)
    selection = PlanSelection((name,), (target,) if target else ())
    targets = [target for _, target in select_script_targets(project.manifest, selection)]
    cpu_targets = [target for target in targets if target.kind == "cpu"]
    # A GPU is asked only if its answer can matter: that takes a process and a driver start.
    is_cpu_enough = cpu_targets and (cpu_first or len(targets) == 1)
    gpu = None if is_cpu_enough else find_gpu()
    ranked_targets = []
    if gpu is not None:
        for candidate in targets:
            rank, _ = rank_code([arch.name for arch in candidate.archs], candidate.ptx, gpu)
            if rank is not None:
                ranked_targets.append((rank, candidate))
    if ranked_targets:
        return min(ranked_targets, key=lambda ranked: ranked[0])[1]
    if cpu_targets:
        return cpu_targets[0]
    names = ", ".join(f"{target.name} ({target.arch})" for target in targets)
    machine_text = f"its GPU is {gpu}" if gpu else "it has no CUDA device"
    newer = "`ptx = true` in an older target runs on newer GPUs, too;\n" if gpu else ""
    raise input_error(
        f"{name.script} is built for {names}, which this machine cannot run: {machine_text}",
        hint=f"{newer}measure on another machine with `package --with-tests` and `check --measure`",
    )


def choose_program(
    project: Project, name: NamePattern, target: str | None
) -> tuple[Plan, PlanSelection, ProgramJob]:
    """Return the plan, the selection and the job of one named program. Unset parameters are
    those of the default schedule. Without a target the cpu's is chosen, which runs everywhere,
    else the best for this GPU. Raises `InputError`."""
    target = name.target or target
    name = separate_schedule(project.manifest, name)
    find_gpu = LocalBenches(project.runner, ()).find_gpu
    target = choose_target(project, name, target, find_gpu, cpu_first=True).name
    # Level 0, whatever the project's is: one program is run.
    selection = PlanSelection((name,), (target,), 0)
    plan = project.make_plan(selection)
    if len(plan.instances) > 1:
        raise input_error(
            f'"{name}" names {len(plan.instances)} instances',
            hint="name one of them:\n"
            + format_names(instance.label for instance in plan.instances),
        )
    check_cpu(project, plan)
    return plan, selection, next(iterate_jobs(plan))


def check_cpu(project: Project, plan: Plan) -> None:
    """Raise `InputError` if this CPU does not run the code of a planned instance. A program that
    was called would be killed by SIGILL, and `tune` would reject it for good."""
    for instance in plan.instances:
        script = describe_planned(project.manifest, instance)
        if (refusal := explain_cpu_refusal(script.code.isa)) is not None:
            raise input_error(f"{script.label} is {refusal}")


def build_program(
    project: Project, plan: Plan, selection: PlanSelection, job: ProgramJob, reporter: Reporter
) -> Candidate:
    """Build a program, and return its number, hash, library and schedule. Raises
    `TilusbuildError` when it is not built."""
    request = BuildRequest(plan, selection, NoPublication((job,)))
    result = build_request(project, request, BuildConfig(jobs=1), reporter)
    status = result.statuses.get(job.hash, "missing")
    if status != "built":
        raise TilusbuildError(f"{job.label} is not built: {status}")
    values = job.schedule.values
    schedule = {name: values[name] for name in job.planned.parameters}
    library = f"{project.cache.program_path(job.hash)}/module/lib.so"
    return Candidate(job.index, job.hash, library, schedule)


def run_program(
    project: Project,
    job: ProgramJob,
    program: Candidate,
    sizes: Sequence[Mapping[str, Value]],
    seed: int,
    *,
    cold: bool,
    on_note: Callable[[str], None],
) -> list[CallLine]:
    """Call a program at each size that it serves, with cold or warm caches; return a line for each.
    `on_note` gets a message for each other size, for samples that were disturbed, and if NVML does
    not answer. Raises `InputError`, `TilusbuildError` for a refused call, and
    `WorkerUnusableError` without a device."""
    script = project.manifest.scripts[job.script]
    # Without a reference `run` times only; `tune` asks for --unchecked.
    unchecked = script.tune is None or not script.tune.judge_names
    check = prepare.find_output_check(project.manifest, job.script, unchecked=unchecked)
    rules = find_input_rules(job.planned.spec)
    signature, kind = job.planned.spec.signature, job.planned.target.kind
    # Only a script with rules is described: a program of any other serves all sizes.
    serves = describe_planned(project.manifest, job.planned).serves if script.serves else None
    calls, facts = [], dict[str, Any]()
    with TemporaryDirectory("run") as temporary:
        for number, size in enumerate(sizes):
            directory = os.path.join(temporary.path, str(number))
            case = prepare.prepare_case(
                directory, signature, size, check, rules, seed=seed, cold=cold
            )
            rule = serves and serves.explain_refusal(job.index, list_integers(case))
            if rule:
                on_note(f"{job.label} does not serve {case.label}: {rule}")
                continue
            bench = DeviceBench(project.runner, kind, 0, limit=60.0)
            with closing(bench):
                # A function returns no error.
                has_error = check.function is not None and check.compare is None
                calls.append(_call_program(bench, case, program, on_note, compared=has_error))
                facts = bench.describe_device()
    for text in list_unwatched(facts):
        on_note(text)
    return calls


def _call_program(
    bench: DeviceBench,
    case: Case,
    program: Candidate,
    on_note: Callable[[str], None],
    *,
    compared: bool,
) -> CallLine:
    """Call a program to check it, and take as many samples as `tune`; return the line. `on_note`
    gets a message for samples that were disturbed. Raises `TilusbuildError` for a program that
    cannot be called or timed, and `WorkerUnusableError`."""
    check_answer = bench.check_program(case, program, number=0)
    # A wrong program is timed, too: `run` reports both.
    if check_answer.status not in (OK, INCORRECT):
        raise TilusbuildError(f"program {program.index}: {check_answer.status}: {check_answer.why}")
    samples = [bench.time_program(case, program, number, expected=0.0) for number in range(ROUNDS)]
    for text in list_sample_notes(samples):
        on_note(f"{case.label}: {text}")
    seconds = [sample.seconds for sample in samples if sample.seconds is not None]
    if not seconds:
        raise TilusbuildError(f"program {program.index}: {samples[0].status}: {samples[0].why}")
    mismatch = check_answer.why if check_answer.status == INCORRECT else None
    # A write beside a tensor is found before anything is compared: then no error is known.
    is_error_known = compared and (check_answer.error or not mismatch)
    return CallLine(
        program=program.hash,
        sizes=case.sizes,
        max_error=check_answer.error if is_error_known else None,
        mismatch=mismatch,
        seconds=score_samples(seconds),
        calls=len(seconds),
        bytes=sum(argument.bytes for argument in case.arguments),
    )
