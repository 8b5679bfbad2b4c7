"""`tilusbuild report [SCRIPT…]`: what builds cost, as tables, JSON or a page."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tilusbuild.builder.timeline import BuildTimeline, read_timeline
from tilusbuild.cache import layout
from tilusbuild.cli import options
from tilusbuild.cli.arguments import SelectionArgs, Verb, option
from tilusbuild.cli.plan import SpaceLine
from tilusbuild.overview.costs import (
    Cost,
    Total,
    collect_costs,
    format_costs,
    sum_by_target,
    sum_costs,
)
from tilusbuild.overview.measured import MeasuredLine
from tilusbuild.overview.verb_dispatch import CoverageLine
from tilusbuild.report.jsonl import JsonLine, declare_line, format_json_line
from tilusbuild.rooms import load_contribution
from tilusbuild.runtime.regular import read_text
from tilusbuild.status import Status

if TYPE_CHECKING:
    from tilusbuild.builder.project import Project
    from tilusbuild.cache.tree import Tree
    from tilusbuild.plan.model import PlanSelection


# Characters of sources and SASS in a page: packed, sources of a space are a tenth or less.
_MAX_TEXTS = 32_000_000


class ReportArgs(SelectionArgs, frozen=True, kw_only=True):
    top: int = option(
        "--top",
        type=int,
        metavar="N",
        default=10,
        help="list the N programs that cost most (default: 10)",
    )
    html: str | None = option(
        "--html", metavar="FILE", help="write a page to look at, in one file that needs no network"
    )


ProjectLine = declare_line("project", name=str, version=str, tilusbuild=str)
"""Whose report this is."""


ScriptCostLine = declare_line("script", inlined="total", script=str, target=str, total=Total)
"""The sums over the programs of a script for a target; null is not known."""


CostSummary = declare_line("summary", inlined="total", total=Total)
"""The sums over all programs, each counted once."""


def run(arguments: ReportArgs) -> int:
    """Print the report, or write it as a page. Return 0. Runs no compiler and writes nothing to
    the tree. Raises `InputError`."""
    from tilusbuild.errors import input_error

    if arguments.top < 0:
        raise input_error(f"--top {arguments.top}: not a number of programs")
    make_page = None
    if arguments.html is not None:
        make_page = load_contribution("report", "html", "makes pages")
    with options.open_project(arguments) as project:
        selection = options.make_selection(arguments, project)
        if not arguments.json and arguments.html is None:
            program_costs = collect_costs(project.make_plan(selection), project.cache)
            print(format_costs(program_costs, arguments.top), end="")
            return 0
        lines = list(_collect_lines(project, selection))
        json_lines = [format_json_line(line) for line in lines]
        if make_page is not None:
            page_lines = [*json_lines, *_read_texts(project.cache, lines)]
    # After the project is closed, as a slow reader of stdout would keep it open.
    if arguments.json:
        for line in json_lines:
            print(line)
    if arguments.html is not None and make_page is not None:
        options.write_file(arguments.html, make_page(page_lines))
    return 0


def _collect_lines(project: Project, selection: PlanSelection) -> Iterator[JsonLine]:
    """Yield all lines of the report, for `--json` and for the page."""
    from tilusbuild._version import __version__
    from tilusbuild.overview.measured import list_measurements
    from tilusbuild.plan.spaces import report_spaces

    project_section = project.manifest.project
    yield ProjectLine(project_section.name, project_section.version, __version__)
    plan = project.make_plan(selection)
    program_costs = collect_costs(plan, project.cache)
    for (script, target), total in sum_by_target(program_costs).items():
        yield ScriptCostLine(script, target, total)
    yield from program_costs
    for label, space in report_spaces(project.manifest, selection):
        yield SpaceLine.of(label, space)
    for overview, lines in list_measurements(project, plan):
        yield from lines
        if overview.script.keys:
            for row in overview.coverage:
                yield CoverageLine(overview.script.label, *row)
    timeline = read_timeline(project.cache.state_path)
    attempts = timeline.attempts if timeline else ()
    # A failed program that is no longer planned was mended, by a build that compiled nothing.
    failed = {attempt.hash for attempt in attempts if attempt.status == Status.FAILED}
    is_mended = selection.is_whole and not failed <= {cost.hash for cost in program_costs}
    if timeline is not None and not is_mended:
        yield timeline
    yield CostSummary(sum_costs(program_costs))


def _read_texts(cache: Tree, lines: Iterable[JsonLine]) -> Iterator[str]:
    """Yield a line with the source and the SASS of each built program, up to `_MAX_TEXTS`
    characters. Only the page has these lines."""
    from tilusbuild.cache.entries import read_dump

    # Bounded, as a space may have thousands of programs.
    remaining = _MAX_TEXTS
    hashes = (line.hash for line in lines if isinstance(line, Cost) and line.library is not None)
    for program in dict.fromkeys(hashes):
        directory = cache.program_path(program)
        try:
            source = read_text(os.path.join(directory, layout.SOURCE), "replace")
            sass = read_dump(directory, "sass")
        except OSError:
            continue  # the program was removed after the lines were read
        remaining -= len(source) + len(sass)
        if remaining < 0:
            return
        yield json.dumps({"event": "texts", "hash": program, "source": source, "sass": sass})


VERB = Verb(
    ReportArgs,
    run,
    (
        *(ProjectLine, ScriptCostLine, Cost, SpaceLine, MeasuredLine, CoverageLine),
        *(BuildTimeline, CostSummary),
    ),
)
