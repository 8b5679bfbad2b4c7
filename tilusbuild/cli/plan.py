"""`tilusbuild plan`: what would be built, and what the rules of each space remove."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tilusbuild.cli import options
from tilusbuild.cli.arguments import SelectionArgs, Verb, flag
from tilusbuild.cli.options import emit_line
from tilusbuild.report.jsonl import JsonLine, Scalar, declare_line
from tilusbuild.space.report import DeclaredParameter, RuleEffect, SpaceReport
from tilusbuild.status import Status

if TYPE_CHECKING:
    from tilusbuild.builder.project import Project
    from tilusbuild.plan.instance import PlannedInstance


class PlanArgs(SelectionArgs, frozen=True, kw_only=True):
    space: bool = flag(
        "--space", help="show what each rule of a space removes, alone and after the rules before"
    )


class InstanceLine(JsonLine, frozen=True):
    """A script for one set of constants and one target."""

    event: ClassVar[str] = "instance"
    script: str
    params: Mapping[str, Scalar]
    target: str
    arch: str
    cartesian: int
    valid: int | None
    programs: int
    built: int
    failed: int
    pruned: int
    to_compile: int
    default: int | None
    hash: str


PlanSummary = declare_line("summary", programs=int, instances=int)
"""The whole plan. A program that several instances share counts once."""


class SpaceLine(JsonLine, frozen=True):
    """The space of an instance."""

    event: ClassVar[str] = "space"
    instance: str
    cartesian: int
    conditional: int | None
    valid: int | None
    """None where they are too many to count."""
    rules: tuple[RuleEffect, ...]
    parameters: tuple[DeclaredParameter, ...]
    removed: tuple[int, ...]
    """Of each combination of the parameters' values, the last the fastest, the number of the first
    rule that removes it; -1 for one that stays, -2 for one that a `when` makes equal to another.
    Empty for more than 10,000."""

    @classmethod
    def of(cls, instance: str, report: SpaceReport) -> SpaceLine:
        """Return the line of a report."""
        counts = (report.cartesian, report.conditional, report.count)
        return cls(instance, *counts, report.rules, report.parameters, report.removed)


def run(arguments: PlanArgs) -> int:
    """Print the plan, or with --space the rules of each space. Return 2 for an empty space, else 0.
    Runs no compiler and writes nothing to the tree."""
    from tilusbuild.plan.planner import iterate_jobs

    with options.open_project(arguments) as project:
        if arguments.verbose and not arguments.json:
            notes = project.manifest.reading.notes
            if notes:
                print("\n".join(["read, as the manifest does not say it:", *notes]))
            print()
        if arguments.space:
            return _print_spaces(arguments, project)
        plan = project.make_plan(options.make_selection(arguments, project))
        jobs, missing = list(iterate_jobs(plan)), set[str]()
        rows = [
            _make_row(project, instance, [j.hash for j in jobs if j.planned is instance], missing)
            for instance in plan.instances
        ]
    if arguments.json:
        for row in rows:
            emit_line(row)
        emit_line(PlanSummary(plan.size, len(rows)))
        return 0
    from tilusbuild.report.text import format_count

    _print_table(rows)
    # Not the sum of the rows: several libraries may have the same object.
    print(f"\n{format_count(plan.size, 'program')}, {len(missing)} to compile")
    return 0


def _make_row(
    project: Project, instance: PlannedInstance, programs: Sequence[str], missing: set[str]
) -> InstanceLine:
    """Return the line of an instance: the size of its space, and the counts of its selected
    `programs` in the cache by status. Those that are not there are added to `missing`."""
    from tilusbuild.cache.entries import lookup_entry

    entries = [lookup_entry(project.cache, program) for program in programs]
    known = zip(programs, entries, strict=True)
    missing.update(program for program, entry in known if entry is None)
    statuses = [Status.MISSING if entry is None else entry.status for entry in entries]
    return InstanceLine(
        script=instance.script,
        params=dict(instance.params),
        target=instance.target.name,
        arch=instance.target.arch,
        cartesian=instance.spec.space.cartesian,
        valid=instance.spec.space.size[0],
        programs=len(programs),
        built=statuses.count(Status.BUILT),
        failed=statuses.count(Status.FAILED),
        pruned=statuses.count(Status.PRUNED),
        to_compile=statuses.count(Status.MISSING),
        default=instance.default,
        hash=instance.hash,
    )


def _print_table(rows: list[InstanceLine]) -> None:
    """Print a row for each instance."""
    from tilusbuild.table import format_table

    cells = [
        (
            row.script,
            ", ".join(f"{name}={value}" for name, value in row.params.items()),
            row.target,
            row.arch,
            row.cartesian,
            row.valid,
            row.programs,
            row.built,
            row.failed + row.pruned,
            row.to_compile,
        )
        for row in rows
    ]
    heads = ("script", "params", "target", "arch", "cartesian", "valid", "planned", "built")
    print(format_table((*heads, "refused", "to compile"), cells), end="")


def _print_spaces(arguments: PlanArgs, project: Project) -> int:
    """Print each space's rules. Return 2 when a space is empty, else 0."""
    from tilusbuild.plan.spaces import report_spaces
    from tilusbuild.table import format_table

    has_empty_space = False
    space_reports = report_spaces(project.manifest, options.make_selection(arguments, project))
    for number, (label, report) in enumerate(space_reports):
        has_empty_space = has_empty_space or report.count == 0
        if arguments.json:
            emit_line(SpaceLine.of(label, report))
            continue
        print(("\n" if number else "") + f"{label}: {report.cartesian:,} combinations")
        if report.conditional:
            print(f"{report.conditional:,} duplicate another, because a `when` is false")
        if report.rules:
            rows = [
                (r.name, r.removed, r.alone, "alone leaves none" if r.empties else "")
                for r in report.rules
            ]
            print(format_table(("rule", "removes", "alone", ""), rows), end="")
        valid = "too many to count" if report.count is None else f"{report.count:,}"
        print(f"{valid} valid")
    return 2 if has_empty_space else 0


VERB = Verb(PlanArgs, run, (InstanceLine, PlanSummary, SpaceLine))
