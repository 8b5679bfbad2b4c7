"""`tilusbuild graph [SCRIPT…]`: the build graph, for Graphviz or as JSON."""

from __future__ import annotations

import sys

from tilusbuild.builder.graph import FileNode, ScriptNode, dot, graph
from tilusbuild.cli import options
from tilusbuild.cli.arguments import SelectionArgs, Verb
from tilusbuild.cli.options import CountsLine, emit


def run(arguments: SelectionArgs) -> int:
    """Print the graph. Runs no compiler and writes nothing to the tree."""
    with options.project(arguments) as project:
        plan = project.plan(options.selected(arguments, project))
        found = graph(project, plan)
    if not arguments.json:
        sys.stdout.write(dot(found))
        return 0
    for node in (*found.files, *found.scripts):
        emit(node)
    emit(
        CountsLine(
            {"files": len(found.files), "scripts": len(found.scripts), "programs": plan.size}
        )
    )
    return 0


VERB = Verb(SelectionArgs, run, (FileNode, ScriptNode, CountsLine))
