"""`tilusbuild tune SCRIPT`: measure a script's programs on the device, and write its tables."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilusbuild.cli import options

if TYPE_CHECKING:
    from tilusbuild.build.project import Project
    from tilusbuild.expr import Value
    from tilusbuild.report.tuning import TuningReporter
    from tilusbuild.tune.bench.bench import Answer
    from tilusbuild.tune.bench.race import Decision
    from tilusbuild.tune.bench.work import Candidate, Case, Work
    from tilusbuild.tune.tune import BuiltInstance, TunedInstance, TuneRequest


def configure(parser: argparse.ArgumentParser) -> None:
    """What to tune, for how long, and where the results go."""
    options.device_compiler(parser)
    parser.add_argument("script", metavar="SCRIPT", nargs="?")
    parser.add_argument("-t", "--target", metavar="NAME", help="without it: the best for this GPU")
    parser.add_argument(
        "--param",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="the instances with this constant only",
    )
    parser.add_argument("--level", type=int, choices=(0, 1, 2), help="how much of the space")
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="compilers at once")
    _measuring(parser.add_argument_group("what to measure"))
    _results(parser.add_argument_group("elsewhere"))


def _measuring(group: Any) -> None:
    group.add_argument(
        "--size",
        metavar="NAME=N[,NAME=N…]",
        action="append",
        default=[],
        help="these sizes in place of the manifest's; may be given several times",
    )
    group.add_argument(
        "--grid",
        metavar="NAME=N,N…",
        action="append",
        default=[],
        help="every combination of the sizes of several --grid",
    )
    group.add_argument(
        "--budget", metavar="90s|500", help="stop after this time, or so many checks and samples"
    )
    group.add_argument(
        "--cache",
        choices=("cold", "warm"),
        default="cold",
        help="time with caches that hold none of the data (cold, the default), or all of it",
    )
    group.add_argument(
        "--warmup", type=int, metavar="N", help="calls before each sample, without it 1"
    )
    group.add_argument(
        "--repeat",
        type=int,
        metavar="N",
        help="samples of each program that is nearly the best, without it 32",
    )
    group.add_argument(
        "--time-limit", type=float, default=30.0, metavar="S", help="for one check or sample"
    )
    group.add_argument("--seed", type=int, default=0, help="of the inputs, and of the search")
    group.add_argument("--device", type=int, default=0, metavar="N", help="the GPU's number")
    group.add_argument(
        "--unchecked", action="store_true", help="without a reference: choose among what runs"
    )
    group.add_argument(
        "--fresh", action="store_true", help="measure everything anew, and forget what was"
    )


def _results(group: Any) -> None:
    group.add_argument("--export", metavar="FILE", help="write a bundle to measure elsewhere")
    group.add_argument("--import", dest="import_", metavar="LOG", help="take a bundle's log back")
    group.add_argument(
        "--model", action="store_true", help="measure nothing: write what the model chooses"
    )
    group.add_argument("--export-t4", metavar="FILE", help="write all results as T4 JSON")


def run(arguments: argparse.Namespace) -> int:
    """Tune, or export, or import; 1 when some sizes have no program."""
    from tilusbuild.errors import TilusbuildError, input_error
    from tilusbuild.runtime.errors import LoadError

    if arguments.script is None and arguments.import_ is None:
        raise input_error("which script? `tilusbuild tune SCRIPT`")
    with options.project(arguments) as project:
        try:
            if arguments.import_ is not None:
                return _import(arguments, project)
            return _tune(arguments, project, _wanted(arguments))
        except LoadError as error:
            raise TilusbuildError(str(error)) from None
        except OSError as error:
            if isinstance(error, TilusbuildError):
                raise
            raise TilusbuildError(f"{error.filename}: {error.strerror}") from None


def _wanted(arguments: argparse.Namespace) -> TuneRequest:
    from tilusbuild.cli.run import _pair, _sizes
    from tilusbuild.errors import input_error
    from tilusbuild.tune.bench.session import Budget
    from tilusbuild.tune.tune import TuneRequest

    try:
        budget = Budget.parse(arguments.budget) if arguments.budget else Budget()
    except ValueError as error:
        raise input_error(f"--budget {error}") from None
    return TuneRequest(
        script=arguments.script,
        target=arguments.target,
        params=dict(_pair(word) for word in arguments.param),
        sizes=[*_sizes(arguments.size), *_grid(arguments.grid)],
        budget=budget,
        cold=arguments.cache == "cold",
        limit=arguments.time_limit,
        seed=arguments.seed,
        device=arguments.device,
        unchecked=arguments.unchecked,
        fresh=arguments.fresh,
    )


def _grid(words: Sequence[str]) -> Iterator[Mapping[str, Value]]:
    from tilusbuild.cli.run import _pair
    from tilusbuild.errors import input_error

    axes = []
    for word in words:
        name, text = _pair(word)
        try:
            axes.append([(name, int(size)) for size in text.split(",")])
        except ValueError:
            raise input_error(f"--grid {word}: sizes are whole numbers") from None
    if axes:
        for combination in itertools.product(*axes):
            yield dict(combination)


def _tune(arguments: argparse.Namespace, project: Project, wanted: TuneRequest) -> int:
    from tilusbuild.tune.tune import built, gpu_here, target_here, tune

    quiet = argparse.Namespace(**{**vars(arguments), "json": False})
    away = arguments.export is not None or arguments.model
    if away:
        target = _target_away(project, wanted)
    else:
        target = target_here(project, wanted, gpu_here(project, wanted.device))
    level, jobs = project.settings.level.value, project.settings.jobs.value
    ready = built(project, wanted, target, level, jobs, options.reporter(quiet))
    if arguments.model:
        return _model(arguments, project, wanted, ready)
    if arguments.export is not None:
        from tilusbuild.tune.bundle import export

        size = export(project, wanted, ready, arguments.export)
        programs = sum(len(each.work.programs) for each in ready)
        print(f"{arguments.export}: {programs} programs, {size / 1e6:.1f} MB")
        print("  where the device is: tar xf, then python3 tilusbuild-bundle/run.py")
        return 0
    listener = _Listener(arguments)
    try:
        return _report(arguments, [tune(project, wanted, each, listener) for each in ready])
    finally:
        listener.reporter.close()


def _target_away(project: Project, wanted: TuneRequest) -> Any:
    from tilusbuild.errors import input_error
    from tilusbuild.plan.selection import Selection, chosen_pairs

    named = (wanted.target,) if wanted.target else ()
    targets = [t for _, t in chosen_pairs(project.manifest, Selection((wanted.script,), named))]
    if len(targets) > 1:
        names = ", ".join(target.name for target in targets)
        raise input_error(f"for which target? {wanted.script} has {names}", hint="--target NAME")
    return targets[0]


def _import(arguments: argparse.Namespace, project: Project) -> int:
    from tilusbuild.tune.bundle import take_back

    tuned, missing = take_back(project, arguments.import_)
    status = _report(arguments, tuned)
    for text in missing:
        sys.stderr.write(f"not finished: {text}\n")
    return 1 if missing else status


def _model(
    arguments: argparse.Namespace,
    project: Project,
    wanted: TuneRequest,
    ready: Sequence[BuiltInstance],
) -> int:
    from tilusbuild.table import Cell, table
    from tilusbuild.tune.publish import record_models, remake_dispatcher
    from tilusbuild.tune.tune import sizes_of

    for each in ready:
        there = frozenset(program.index for program in each.work.programs)
        sizes = sizes_of(project, wanted, each.script_instance)
        entries = record_models(each.script, there, sizes)
        remake_dispatcher(project, each.script)
        rows: list[tuple[Cell, ...]] = [(*e.key, e.program, e.source) for e in entries]
        if arguments.json:
            for entry in entries:
                found = {"key": list(entry.key), "program": entry.program, "source": entry.source}
                print(json.dumps({"event": "row", "instance": each.script.label, **found}))
        else:
            print(each.script.label)
            print(table((*each.script.keys, "choice", "source"), rows), end="")
    return 0


class _Listener:
    """Passes on to the display, and prints what `--json` promises."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from tilusbuild.report.choose import can_redraw
        from tilusbuild.report.tuning import TuningReporter

        live = not arguments.json and can_redraw(sys.stderr, os.environ)
        self.reporter: TuningReporter = TuningReporter(
            sys.stderr, live=live, quiet=arguments.quiet or arguments.json
        )
        self._json = arguments.json

    def begun(self, work: Work, device: str, cases: int) -> None:
        self.reporter.begin(work.label, device, len(work.programs), cases)

    def waiting(self, device: str) -> None:
        self.reporter.line(f"another tuning uses {device}: waiting for it to end")

    def answered(
        self, case: Case, program: Candidate, what: str, answer: Answer, replayed: bool
    ) -> None:
        self.reporter.run(what, answer.cost, replayed)

    def decided(self, work: Work, decision: Decision) -> None:
        if self._json:
            print(json.dumps(_as_json(work.label, decision)), flush=True)
        winner = decision.winner
        if winner is None or winner.seconds is None:
            self.reporter.end_case(f"{decision.case.label}: no program is usable")
        else:
            milliseconds = f"{winner.seconds * 1e3:.4f} ms"
            self.reporter.end_case(
                f"{decision.case.label}: program {winner.program.index}, {milliseconds}"
            )


