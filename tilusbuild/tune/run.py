"""`run`: one program of a script, built if need be, called at each size, checked and timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilusbuild.engine.base import Options
from tilusbuild.engine.events import Reporter
from tilusbuild.errors import InputError, TilusbuildError, input_error
from tilusbuild.expr import Value
from tilusbuild.plan.jobs import ProgramJob, jobs
from tilusbuild.plan.planner import Planned
from tilusbuild.plan.selection import Selection, targets_of
from tilusbuild.project.build import build_planned
from tilusbuild.project.project import Project
from tilusbuild.tune import inputs, reference, trial
from tilusbuild.tune.inputs import Input


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
    check: trial.Check | None
    """None without a reference."""
    seconds: float
    """The median of a call."""
    calls: int
    bytes: int
    """Of all tensors, once."""


class NotBuilt(TilusbuildError):  # noqa: N818 - named for what is the case
    """The program that was asked for does not compile."""


class CallFailed(TilusbuildError):  # noqa: N818 - named for what is the case
    """The program's own complaint about a call."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The program to run."""

    job: ProgramJob
    schedule: Mapping[str, Value]
    library: str


def choose(project: Project, wanted: Wanted) -> tuple[Planned, Selection, ProgramJob]:
    """The program that `wanted` means. Raises `InputError`."""
    script = project.manifest.scripts.get(wanted.script)
    selection = Selection((wanted.script,), (), 2 if wanted.schedule is not None else 0)
    if script is not None:
        target = wanted.target or _usual_target(project, wanted.script)
        selection = Selection((wanted.script,), (target,), selection.level)
    planned = project.plan(selection)
    matching = [job for job in jobs(planned) if _has_params(job.planned.params, wanted.params)]
    if not matching:
        known = sorted({str(dict(i.params)) for i in planned.plan.instances})
        raise input_error(
            f"no instance of {wanted.script} has these constants",
            hint="there are: " + ", ".join(known),
        )
    if wanted.schedule is None:
        return planned, selection, matching[0]
    for job in matching:
        if job.index == wanted.schedule:
            return planned, selection, job
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
    project: Project, planned: Planned, selection: Selection, job: ProgramJob, reporter: Reporter
) -> Chosen:
    """Have the program. Raises `NotBuilt` when there can be none."""
    options = Options(jobs=1)
    result = build_planned(project, planned, selection, options, reporter, only=[job])
    status = result.statuses.get(job.hash, "missing")
    folder = project.cache.program_path(job.hash)
    if status != "built":
        raise NotBuilt(f"{job.label} is not built: {status}")
    values = job.maker.space[job.planned.schedules[job.index]].values
    schedule = {name: values[name] for name in job.planned.parameters}
    return Chosen(job, schedule, f"{folder}/module/lib.so")


def run(project: Project, wanted: Wanted, chosen: Chosen) -> list[Ran]:
    """Call at each size. Raises `InputError` and `CallFailed`."""
    script = project.manifest.scripts[wanted.script]
    sizes = list(wanted.sizes) or [
        dict(size) for size in (script.tune.sizes if script.tune else ())
    ]
    signature = chosen.job.maker.signature
    if not sizes:
        if signature.dimensions:
            names = " ".join(f"--size {a.name}=1024" for a in signature.dimensions)
            raise input_error(
                f"no sizes to call {wanted.script} with",
                hint=f"give [script.{wanted.script}.tune] sizes, or {names}",
            )
        sizes = [{}]
    function = _reference(project, wanted.script)
    launch = trial.load(chosen.library)
    return [_call(project, wanted, chosen, launch, function, size) for size in sizes]


def _reference(project: Project, script: str) -> Callable[..., Any] | None:
    tune = project.manifest.scripts[script].tune
    if tune is None or tune.ref is None:
        return None
    place = project.manifest.place_of_value("script", script, "tune", "ref")
    return reference.load(project.manifest.root, tune.ref, place)


def _call(
    project: Project,
    wanted: Wanted,
    chosen: Chosen,
    launch: Callable[..., Any],
    function: Callable[..., Any] | None,
    size: Mapping[str, Value],
) -> Ran:
    signature = chosen.job.maker.signature
    tune = project.manifest.scripts[wanted.script].tune
    made: dict[str, Input] = inputs.generate(signature, size, seed=wanted.seed)
    try:
        got = trial.call(launch, signature, made)
        check = None
        if function is not None:
            wide = {name: inputs.widen(inputs.copied(value)) for name, value in made.items()}
            want = reference.expected(function, signature, wide)
            check = trial.compare(
                signature,
                got,
                want,
                rtol=tune.rtol if tune and "rtol" in tune.model_fields_set else None,
                atol=tune.atol if tune and "atol" in tune.model_fields_set else None,
            )
        seconds, calls = trial.timed(launch, made)
    except (InputError, TilusbuildError):
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        raise CallFailed(f"{chosen.job.label}: {error}") from None
    return Ran(size, check, seconds, calls, trial.bytes_moved(signature, made))
