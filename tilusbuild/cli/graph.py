"""`tilusbuild graph [SCRIPT…]`: the build graph, for Graphviz or as JSON."""

from __future__ import annotations

import sys
from typing import ClassVar

from tilusbuild.builder.graph import FileNode, Graph, ProgramNode, dot, graph
from tilusbuild.cli import options
from tilusbuild.cli.arguments import SelectionArgs, Verb, flag
from tilusbuild.cli.options import CountsLine, emit
from tilusbuild.report.jsonl import JsonLine


class GraphArgs(SelectionArgs, frozen=True, kw_only=True):
    """Which part of the project, and in how much detail."""

    programs: bool = flag("--programs", help="show each program, too")


class GraphScriptLine(JsonLine, frozen=True):
    """A script for one target: how many programs have which status, and the paths of its inputs."""

    event: ClassVar[str] = "script"
    name: str
    script: str
    target: str
    arch: str
    programs: int
    built: int
    failed: int
    pruned: int
    missing: int
    inputs: tuple[str, ...]
    library: int
    """Bytes of the libraries together."""


def run(arguments: GraphArgs) -> int:
    """Print the graph. Runs no compiler and writes nothing to the tree."""
    with options.project(arguments) as project:
        plan = project.plan(options.selected(arguments, project))
        found = graph(project, plan, programs=arguments.programs)
    if arguments.json:
        _emit(found, plan.size)
    else:
        sys.stdout.write(dot(found))
    return 0


def _emit(found: Graph, programs: int) -> None:
    for file in found.files:
        emit(file)
    for each in found.scripts:
        emit(
            GraphScriptLine(
                name=each.name,
                script=each.script,
                target=each.target,
                arch=each.arch,
                programs=each.programs,
                inputs=each.inputs,
                library=each.library,
                **each.statuses,
            )
        )
    for program in found.programs:
        emit(program)
    counts = {"files": len(found.files), "scripts": len(found.scripts), "programs": programs}
    emit(CountsLine(counts))


VERB = Verb(GraphArgs, run, (FileNode, GraphScriptLine, ProgramNode, CountsLine))
