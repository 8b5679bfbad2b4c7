"""`tilusbuild run PROGRAM`: call a kernel on generated inputs, check it, time it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tilusbuild.cli import options
from tilusbuild.cli.arguments import DeviceCompilerArgs, Verb, positionals, target_option
from tilusbuild.cli.options import CountsLine, emit_line
from tilusbuild.tune.arguments import CACHE, SEED, SIZE, CallLine, check_seed, parse_sizes

if TYPE_CHECKING:
    from tilusbuild.builder.project import Project
    from tilusbuild.expr import Value
    from tilusbuild.plan.model import PlanSelection
    from tilusbuild.plan.planner import Plan, ProgramJob

    _ChosenProgram = tuple[Plan, PlanSelection, ProgramJob, Sequence[Mapping[str, Value]]]


class RunArgs(DeviceCompilerArgs, frozen=True, kw_only=True):
    script: tuple[str, ...] = positionals(
        "PROGRAM",
        at_least_one=True,
        help="SCRIPT/I or SCRIPT[NAME=VALUE]; SCRIPT alone is its default program",
    )
    target: str | None = target_option(
        "run for this target (default: the script's cpu target, or the best for this GPU)"
    )
    size: tuple[str, ...] = SIZE
    cache: str = CACHE
    seed: int = SEED


def run(arguments: RunArgs) -> int:
    """Build each program that is not built, call it at each size, and print the times. Return 1
    when a result is wrong, else 0."""
    from tilusbuild.tune.prepare import find_sizes
    from tilusbuild.tune.run import choose_program

    requested_sizes = parse_sizes(arguments.size)
    check_seed(arguments.seed)
    with options.open_project(arguments) as project:
        chosen = []
        # Found before the builds: a mistake in a name or in the sizes need not wait for them.
        for name in options.parse_names(arguments.script, project):
            plan, selection, job = choose_program(project, name, arguments.target)
            signature = job.planned.spec.signature
            sizes = find_sizes(project.manifest, job.script, requested_sizes, signature)
            chosen.append((plan, selection, job, sizes))
        calls = [call for choice in chosen for call in _run_program(arguments, project, choice)]
    wrong_count = sum(call.mismatch is not None for call in calls)
    if arguments.json:
        emit_line(CountsLine({"calls": len(calls), "wrong": wrong_count}))
    return 1 if wrong_count else 0


def _run_program(
    arguments: RunArgs, project: Project, chosen: _ChosenProgram
) -> Sequence[CallLine]:
    """Build a program if it is not built, call it at each size, and print and return the results.
    Raises `InputError`."""
    from tilusbuild.cache.entries import lookup_entry
    from tilusbuild.errors import input_error
    from tilusbuild.tune.run import build_program, run_program

    plan, selection, job, sizes = chosen
    if lookup_entry(project.cache, job.hash) is None and not arguments.quiet:
        options.print_message(f"{job.label} is not built yet: compiling it\n")
    # Quiet and without --json: stdout has the lines of `run`, not those of its build.
    display = options.choose_reporter(replace(arguments, json=False, quiet=True))
    program = build_program(project, plan, selection, job, display)
    try:
        cold = arguments.cache == "cold"
        notes: list[str] = []
        results = run_program(
            project, job, program, sizes, arguments.seed, cold=cold, on_note=notes.append
        )
    except MemoryError as error:
        raise input_error(
            f"the arrays of --size {' '.join(arguments.size)} do not fit in memory: {error}"
        ) from None
    if notes and not results:
        raise input_error("\n".join(notes), hint="--size names sizes that it serves")
    for text in notes:
        options.print_message(f"note: {text}\n")
    if arguments.json:
        for call in results:
            emit_line(call)
        return results
    schedule = ", ".join(f"{name}={value}" for name, value in program.schedule.items())
    print(f"{job.label}: {schedule or 'no parameters'}; {arguments.cache} caches")
    tune = project.manifest.scripts[job.script].tune
    judges = tune.judge_names if tune is not None else ()
    _print_calls(results, right="ok" if judges else "")
    wrong = [call for call in results if call.mismatch]
    for call in wrong:
        sizes_text = ", ".join(f"{name}={value}" for name, value in call.sizes.items())
        print(f"wrong at {sizes_text}: {call.mismatch}")
    if not judges:
        print(f"not checked: [script.{job.script}.tune] has no `ref`")
    elif not wrong:
        agreement = f"all {len(results)} sizes agree" if len(results) > 1 else "1 size agrees"
        print(f"{agreement} with {' and '.join(judges)}")
    return results


def _print_calls(results: Sequence[CallLine], right: str) -> None:
    """Print a row for each size: the time, bytes per second, and the result of the comparison,
    which is `right` if nothing is wrong."""
    from tilusbuild.table import format_table, format_times

    names = list(results[0].sizes)
    unit, times_in_unit = format_times([call.seconds for call in results])
    rows = [
        (
            *(call.sizes.get(name) for name in names),
            time_in_unit,
            f"{call.bytes / call.seconds / 1e9:.2f}",
            "" if call.max_error is None else f"{call.max_error:.2e}",
            "wrong" if call.mismatch else right,
        )
        for call, time_in_unit in zip(results, times_in_unit, strict=True)
    ]
    print(format_table((*names, unit, "GB/s", "max error", "check"), rows), end="")


VERB = Verb(RunArgs, run, (CallLine, CountsLine))