def _as_json(label: str, decision: Decision) -> dict[str, Any]:
    winner = decision.winner
    return {
        "event": "tuned",
        "instance": label,
        "sizes": dict(decision.case.sizes),
        "program": winner.program.index if winner else None,
        "schedule": dict(winner.program.schedule) if winner else None,
        "seconds": winner.seconds if winner else None,
        "seen": len(decision.outcomes),
        "unseen": decision.unseen,
        "refused": {
            str(o.program.index): {"status": o.status, "why": o.why}
            for o in decision.outcomes
            if o.seconds is None
        },
    }


def _report(arguments: argparse.Namespace, tuned: Sequence[TunedInstance]) -> int:
    if arguments.export_t4 is not None:
        from tilusbuild.tune.publish import t4_json

        found = [(each.script, each.device.name, each.decisions) for each in tuned]
        with open(arguments.export_t4, "w", encoding="utf-8") as file:
            file.write(t4_json(found))
    decisions = [decision for each in tuned for decision in each.decisions]
    without = sum(decision.winner is None for decision in decisions)
    if arguments.json:
        if arguments.import_ is not None:
            for each in tuned:
                for decision in each.decisions:
                    print(json.dumps(_as_json(each.script.label, decision)))
        print(json.dumps({"event": "summary", "tuned": len(decisions), "without": without}))
    else:
        for each in tuned:
            _print(each)
    return 1 if without else 0


