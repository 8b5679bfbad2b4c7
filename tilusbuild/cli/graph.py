"""`tilusbuild graph [SCRIPT…]`: the build graph, for Graphviz or as JSON."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, ClassVar

from tilusbuild.builder.graph import FileNode, Graph, ProgramNode, dot, graph
from tilusbuild.cli import options
from tilusbuild.cli.arguments import SelectionArgs, Verb, flag, option
from tilusbuild.cli.options import CountsLine, emit
from tilusbuild.report.jsonl import JsonLine

if TYPE_CHECKING:
    from tilusbuild.builder.project import Project


class GraphArgs(SelectionArgs, frozen=True, kw_only=True):
    """Which part of the project, and in how much detail."""

    programs: bool = flag("--programs", help="show each program, too")
    svg: str | None = option("--svg", metavar="FILE", help="draw it with Graphviz into FILE")


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
        if arguments.svg is not None:
            _draw(arguments.svg, dot(found), project)
    if arguments.json:
        _emit(found, plan.size)
    elif arguments.svg is None:
        sys.stdout.write(dot(found))
    return 0


def _draw(path: str, text: str, project: Project) -> None:
    """Draw a graph with Graphviz. Raises `InputError`."""
    from tilusbuild.errors import input_error
    from tilusbuild.process.base import Command
    from tilusbuild.runtime.regular import read_bytes
    from tilusbuild.state.temporary import TemporaryDirectory

    program = shutil.which("dot")
    if program is None:
        raise input_error(
            "--svg needs Graphviz, and there is no `dot` on PATH",
            hint="`apt-get install graphviz`, or draw the output of `graph` elsewhere",
        )
    with TemporaryDirectory("graph") as made:
        directory = made.path
        for name in ("graph.dot", "graph.svg"):
            with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
                file.write(text if name.endswith("dot") else "")
        words = (program, "-Tsvg", "graph.dot", "-o", "graph.svg")
        finished = project.runner.run(Command(words, directory, dict(os.environ)))
        drawn = read_bytes(os.path.join(directory, "graph.svg"))
    if finished.status != 0 or not drawn:
        said = finished.output.decode(errors="replace").strip()
        raise input_error(f"Graphviz drew nothing: {said or f'status {finished.status}'}")
    options.write_to(path, drawn)


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
