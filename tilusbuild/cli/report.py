"""`tilusbuild report [SCRIPT…]`: what builds cost, and which programs cost most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilusbuild.builder.costs import Cost, Total, costs, costs_text, total, totals
from tilusbuild.cli import options
from tilusbuild.cli.arguments import SelectionArgs, Verb, option
from tilusbuild.cli.options import emit
from tilusbuild.report.jsonl import JsonLine


@dataclass(frozen=True, kw_only=True)
class ReportArgs(SelectionArgs):
    """Which part of the project, and in how much detail."""

    top: int = option(
        "--top",
        type=int,
        metavar="N",
        default=10,
        help="list the N programs that cost most (default: 10)",
    )


@dataclass(frozen=True, slots=True)
class ScriptCostLine(JsonLine):
    """The sums over the programs of a script for a target; null is not known."""

    event: ClassVar[str] = "script"
    inlined: ClassVar[str] = "total"
    script: str
    target: str
    total: Total


@dataclass(frozen=True, slots=True)
class CostSummary(JsonLine):
    """The sums over all programs, each counted once."""

    event: ClassVar[str] = "summary"
    inlined: ClassVar[str] = "total"
    total: Total


def run(arguments: ReportArgs) -> int:
    """Print the report. Runs no compiler and writes nothing to the tree."""
    from tilusbuild.errors import input_error

    if arguments.top < 0:
        raise input_error(f"--top {arguments.top}: not a number of programs")
    with options.project(arguments) as project:
        found = costs(project.plan(options.selected(arguments, project)), project.cache)
    if not arguments.json:
        print(costs_text(found, arguments.top), end="")
        return 0
    for (script, target), each in totals(found).items():
        emit(ScriptCostLine(script, target, each))
    for cost in found:
        emit(cost)
    emit(CostSummary(total(found)))
    return 0


VERB = Verb(ReportArgs, run, (ScriptCostLine, Cost, CostSummary))
