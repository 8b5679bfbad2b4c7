"""`tilusbuild tune SCRIPT`: measure a script's programs on the device, and write its tables."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tilusbuild.cli import options
from tilusbuild.cli.arguments import (
    JOBS,
    LEVEL,
    SIZES_FROM,
    DeviceCompilerArgs,
    Verb,
    flag,
    option,
    positionals,
    repeated,
    target_option,
)
from tilusbuild.cli.options import CountsLine, emit_line, print_message
from tilusbuild.report.jsonl import JsonLine, Scalar, declare_line
from tilusbuild.runtime.naming import format_command
from tilusbuild.tune.arguments import (
    CACHE,
    SEED,
    SIZE,
    check_seed,
    parse_number,
    parse_pair,
    parse_sizes,
)

if TYPE_CHECKING:
    from tilusbuild.builder.project import Project
    from tilusbuild.expr import Value
    from tilusbuild.process.local import LocalRunner
    from tilusbuild.runtime.naming import NamePattern
    from tilusbuild.runtime.script import Script
    from tilusbuild.tune.bench.race import Decision
    from tilusbuild.tune.bench.scores import Speedup
    from tilusbuild.tune.benches import BenchSource
    from tilusbuild.tune.tune import TunedInstance, TuneRequest


class TuneArgs(DeviceCompilerArgs, frozen=True, kw_only=True):
    script: tuple[str, ...] = positionals(
        "SCRIPT", help="the scripts or instances to tune (default: all with `tune` in the manifest)"
    )
    target: str | None = target_option("tune for this target (default: the best one for this GPU)")
    level: int | None = LEVEL
    jobs: int | None = JOBS
    size: tuple[str, ...] = SIZE
    grid: tuple[str, ...] = repeated(
        "--grid",
        metavar="NAME=N,N…",
        help="measure every combination of the sizes of several --grid",
    )
    sizes_from: str | None = SIZES_FROM
    budget: str | None = option(
        "--budget",
        metavar="90s|500",
        help="stop after this time, or after this many checks and samples",
    )
    cache: str = CACHE
    warmup: int | None = option(
        "--warmup",
        type=int,
        metavar="N",
        help="call the kernel N times before each sample (default: 1)",
        setting="bench-warmup",
    )
    repeat: int | None = option(
        "--repeat",
        type=int,
        metavar="N",
        help="take N samples of each program that is nearly the best (default: 32)",
        setting="bench-repeat",
    )
    time_limit: float = option(
        "--time-limit",
        type=float,
        default=30.0,
        metavar="S",
        help="give up a check or a sample after S seconds (default: 30)",
    )
    seed: int = SEED
    device: str | None = option(
        "--device",
        metavar="N,N…|all",
        help="the GPUs to measure on, or the cores for a cpu target, by their numbers (default:"
        " GPU 0, or the processor without pinning)",
    )
    ray: str | None = option(
        "--ray",
        metavar="ADDRESS",
        help="measure on all devices of a Ray cluster: HOST:PORT, ray://HOST:PORT or auto",
    )
    unchecked: bool = flag(
        "--unchecked",
        help="compare with no reference: choose among the programs that run",
    )
    fresh: bool = flag("--fresh", help="discard earlier measurements")
    import_: str | None = option(
        "--import",
        metavar="LOG",
        help="read the log that `check --measure` wrote, and write the tables from it",
    )


TunedLine = declare_line(
    "tuned",
    instance=str,
    sizes=Mapping[str, Scalar],
    program=int | None,
    schedule=Mapping[str, Scalar] | None,
    seconds=float | None,
    speedup=Sequence[float] | None,
    seen=int,
    unseen=int,
    refused=Mapping[str, str],
    unserved=int,
)
"""The choice for some sizes; null where no program is usable. `speedup` over the default schedule:
the ratio, and the ends of the 95 % interval; null without both times."""


def run(arguments: TuneArgs) -> int:
    """Tune a script, or import a log, and print the choices. Return 1 when some sizes have no
    program, or a rule chooses a refused one; else 0."""
    from tilusbuild.errors import TilusbuildError, input_error
    from tilusbuild.process.local import LocalRunner

    # The runner of the project compiles, and may be paused while that of the devices measures.
    with options.open_project(arguments) as project, LocalRunner() as runner:
        try:
            if arguments.import_ is not None:
                return _import_log(arguments, project, arguments.import_)
            scripts = project.manifest.scripts.items()
            tunable = tuple(name for name, script in scripts if script.tune is not None)
            if arguments.sizes_from is not None and not arguments.script:
                from tilusbuild.dispatch.recorded import list_recorded_scripts

                # Scripts that no program called are not an error; if there is none, each is.
                recorded = list_recorded_scripts(arguments.sizes_from)
                tunable = tuple(name for name in tunable if name in recorded) or tunable
            if not (arguments.script or tunable):
                raise input_error("no script has a table `tune`", hint="`tilusbuild tune SCRIPT`")
            names = options.parse_names(arguments.script or tunable, project)
            requests = [_make_request(arguments, project, name) for name in names]
            source = _open_source(arguments, runner)
            return max(_tune_script(arguments, project, source, request) for request in requests)
        except OSError as error:
            # Some classes are both an OSError and a TilusbuildError: these have a message already.
            if isinstance(error, TilusbuildError):
                raise
            raise TilusbuildError(f"{error.filename}: {error.strerror}") from None


def _make_request(arguments: TuneArgs, project: Project, name: NamePattern) -> TuneRequest:
    """Return the request that the arguments mean for one of their names. Raises `InputError`."""
    from tilusbuild.errors import input_error
    from tilusbuild.plan.model import find_script
    from tilusbuild.tune.bench.session import Budget
    from tilusbuild.tune.tune import TuneRequest

    if name.program is not None:
        raise input_error(
            f'"{name}" is one program: `tune` compares the programs of an instance',
            hint=f"`{format_command('run', name)}` checks and times one",
        )
    return TuneRequest(
        script=find_script(project.manifest, name),
        target=name.target or arguments.target,
        constants=name.constants,
        sizes=[*parse_sizes(arguments.size), *_parse_grid(arguments.grid)],
        sizes_from=arguments.sizes_from,
        budget=Budget.parse_budget(arguments.budget) if arguments.budget else Budget(),
        cold=arguments.cache == "cold",
        limit=arguments.time_limit,
        seed=check_seed(arguments.seed),
        unchecked=arguments.unchecked,
        fresh=arguments.fresh,
    )


def _parse_grid(options: Sequence[str]) -> Iterator[Mapping[str, Value]]:
    """Yield every combination of the sizes of several --grid. Raises `InputError`."""
    from tilusbuild.errors import input_error

    axes: dict[str, list[Value]] = {}
    for word in options:
        name, text = parse_pair(word)
        if name in axes:
            hint = f"--grid {name}=A,B has several sizes"
            raise input_error(f"--grid {word}: {name} is given twice", hint=hint)
        axes[name] = [parse_number(f"--grid {word}", size) for size in text.split(",")]
    # Without --grid there are no sizes. The product of no axes would be one empty combination.
    if axes:
        for combination in itertools.product(*axes.values()):
            yield dict(zip(axes, combination, strict=True))


def _open_source(arguments: TuneArgs, runner: LocalRunner) -> BenchSource:
    """Return where to measure. Raises `InputError`."""
    from tilusbuild.errors import input_error
    from tilusbuild.rooms import load_contribution
    from tilusbuild.tune.benches import LocalBenches, parse_devices

    if arguments.ray is None:
        return LocalBenches(runner, parse_devices(arguments.device))
    if arguments.device is not None:
        raise input_error("--device chooses devices of this machine: give it without --ray")
    open_cluster = load_contribution("benches", "ray", "measures on a Ray cluster")
    source: BenchSource = open_cluster(arguments.ray, lambda text: print_message(f"{text}\n"))
    return source


def _tune_script(
    arguments: TuneArgs, project: Project, source: BenchSource, request: TuneRequest
) -> int:
    """Build and tune the instances of a script, and print the choices. Return the exit status."""
    from tilusbuild.report.terminal import can_redraw
    from tilusbuild.table import format_times
    from tilusbuild.tune.display import TuningReporter
    from tilusbuild.tune.run import choose_target
    from tilusbuild.tune.tune import tune_script

    target = choose_target(project, request.to_name(None), request.target, source.find_gpu)
    # Without --json: stdout has the lines of `tune`, not those of its build. Quiet: the display of
    # the tuning counts the compiles.
    failures = options.choose_reporter(replace(arguments, json=False, quiet=True))
    is_live = not arguments.json and can_redraw(sys.stderr, os.environ)
    display = TuningReporter(sys.stderr, live=is_live, quiet=arguments.quiet or arguments.json)

    def report_decision(script: Script, decision: Decision) -> None:
        """Print a decision, as a line of JSON or of progress."""
        if arguments.json:
            emit_line(_make_tuned_line(script, decision), flush=True)
        winner = decision.winner
        choice = "no program is usable" if decision.outcomes else "nothing was measured"
        if winner is not None and winner.seconds is not None:
            unit, (time_text,) = format_times([winner.seconds])
            choice = f"program {winner.program.index}, {time_text} {unit}"
        display.end_case(f"{decision.case.label}: {choice}")

    try:
        tuned = tune_script(project, request, target, source, failures, display, report_decision)
        return _show_results(arguments, project, tuned, replayed=False)
    finally:
        display.close()


def _import_log(arguments: TuneArgs, project: Project, log: str) -> int:
    """Write tables from a log of `check --measure`; print the choices and the problems. Return the
    exit status: 1 if there is a problem."""
    from tilusbuild.tune.importing import import_log

    # `import_log` writes the tables; here their choices are printed.
    tuned, problems = import_log(project, log)
    status = _show_results(arguments, project, tuned, replayed=True)
    for text in problems:
        print_message(f"{text}\n")
    return 1 if problems else status


# The results: a table of the choices for people, lines for programs.


def _make_tuned_line(script: Script, decision: Decision) -> JsonLine:
    """Return the line of a decision for the sizes of a case."""
    winner = decision.winner
    gain = _compute_gain(script, decision)
    return TunedLine(
        instance=script.label,
        sizes=decision.case.sizes,
        program=winner.program.index if winner else None,
        schedule=winner.program.schedule if winner else None,
        seconds=winner.seconds if winner else None,
        speedup=gain and (gain.ratio, gain.low, gain.high),
        seen=len(decision.outcomes),
        unseen=decision.unseen,
        refused={
            str(outcome.program.index): f"{outcome.status}: {outcome.why}"
            for outcome in decision.outcomes
            if outcome.seconds is None
        },
        unserved=decision.unserved,
    )


def _show_results(
    arguments: TuneArgs, project: Project, tuned: Sequence[TunedInstance], *, replayed: bool
) -> int:
    """Print the choices, and the rules and rows that choose refused programs. Return 1 for such a
    rule and for sizes without a program, else 0.

    With `--json`, the lines were printed during the tuning, unless they are `replayed` from a log.
    """
    decisions = [decision for instance in tuned for decision in instance.decisions]
    unserved = sum(decision.winner is None for decision in decisions)
    if arguments.json:
        for instance in tuned if replayed else ():
            for decision in instance.decisions:
                emit_line(_make_tuned_line(instance.script, decision))
        emit_line(CountsLine({"tuned": len(decisions), "without": unserved}))
    outranked = [_find_outranked(instance) for instance in tuned]
    if not arguments.json:
        for instance, texts in zip(tuned, outranked, strict=True):
            _print_instance(instance, texts)
    complaints = [
        text
        for instance in tuned
        for text in _list_complaints(instance.script, instance.reasons_by_number)
    ]
    for text in complaints:
        print_message(f"error: {text}\n")
    for instance, texts in zip(tuned, outranked, strict=True):
        for text in (*instance.notes, *texts.values()):
            print_message(f"note: {text}\n")
    for name in dict.fromkeys(instance.script.name for instance in tuned):
        section = project.manifest.scripts.get(name)
        dispatch = None if section is None else section.dispatch
        file = None if dispatch is None else dispatch.measured
        if file and not arguments.json:
            print(
                f"for the repository: `{format_command('dispatch', 'export', name)}` writes {file}"
            )
    return 1 if unserved or complaints else 0


def _list_complaints(script: Script, refused: Mapping[int, str]) -> Iterator[str]:
    """Yield a message for each rule or default that chooses a refused program."""
    # (What chooses, the program that it chooses.)
    choices: list[tuple[str, int]] = []
    if script.default is not None:
        choices.append(("the default schedule", script.default))
    choices += [(f"the dispatch rule {rule.source!r}", rule.program) for rule in script.rules]
    for chooser, program in dict.fromkeys(choices):
        if program in refused:
            schedule = script.get_schedule(program)
            values = ", ".join(f"{name}={value}" for name, value in schedule.items())
            # The runtime refuses such a call: another program could be slow, without a word of it.
            yield (
                f"{script.label}: {chooser} chooses program {program} ({values}), which was"
                f" {refused[program]}; calls that come to it are refused: choose another"
            )


def _find_outranked(tuned: TunedInstance) -> Mapping[str, str]:
    """Return a message for each case, by its label, whose winner no call gets, as a rule by hand
    decides, or the repository has fitted costs of other programs."""
    from tilusbuild.runtime.errors import LoadError
    from tilusbuild.runtime.kernel import make_chooser
    from tilusbuild.runtime.tables import DeviceTable, read_dispatch_table
    from tilusbuild.tune.bench.session import list_integers

    chooser, table = make_chooser(tuned.script, read_dispatch_table(tuned.script), tuned.device)
    costs = table.fitted if isinstance(table, DeviceTable) else ()
    fitted = {cost.program for cost in costs}
    texts = {}
    for decision in tuned.decisions:
        try:
            choice = chooser.choose_program(list_integers(decision.case))
        except (LoadError, ValueError):
            continue  # a choice of a refused program, which `_list_complaints` reports
        winner = None if decision.winner is None else decision.winner.program.index
        if winner is None or winner == choice.program:
            continue
        if choice.source == "table":
            reason = "by hand"
        elif choice.program in fitted and winner not in fitted:
            reason = f"of the last `{format_command('dispatch', 'fit', tuned.script.name)}`"
        else:
            continue
        texts[decision.case.label] = (
            f"{tuned.script.label}: at {decision.case.label} a call takes program"
            f" {choice.program}, {reason} ({choice.why}), and not {winner}"
        )
    return texts


def _print_instance(tuned: TunedInstance, outranked: Collection[str]) -> None:
    """Print a row for each size with its choice, then refusals and the gain over the default at
    the sizes whose winner calls get: those that are not `outranked`."""
    from statistics import geometric_mean

    from tilusbuild.report.text import format_count
    from tilusbuild.table import format_table, format_times

    cold = any(decision.case.cold for decision in tuned.decisions)
    print(f"{tuned.script.label} on {tuned.device}, {'cold' if cold else 'warm'} caches")
    names = list(tuned.decisions[0].case.sizes) if tuned.decisions else []
    parameters = list(tuned.script.schedules)
    rows = []
    unit, latencies = format_times(
        [decision.winner.seconds if decision.winner else None for decision in tuned.decisions]
    )
    gains = [_compute_gain(tuned.script, decision) for decision in tuned.decisions]
    for decision, time, gain in zip(tuned.decisions, latencies, gains, strict=True):
        winner = decision.winner
        schedule = winner.program.schedule if winner else {}
        tried = f"{len(decision.outcomes)}" + (" (budget)" if decision.unseen else "")
        refused_programs = sum(outcome.seconds is None for outcome in decision.outcomes)
        rows.append(
            (
                *(decision.case.sizes.get(name) for name in names),
                winner.program.index if winner else None,
                *(schedule.get(name) for name in parameters),
                time,
                None if gain is None else gain.format_text(),
                tried,
                refused_programs,
            )
        )
    heads = (*names, "choice", *parameters, f"latency ({unit})", "speed-up", "tried", "refused")
    print(format_table(heads, rows), end="")
    for line in _list_refused(tuned):
        print(line)
    for decision in tuned.decisions:
        if decision.unserved:
            count = format_count(decision.unserved, "program")
            print(f"{decision.case.label}: {count} left out by the rules of `serves`")
    if tuned.reasons_by_number:
        listed = ", ".join(map(str, sorted(tuned.reasons_by_number)))
        print(f"not chosen for any size until rebuilt: {listed}")
    for deciding_label, other_label in tuned.shared_buckets:
        print(f"{other_label} and {deciding_label} share a bucket: the latter decides")
    print(f"table: {tuned.script.path}/dispatch_table.txt")
    # Sizes without a difference count as 1.
    ratios = [
        gain.ratio if gain.is_difference else 1.0
        for decision, gain in zip(tuned.decisions, gains, strict=True)
        if gain is not None and decision.case.label not in outranked
    ]
    if ratios:
        extent = "all sizes"
        if len(ratios) < len(gains):
            extent = f"{len(ratios)} of {len(gains)} sizes"
        mean = f"{geometric_mean(ratios):.2f}x over {extent} (geometric mean)"
        declared = "" if tuned.script.default is None else "the default schedule, "
        print(f"speed-up over {declared}program {_find_baseline(tuned.script)}: {mean}")


def _find_baseline(script: Script) -> int:
    """Return the program that a call takes when nothing is measured: the default, else the
    first."""
    return script.first_program if script.default is None else script.default


def _compute_gain(script: Script, decision: Decision) -> Speedup | None:
    """Return the speed-up over the script's baseline; None when one of the times is unknown."""
    from tilusbuild.tune.bench.scores import estimate_speedup

    baseline = _find_baseline(script)
    samples = {
        outcome.program.index: outcome.samples
        for outcome in decision.outcomes
        if outcome.seconds is not None
    }
    if decision.winner is None or baseline not in samples:
        return None
    return estimate_speedup(samples[baseline], decision.winner.samples)


def _list_refused(tuned: TunedInstance) -> Iterator[str]:
    """Yield a line for each program that was refused at some size, with the first reason."""
    # A program that is refused at several sizes is reported once.
    reported: set[int] = set()
    for decision in tuned.decisions:
        for outcome in decision.outcomes:
            program = outcome.program
            if outcome.seconds is None and program.index not in reported:
                reported.add(program.index)
                schedule = ", ".join(f"{name}={value}" for name, value in program.schedule.items())
                yield f"program {program.index} ({schedule}): {outcome.status}: {outcome.why}"


VERB = Verb(TuneArgs, run, (TunedLine, CountsLine))