def _print(tuned: TunedInstance) -> None:
    from tilusbuild.table import table

    print(f"{tuned.script.label} on {tuned.device}")
    names = list(tuned.decisions[0].case.sizes) if tuned.decisions else []
    parameters = list(tuned.script.schedules)
    rows = []
    for decision in tuned.decisions:
        winner = decision.winner
        schedule = winner.program.schedule if winner else {}
        time = None if winner is None or winner.seconds is None else f"{winner.seconds * 1e3:.4f}"
        tried = f"{len(decision.outcomes)}" + ("" if not decision.unseen else " (budget)")
        out = sum(outcome.seconds is None for outcome in decision.outcomes)
        rows.append(
            (
                *(decision.case.sizes.get(name) for name in names),
                winner.program.index if winner else None,
                *(schedule.get(name) for name in parameters),
                time,
                tried,
                out,
            )
        )
    print(table((*names, "choice", *parameters, "latency (ms)", "tried", "refused"), rows), end="")
    for line in _refused(tuned):
        print(line)
    for shared in tuned.shared:
        print(f"{shared.gives_way} and {shared.decides} share a bucket: the latter decides")
    print(f"table: {tuned.script.path}/dispatch_table.txt")


def _refused(tuned: TunedInstance) -> Iterator[str]:
    """Each program that is out, once."""
    told: set[int] = set()
    for decision in tuned.decisions:
        for outcome in decision.outcomes:
            program = outcome.program
            if outcome.seconds is None and program.index not in told:
                told.add(program.index)
                schedule = ", ".join(f"{n}={v}" for n, v in program.schedule.items())
                yield f"program {program.index} ({schedule}): {outcome.status}: {outcome.why}"
