"""`tilusbuild graph [SCRIPT…]`: the build graph, for Graphviz or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tilusbuild.cli import options

if TYPE_CHECKING:
    from tilusbuild.report.graph import Graph


def configure(parser: argparse.ArgumentParser) -> None:
    """Which part of the project, and how far down."""
    options.selection(parser)
    parser.add_argument("--programs", action="store_true", help="show each program, too")


def run(arguments: argparse.Namespace) -> int:
    """Print the graph. Reads only: no compiler runs, nothing is written to the tree."""
    from tilusbuild.build.graph import graph
    from tilusbuild.report.graph import dot

    with options.project(arguments) as project:
        plan = project.plan(options.selected(arguments, project))
        found = graph(project, plan, programs=arguments.programs)
    if arguments.json:
        for event in _events(found, plan.size):
            print(json.dumps(event))
    else:
        sys.stdout.write(dot(found))
    return 0


def _events(found: Graph, programs: int) -> Iterator[dict[str, Any]]:
    for file in found.files:
        yield {"event": "file", "path": file.path, "kind": file.kind}
    for script in found.scripts:
        yield {
            "event": "script",
            "name": script.name,
            "script": script.script,
            "target": script.target,
            "arch": script.arch,
            "programs": script.programs,
            **script.statuses,
            "inputs": list(script.inputs),
        }
    for program in found.programs:
        yield {
            "event": "program",
            "hash": program.hash,
            "label": program.label,
            "status": program.status,
            "values": dict(program.values),
            "scripts": list(program.scripts),
        }
    yield {
        "event": "summary",
        "files": len(found.files),
        "scripts": len(found.scripts),
        "programs": programs,
    }
