"""`tilusbuild dispatch`: show, check and build what chooses programs by size."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from msgspec import Struct

from tilusbuild.cli import options
from tilusbuild.cli.arguments import (
    SIZES_FROM,
    DeviceCompilerArgs,
    Verb,
    option,
    positional,
    positionals,
    target_option,
)
from tilusbuild.cli.options import CountsLine, emit_line, print_message, show_result
from tilusbuild.report.jsonl import JsonLine, ProblemLine, Scalar, declare_line
from tilusbuild.report.text import format_count
from tilusbuild.rooms import load_contribution
from tilusbuild.runtime.naming import to_snake_case

if TYPE_CHECKING:
    from tilusbuild.builder.project import Project
    from tilusbuild.dispatch.fit import Fit
    from tilusbuild.dispatch.recorded import RecordedSizes
    from tilusbuild.manifest.model import Manifest
    from tilusbuild.overview.serving import DispatchOverview
    from tilusbuild.plan.measured import MeasuredRow
    from tilusbuild.runtime.script import Script

_ACTIONS = {
    "show": "print the rules, tables and models of a script",
    "check": "check every table, rule and program; exit with status 1 for a problem",
    "coverage": "print which program serves which sizes, and why",
    "build": "build the C dispatcher again, from the current tables",
    "export": "write what was measured here to the file `measured` of the manifest",
    "fit": "as export, of the fewest programs that suffice, with rules for sizes between",
}


class DispatchArgs(DeviceCompilerArgs, frozen=True, kw_only=True):
    action: str = positional(
        "ACTION",
        choices=tuple(_ACTIONS),
        help="; ".join(f"{action}: {text}" for action, text in _ACTIONS.items()),
    )
    script: tuple[str, ...] = positionals(
        "SCRIPT", at_least_one=True, help="the script or the instance whose tables they are"
    )
    target: str | None = target_option("use the tables of this target only")
    sizes_from: str | None = SIZES_FROM
    within: float = option(
        "--within",
        metavar="F",
        type=float,
        default=1.05,
        help="fit: the time of a measured size, at most, by that of its best program (1.05)",
    )
    most: int = option(
        "--most", metavar="N", type=int, default=8, help="fit: the number of programs, at most (8)"
    )


class DispatchTable(Struct, frozen=True):
    """The keys of a table, and the device that it was measured on."""

    fingerprint: Mapping[str, str]
    entries: tuple[tuple[Scalar, ...], ...]


DispatchLine = declare_line(
    "dispatch",
    instance=str,
    path=str,
    keys=tuple[str, ...],
    rules=tuple[tuple[str, int], ...],
    model=str | None,
    default=int | None,
    tables=tuple[DispatchTable, ...],
)
"""Everything that chooses the programs of an instance."""


CoverageLine = declare_line(
    "coverage",
    instance=str,
    sizes=Mapping[str, Scalar],
    program=int | None,
    source=str,
    why=str,
    calls=int | None,
)
"""Which program serves some sizes; the source "none": none does. `calls` are from `--sizes-from`,
else null."""


FittedLine = declare_line(
    "fitted",
    instance=str,
    device=str,
    programs=tuple[int, ...],
    within=float,
    costs=tuple[str, ...],
    mean=float,
    worst=float,
)
"""The few programs that serve an instance on a device, the factor of the best time within which
they serve each measured size, their costs, and the mean and the greatest loss at a size that is
left out of the fit."""


def run(arguments: DispatchArgs) -> int:
    """Run the action that the arguments name, and print its results. Return the exit status: 1
    when `check` finds a problem, else 0."""
    from tilusbuild.dispatch.measurements import describe_damage

    with options.open_project(arguments) as project:
        overviews = list(_read_overviews(arguments, project))
        directories = dict.fromkeys(to_snake_case(overview.script.name) for overview in overviews)
        damage = [text for name in directories if (text := describe_damage(project.cache, name))]
        if arguments.action == "check":
            return _check_tables(arguments, overviews, damage)
        for text in damage:
            print_message(f"warning: {text}\n")
        if arguments.action == "build":
            return _build_dispatchers(arguments, project, overviews)
        if arguments.action in ("export", "fit"):
            write = _export_measurements if arguments.action == "export" else _fit_programs
            by_script = groupby(overviews, key=lambda overview: overview.script.name)
            return max(write(arguments, project, [*group]) for _, group in by_script)
        show = _show_tables if arguments.action == "show" else _show_coverage
        return show(arguments, overviews)


def _read_overviews(arguments: DispatchArgs, project: Project) -> Iterator[DispatchOverview]:
    """Yield the overview of each instance that the arguments name. Raises `InputError`."""
    from tilusbuild.overview.serving import read_overviews

    cache = project.settings.cache_dir
    for name in options.parse_names(arguments.script, project):
        target = None if name.target else arguments.target
        yield from read_overviews(
            project.manifest, cache, name._replace(program=None), target, arguments.sizes_from
        )


def _show_tables(arguments: DispatchArgs, overviews: Sequence[DispatchOverview]) -> int:
    """Print the rules, the model, the default and the tables of each instance. Return 0."""
    from tilusbuild.dispatch.tables import format_text

    for number, overview in enumerate(overviews):
        if arguments.json:
            emit_line(_make_line(overview))
            continue
        script = overview.script
        print(("\n" if number else "") + f"{script.label} ({script.arch})")
        keys = ", ".join(script.keys) or "none"
        print(f"keys: {keys}; {format_count(len(script.programs), 'program')}")
        for rule in script.rules:
            print(f"rule: {rule.source} → program {rule.program}")
        if script.model is not None:
            print(f"model: {script.model.source}")
        default = "none declared" if script.default is None else f"program {script.default}"
        print(f"default: {default}")
        if overview.tables or overview.refused:
            print("\n" + format_text(script, overview.tables, overview.refused), end="")
    return _emit_summary(arguments, overviews)


def _make_line(overview: DispatchOverview) -> JsonLine:
    """Return the line of `show` for an instance."""
    script = overview.script
    return DispatchLine(
        instance=script.label,
        path=script.path,
        keys=tuple(script.keys),
        rules=tuple((rule.source, rule.program) for rule in script.rules),
        model=script.model.source if script.model else None,
        default=script.default,
        tables=tuple(
            DispatchTable(dict(table.fingerprint), tuple(entry.key for entry in table.entries))
            for table in overview.tables
        ),
    )


def _check_tables(
    arguments: DispatchArgs, overviews: Sequence[DispatchOverview], damage: Sequence[str]
) -> int:
    """Print `damage`, and the problems of each instance. Return 1 if there is a problem, else 0."""
    problems = [ProblemLine(text) for text in damage]
    problems += [
        # An error of a call begins with the label.
        ProblemLine(problem.removeprefix(f"{overview.script.label}: "), of=overview.script.label)
        for overview in overviews
        for problem in overview.find_problems()
    ]
    for line in problems:
        show_result(arguments, line, ": ".join(filter(None, (line.of, line.what))))
    for overview in overviews if not arguments.json else ():
        if overview.recorded is not None:
            shares = _format_shares(overview, overview.recorded)
            print(f"{overview.script.label}: {shares}")
    if arguments.json:
        emit_line(CountsLine({"instances": len(overviews), "problems": len(problems)}))
    elif not problems:
        print(f"{format_count(len(overviews), 'instance')}: no problems found")
    return 1 if problems else 0


def _format_shares(overview: DispatchOverview, recorded: RecordedSizes) -> str:
    """Return the share of the recorded calls that each source of a choice decides."""
    calls_of_source = Counter({"unknown sizes": recorded.other_calls})
    for row in overview.coverage:
        calls_of_source[row.source] += row.calls or 0
    shares = [
        f"{count / recorded.calls:.1%} by {source}"
        for source, count in calls_of_source.most_common()
        if count
    ]
    return f"{format_count(recorded.calls, 'recorded call')}: {', '.join(shares) or 'none'}"


def _show_coverage(arguments: DispatchArgs, overviews: Sequence[DispatchOverview]) -> int:
    """Print the program that each known size of an instance gets, and the reason. Return the exit
    status, which is 0."""
    from tilusbuild.table import format_table

    for number, overview in enumerate(overviews):
        rows = overview.coverage
        if arguments.json:
            for row in rows:
                emit_line(CoverageLine(overview.script.label, *row))
            continue
        if number:
            print()
        print(f"{overview.script.label} on {overview.device or 'any device'}")
        # Without a row no sizes are known, and the table has the keys as its heads.
        size_names = tuple(rows[0].sizes) if rows else overview.script.keys
        heads = (*size_names, "choice", "source", "why", *(["calls"] if overview.recorded else []))
        cells = [
            (*row.sizes.values(), row.program, row.source, row.why, row.calls)[: len(heads)]
            for row in rows
        ]
        print(format_table(heads, cells), end="")
        counts = Counter(row.source for row in rows)
        print(", ".join(f"{count} by {source}" for source, count in sorted(counts.items())))
    return _emit_summary(arguments, overviews)


def _build_dispatchers(
    arguments: DispatchArgs, project: Project, overviews: Sequence[DispatchOverview]
) -> int:
    """Build the C dispatchers that are not current, and print the path of each. Return 0. Raises
    `InputError` without the part that makes dispatchers."""
    from tilusbuild.dispatch.refresh import refresh_dispatcher

    load_contribution("dispatcher", "c", "makes C dispatchers")
    # A dispatcher is C: no nvcc is looked for.
    find_toolchain = partial(project.find_toolchain, cuda=False)
    for overview in overviews:
        dispatcher = refresh_dispatcher(
            project.cache, overview.script, find_toolchain, project.runner
        )
        if not arguments.json:
            print(dispatcher or f"{overview.script.label}: cannot have a C dispatcher")
    return _emit_summary(arguments, overviews)


def _export_measurements(
    arguments: DispatchArgs, project: Project, overviews: Sequence[DispatchOverview]
) -> int:
    """Write the measurements of this machine to the file `measured` of the manifest, and print the
    new and changed rows. Return 0. Raises `InputError`."""
    from tilusbuild.dispatch.committed import ChangedRow, merge_measured_rows
    from tilusbuild.plan.measured import read_committed_rows

    manifest, script = project.manifest, overviews[0].script.name
    file = _find_measured_file(manifest, script)
    rows: Sequence[MeasuredRow] = read_committed_rows(manifest, script)
    changed: list[ChangedRow] = []
    for overview in overviews:
        rows, changed_rows = merge_measured_rows(overview.script, rows)
        changed += changed_rows
    # Unchanged, the file keeps its time: nothing that depends on it is out of date.
    if changed:
        _write_measured_file(manifest, script, rows)
    replaced_count = sum(row.replaced is not None for row in changed)
    new_count = len(changed) - replaced_count
    counts = {"rows": len(rows), "new": new_count, "changed": replaced_count}
    if arguments.json:
        emit_line(CountsLine(counts))
        return 0
    for row, replaced in changed:
        print(f"{'new' if replaced is None else 'changed'}: {row.line}")
    rows_text = format_count(len(rows), "row")
    print(f"{file}: {rows_text}, {new_count} new, {replaced_count} changed")
    return 0


def _find_measured_file(manifest: Manifest, script: str) -> str:
    """Return the file that the manifest names for the measurements of a script. Raises
    `InputError` without one."""
    from tilusbuild.errors import input_error

    dispatch = manifest.scripts[script].dispatch
    if dispatch is None or dispatch.measured is None:
        hint = f'`measured = "tuned/{script}.jsonl"` in [script.{script}.dispatch]'
        message = f"{script} names no file for its measurements"
        raise input_error(message, location=manifest.locate_key("script", script), hint=hint)
    return dispatch.measured


def _write_measured_file(manifest: Manifest, script: str, rows: Sequence[MeasuredRow]) -> None:
    """Write the rows of a script to the file that the manifest names. Raises `InputError`."""
    from tilusbuild.plan.measured import format_rows

    path = os.path.join(manifest.root, _find_measured_file(manifest, script))
    options.write_file(path, format_rows(script, rows).encode(), parents=True)


def _fit_programs(
    arguments: DispatchArgs, project: Project, overviews: Sequence[DispatchOverview]
) -> int:
    """Write the rows and the costs of few programs to the file `measured` of the manifest, refresh
    the tables, and print the fits. Return 0. Raises `InputError`."""
    from tilusbuild.cache.layout import DISPATCH
    from tilusbuild.dispatch.committed import merge_measured_rows
    from tilusbuild.dispatch.fit import fit_script
    from tilusbuild.dispatch.measurements import CommittedRows, read_rows
    from tilusbuild.dispatch.refresh import refresh_dispatcher, refresh_tables
    from tilusbuild.errors import input_error
    from tilusbuild.plan.measured import read_committed_rows
    from tilusbuild.plan.model import PlanSelection

    if not (arguments.within >= 1 and arguments.most >= 1):
        raise input_error("--within and --most are at least 1")
    manifest, name = project.manifest, overviews[0].script.name
    file = _find_measured_file(manifest, name)
    rows: Sequence[MeasuredRow] = read_committed_rows(manifest, name)
    local_rows = read_rows(project.cache, to_snake_case(name))
    for overview in overviews:
        script, path = overview.script, overview.script.path
        # One schedule is enough: the plan has the launch, and the whole space.
        (instance,) = project.make_plan(PlanSelection((script.label,), level=0)).instances
        limits = (arguments.within, arguments.most)
        rows, fits = fit_script(script, instance, local_rows, rows, *limits)
        # The tables first, since the rows of the file follow from them.
        refresh_tables(path, local_rows, CommittedRows(file, rows))
        rows, _ = merge_measured_rows(script, rows)
        refresh_tables(path, local_rows, CommittedRows(file, rows))
        for device, fit in fits:
            _show_fit(arguments, script, device, fit)
    _write_measured_file(manifest, name, rows)
    for overview in overviews:
        if os.path.isdir(os.path.join(overview.script.path, DISPATCH)):
            find_toolchain = partial(project.find_toolchain, cuda=False)
            refresh_dispatcher(project.cache, overview.script, find_toolchain, project.runner)
    return _emit_summary(arguments, overviews)


def _show_fit(arguments: DispatchArgs, script: Script, device: str, fit: Fit) -> None:
    """Print the programs and costs of a fit, and the loss at each size if it is left out."""
    from tilusbuild.table import Cell, format_table

    losses = [case.left_out_regret for case in fit.cases]
    mean, worst = sum(losses) / len(losses), max(losses)
    if arguments.json:
        programs = tuple(fit.programs)
        costs = tuple(fit.costs.values())
        line = FittedLine(script.label, device, programs, fit.within, costs, mean, worst)
        emit_line(line)
        return
    count = format_count(len(fit.programs), "program")
    limit = f"{fit.within:.4g}"
    print(
        f"{script.label} on {device}: {count} of {len(script.programs)}, within {limit} of the best"
        f" at each of {format_count(len(fit.cases), 'size')}"
    )
    for program, cost in fit.costs.items():
        values = " ".join(f"{k}={v}" for k, v in script.get_schedule(program).items())
        print(f"  program {program}: {values}\n    cost: {cost}")
    rows: list[tuple[Cell, ...]] = [
        (
            *case.case.sizes,
            case.program,
            f"{case.regret:.1%}",
            case.left_out_program,
            f"{case.left_out_regret:.1%}",
        )
        for case in fit.cases
    ]
    heads = (*script.keys, "choice", "loss", "left out", "loss then")
    print(
        f"{format_table(heads, rows)}left out in turn: {mean:.1%} in the mean, {worst:.1%} at worst"
    )


def _emit_summary(arguments: DispatchArgs, overviews: Sequence[DispatchOverview]) -> int:
    if arguments.json:
        emit_line(CountsLine({"instances": len(overviews)}))
    return 0


VERB = Verb(DispatchArgs, run, (DispatchLine, CoverageLine, FittedLine, ProblemLine, CountsLine))
