"""`tilusbuild report [SCRIPT…]`: what builds cost, and which programs cost most."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tilusbuild.cli import options

if TYPE_CHECKING:
    from tilusbuild.report.costs import Cost, Total


def configure(parser: argparse.ArgumentParser) -> None:
    """Which part of the project, and how much to say."""
    options.selection(parser)
    parser.add_argument(
        "--top", type=int, metavar="N", default=10, help="so many programs in each list (10)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the report. Reads only: no compiler runs, nothing is written to the tree."""
    from tilusbuild.build.costs import costs
    from tilusbuild.errors import input_error
    from tilusbuild.report.costs import costs_text

    if arguments.top < 0:
        raise input_error(f"--top {arguments.top}: not a number of programs")
    with options.project(arguments) as project:
        found = costs(project.plan(options.selected(arguments, project)), project.cache)
    if arguments.json:
        for event in _events(found):
            print(json.dumps(event))
    else:
        print(costs_text(found, arguments.top), end="")
    return 0


def _events(found: list[Cost]) -> Iterator[dict[str, Any]]:
    from tilusbuild.report.costs import total, totals

    for (script, target), each in totals(found).items():
        yield {"event": "script", "script": script, "target": target, **_sums(each)}
    for cost in found:
        yield {"event": "program", **asdict(cost)}
    yield {"event": "summary", **_sums(total(found))}


def _sums(each: Total) -> dict[str, Any]:
    return {"programs": each.programs, **asdict(each)}
