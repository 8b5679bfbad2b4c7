"""The build graph of a plan, and its text for Graphviz: files, the scripts made of them, programs.

A script for one target is one node, whatever its constants, so that a graph of ten thousand
programs can still be read; its programs are nodes of their own only on request. Equal graphs give
equal texts. Nothing is written and no compiler runs.
"""

from __future__ import annotations

import html
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tilusbuild.builder.project import Project
from tilusbuild.expr import Value
from tilusbuild.plan.planner import Plan, ProgramJob, jobs
from tilusbuild.plan.script_instance import ScriptInstance
from tilusbuild.report.text import counted, one_line
from tilusbuild.status import KNOWN_IN_CACHE, Status
from tilusbuild.table import cell_text

Kind = Literal["manifest", "template", "header"]

_SHAPES = {"manifest": "folder", "template": "note", "header": "note"}
_COLOURS = {
    Status.BUILT: "palegreen",
    Status.FAILED: "lightcoral",
    Status.PRUNED: "khaki",
    Status.MISSING: "white",
}


MAX_NODES = 40
"""Programs of a script that are drawn as nodes; more are drawn as one table."""


@dataclass(frozen=True, slots=True)
class FileNode:
    """An input of scripts. A path inside the project is relative to it."""

    path: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class ScriptNode:
    """A script for one target: the paths of its inputs, and how many programs have which status."""

    script: str
    target: str
    arch: str
    inputs: tuple[str, ...]
    statuses: Mapping[str, int]

    @property
    def name(self) -> str:
        return f"{self.script} {self.target}"

    @property
    def programs(self) -> int:
        return sum(self.statuses.values())


@dataclass(frozen=True, slots=True)
class ProgramNode:
    """A program, and the names of the scripts that it is a schedule of."""

    hash: str
    status: Status
    label: str
    values: Mapping[str, Value]
    """Constants, parameters and derived values."""
    scripts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """Everything, in the manifest's order; `programs` are empty when they were not asked for."""

    project: str
    files: Sequence[FileNode]
    scripts: Sequence[ScriptNode]
    programs: Sequence[ProgramNode]


def graph(project: Project, plan: Plan, *, programs: bool) -> Graph:
    """Return the graph of a plan, down to each program or to the scripts. Reads only."""
    statuses: dict[str, Status] = {}
    groups: dict[str, list[ProgramJob]] = {}
    for job in jobs(plan):
        groups.setdefault(_name(job), []).append(job)
        if job.hash not in statuses:
            entry = project.cache.lookup(job.hash)
            statuses[job.hash] = entry.status if entry else Status.MISSING
    manifest = FileNode(_shown(project.manifest.path, project.manifest.root), "manifest")
    files = {manifest.path: manifest}
    scripts = []
    for group in groups.values():
        inputs = _inputs({job.script_instance for job in group}, project.manifest.root)
        files |= {file.path: file for file in inputs}
        names = (manifest.path, *(file.path for file in inputs))
        scripts.append(_script(group, names, statuses))
    nodes = _programs(groups, statuses) if programs else []
    return Graph(plan.project, list(files.values()), scripts, nodes)


def _name(job: ProgramJob) -> str:
    return f"{job.script} {job.planned.target.name}"


def _script(
    group: Sequence[ProgramJob], inputs: tuple[str, ...], statuses: dict[str, Status]
) -> ScriptNode:
    found = [statuses[program] for program in {job.hash for job in group}]
    target = group[0].planned.target
    counts: dict[str, int] = {status: found.count(status) for status in KNOWN_IN_CACHE}
    return ScriptNode(group[0].script, target.name, target.arch, inputs, counts)


def _programs(
    groups: dict[str, list[ProgramJob]], statuses: dict[str, Status]
) -> list[ProgramNode]:
    owners: dict[str, dict[str, ProgramJob]] = {}
    for name, group in groups.items():
        for job in group:
            owners.setdefault(job.hash, {}).setdefault(name, job)
    return [_program(program, statuses[program], by) for program, by in owners.items()]


def _program(program: str, status: Status, by: dict[str, ProgramJob]) -> ProgramNode:
    first = next(iter(by.values()))
    schedule = first.schedule
    return ProgramNode(
        program, status, first.label, first.script_instance.values(schedule), tuple(by)
    )


