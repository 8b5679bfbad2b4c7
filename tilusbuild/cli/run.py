"""`tilusbuild run PROGRAM`: call a kernel on generated inputs, check it, time it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from tilusbuild.cli import options
from tilusbuild.cli.arguments import (
    DeviceCompilerArgs,
    Verb,
    level_option,
    option,
    param_option,
    positionals,
    seed_option,
    size_option,
    target_option,
)
from tilusbuild.cli.options import CountsLine, emit
from tilusbuild.report.jsonl import JsonLine, Scalar

if TYPE_CHECKING:
    from tilusbuild.runtime.naming import Name
    from tilusbuild.tune.run import CallResult


class RunArgs(DeviceCompilerArgs, frozen=True, kw_only=True):
    """Which program, at which sizes."""

    script: tuple[str, ...] = positionals(
        "PROGRAM",
        at_least_one=True,
        help="SCRIPT/I, as `build` prints it; SCRIPT alone is its default program",
    )
    target: str | None = target_option(
        "run for this target (default: the script's cpu target, or its first)"
    )
    param: tuple[str, ...] = param_option("choose the instance with this constant")
    schedule: int | None = option(
        "--schedule", type=int, metavar="I", help="the program's number, as in SCRIPT/I"
    )
    level: int | None = level_option("number the programs as `build --level` does")
    size: tuple[str, ...] = size_option("call it at")
    seed: int = seed_option("the inputs")


class CallLine(JsonLine, frozen=True):
    """The calls at one size."""

    event: ClassVar[str] = "call"
    program: str
    """Its hash."""
    sizes: Mapping[str, Scalar]
    seconds: float
    calls: int
    bytes: int
    checked: bool
    max_error: float | None
    mismatch: str | None


def run(arguments: RunArgs) -> int:
    """Print a line for each size; 1 when a result is wrong."""
    from tilusbuild.errors import input_error
    from tilusbuild.tune.run import RunRequest, build, choose, run, sizes_of

    wanted = RunRequest(
        name=_name(arguments),
        target=arguments.target,
        sizes=options.sizes(arguments.size),
        seed=options.seed(arguments.seed),
    )
    with options.project(arguments) as project:
        plan, selection, job = choose(project, wanted)
        sizes_of(project, wanted, job)  # a mistake in them need not wait for a build
        display = options.reporter(replace(arguments, json=False, quiet=True))
        chosen = build(project, plan, selection, job, display)
        try:
            results = run(project, wanted, chosen)
        except MemoryError as error:
            raise input_error(
                f"the arrays of --size {' '.join(arguments.size)} do not fit in memory: {error}"
            ) from None
        tune = project.manifest.scripts[job.script].tune
    wrong = [each for each in results if each.wrong]
    if arguments.json:
        for each in results:
            emit(_line(job.hash, each))
        emit(CountsLine({"calls": len(results), "wrong": len(wrong)}))
        return 1 if wrong else 0
    schedule = ", ".join(f"{name}={value}" for name, value in chosen.schedule.items())
    print(f"{job.label}: {schedule or 'no parameters'}")
    _print(results)
    for each in wrong:
        sizes = ", ".join(f"{name}={value}" for name, value in each.sizes.items())
        print(f"wrong at {sizes}: {each.wrong}")
    if tune is None or tune.ref is None:
        print(f"not checked: [script.{job.script}.tune] has no `ref`")
    elif not wrong:
        many = f"all {len(results)} sizes agree" if len(results) > 1 else "1 size agrees"
        print(f"{many} with {tune.ref}")
    return 1 if wrong else 0


def _name(arguments: RunArgs) -> Name:
    """Return the name of the program, with what options say of it. Raises `InputError`."""
    from tilusbuild.plan.model import named

    name = named(" ".join(arguments.script))
    return name._replace(
        constants=(*name.constants, *map(options.pair, arguments.param)),
        program=name.program if arguments.schedule is None else arguments.schedule,
    )


def _print(results: Sequence[CallResult]) -> None:
    from tilusbuild.table import table

    names = list(results[0].sizes)
    rows = [
        (
            *(each.sizes.get(name) for name in names),
            f"{each.seconds * 1e6:.1f}",
            f"{each.bytes / each.seconds / 1e9:.2f}",
            "" if each.max_error is None else f"{each.max_error:.2e}",
            "wrong" if each.wrong else "" if each.max_error is None else "ok",
        )
        for each in results
    ]
    print(table((*names, "µs", "GB/s", "max error", "check"), rows), end="")


def _line(program: str, each: CallResult) -> CallLine:
    return CallLine(
        program=program,
        sizes=each.sizes,
        seconds=each.seconds,
        calls=each.calls,
        bytes=each.bytes,
        checked=each.max_error is not None or each.wrong is not None,
        max_error=each.max_error,
        mismatch=each.wrong,
    )


VERB = Verb(RunArgs, run, (CallLine, CountsLine))
