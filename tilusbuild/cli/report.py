"""`tilusbuild report [SCRIPT…]`: what builds cost, as tables, JSON or a page."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tilusbuild.builder.costs import Cost, Total, costs, costs_text, total, totals
from tilusbuild.builder.timeline import BuildTimeline, read_timeline
from tilusbuild.cache import layout
from tilusbuild.cli import options
from tilusbuild.cli.arguments import SelectionArgs, Verb, option
from tilusbuild.cli.dispatch import CoverageLine
from tilusbuild.cli.plan import SpaceLine
from tilusbuild.report.jsonl import JsonLine, declare_line, json_line
from tilusbuild.rooms import brought, load
from tilusbuild.runtime.regular import read_text
from tilusbuild.tune.measured import MeasuredLine

if TYPE_CHECKING:
    from tilusbuild.builder.project import Project
    from tilusbuild.cache.tree import Tree
    from tilusbuild.plan.model import PlanSelection


_MAX_TEXTS = 32_000_000
"""Characters of sources and SASS in a page: packed, sources of a space are a tenth or less."""


class ReportArgs(SelectionArgs, frozen=True, kw_only=True):
    """Which part of the project, and in which form."""

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
    """Print or write the report. Runs no compiler and writes nothing to the tree."""
    from tilusbuild.errors import input_error

    if arguments.top < 0:
        raise input_error(f"--top {arguments.top}: not a number of programs")
    if arguments.html is not None and "html" not in brought("report"):
        raise input_error("--html: this installation has no page")
    with options.project(arguments) as project:
        selection = options.selected(arguments, project)
        if not arguments.json and arguments.html is None:
            found = costs(project.plan(selection), project.cache)
            print(costs_text(found, arguments.top), end="")
            return 0
        known = list(_lines(arguments, project, selection))
        lines = [json_line(line) for line in known]
        if arguments.html is not None:
            page = [*lines, *_texts(project.cache, known)]
    if arguments.json:
        for line in lines:
            print(line)
    if arguments.html is not None:
        options.write_to(arguments.html, load(brought("report")["html"])(page))
    return 0


def _lines(arguments: ReportArgs, project: Project, selection: PlanSelection) -> Iterator[JsonLine]:
    """Yield everything that is known: what `--json` prints, and what the page shows."""
    from tilusbuild._version import __version__
    from tilusbuild.plan.spaces import reports
    from tilusbuild.tune.measured import measured

    named = project.manifest.project
    yield ProjectLine(named.name, named.version, __version__)
    plan = project.plan(selection)
    found = costs(plan, project.cache)
    for (script, target), each in totals(found).items():
        yield ScriptCostLine(script, target, each)
    yield from found
    for label, space in reports(project.manifest, selection):
        yield SpaceLine.of(label, space)
    for look, lines in measured(project, plan):
        yield from lines
        if look.script.keys:
            for sizes, choice in look.coverage():
                yield CoverageLine(look.script.label, sizes, *choice[:3])
    if (timeline := read_timeline(project.cache.state_path)) is not None:
        yield timeline
    yield CostSummary(total(found))


def _texts(cache: Tree, lines: Iterable[JsonLine]) -> Iterator[str]:
    """Yield the texts of the programs that are built, each once, up to `_MAX_TEXTS`: as lines that
    only the page has."""
    from tilusbuild.cache.entries import dumped

    left = _MAX_TEXTS
    built = (each.hash for each in lines if isinstance(each, Cost) and each.library is not None)
    for program in dict.fromkeys(built):
        directory = cache.program_path(program)
        try:
            source = read_text(os.path.join(directory, layout.SOURCE), "replace")
            sass = dumped(directory, "sass")
        except OSError:
            continue  # the program was removed after the lines were read
        left -= len(source) + len(sass)
        if left < 0:
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