def _inputs(script_instances: Iterable[ScriptInstance], root: str) -> list[FileNode]:
    """Return the files among the inputs, templates first. The rest are places where one was looked
    for."""
    templates = {path for script_instance in script_instances for path in script_instance.templates}
    headers = {
        path for script_instance in script_instances for path in script_instance.inputs
    } - templates
    kinds: tuple[tuple[Kind, set[str]], ...] = (("template", templates), ("header", headers))
    return [
        FileNode(_shown(path, root), kind)
        for kind, paths in kinds
        for path in sorted(paths)
        if os.path.isfile(path)
    ]


def _shown(path: str, root: str) -> str:
    relative = os.path.relpath(path, root)
    return path if relative.startswith("../") else relative


# As DOT.


def dot(graph: Graph) -> str:
    """Return the graph for Graphviz."""
    return "".join(f"{line}\n" for line in _lines(graph))


def _lines(graph: Graph) -> Iterator[str]:
    yield f"digraph {_quoted(graph.project)} {{"
    yield "  rankdir=LR;"
    yield "  node [shape=box];"
    for file in graph.files:
        yield f"  {_file_id(file.path)} [label={_quoted(file.path)}, shape={_SHAPES[file.kind]}];"
    for script in graph.scripts:
        yield f"  {_script_id(script.name)} [label={_label(script)}, style=rounded];"
        for path in script.inputs:
            yield f"  {_file_id(path)} -> {_script_id(script.name)};"
    crowded = {script.name for script in graph.scripts if script.programs > MAX_NODES}
    for name in crowded:
        yield from _grid(name, [each for each in graph.programs if name in each.scripts])
    for program in graph.programs:
        if crowded.issuperset(program.scripts):
            continue
        node = _quoted(f"program {program.hash}")
        label = _quoted(program.label, program.status)
        values = _quoted(", ".join(f"{n}={cell_text(v)}" for n, v in program.values.items()))
        look = f"style=filled, fillcolor={_COLOURS[program.status]}"
        yield f"  {node} [label={label}, tooltip={values}, {look}];"
        for name in program.scripts:
            if name not in crowded:
                yield f"  {_script_id(name)} -> {node};"
    yield "}"


def _grid(name: str, programs: Sequence[ProgramNode]) -> Iterator[str]:
    """Yield one node with a cell for each program, about twice as wide as high: as nodes, hundreds
    would be one column that nobody can look at."""
    columns = math.ceil(math.sqrt(len(programs) * 2))
    yield f"  {_quoted(f'programs {name}')} [shape=plain, label=<"
    yield '    <TABLE BORDER="0" CELLBORDER="1" COLOR="gray" CELLSPACING="1">'
    for start in range(0, len(programs), columns):
        yield "    <TR>" + "".join(map(_cell, programs[start : start + columns])) + "</TR>"
    yield "    </TABLE>>];"
    yield f"  {_script_id(name)} -> {_quoted(f'programs {name}')};"


def _cell(program: ProgramNode) -> str:
    number = re.search(r"/(\d+)", program.label)
    values = ", ".join(f"{n}={cell_text(v)}" for n, v in program.values.items())
    tooltip = html.escape(one_line(f"{program.label}: {program.status}; {values}"))
    colour = _COLOURS[program.status]
    # Graphviz shows the tooltip of a cell only where the cell is a link.
    return (
        f'<TD HREF="#" TOOLTIP="{tooltip}" BGCOLOR="{colour}">{number[1] if number else "-"}</TD>'
    )


def _file_id(path: str) -> str:
    return _quoted(f"file {path}")


def _script_id(name: str) -> str:
    return _quoted(f"script {name}")


def _label(script: ScriptNode) -> str:
    known = ", ".join(
        f"{number} {'to compile' if status == 'missing' else status}"
        for status, number in script.statuses.items()
        if number
    )
    target = script.target if script.target == script.arch else f"{script.target} ({script.arch})"
    return _quoted(script.script, target, counted(script.programs, "program"), known)


def _quoted(*lines: str) -> str:
    """Return a string of DOT. In one only the quote and, in labels, the backslash have a
    meaning."""
    escaped = (one_line(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    text = "\\n".join(escaped)
    return '"' + text.encode("utf-8", "backslashreplace").decode("utf-8") + '"'
