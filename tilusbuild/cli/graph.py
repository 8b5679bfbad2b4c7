"""`tilusbuild graph [SCRIPT…]`: the build graph of a plan: files, and the scripts made of them, in
Graphviz' language or as JSON.

A script for one target is one node, whatever its constants, with the numbers of its programs; files
with the same readers are one node, so that the picture can be read at any size. Equal graphs give
equal texts. Nothing is written and no compiler runs.
"""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, TypeAlias

from msgspec import Struct

from tilusbuild.builder.project import Project
from tilusbuild.cache.entries import Entry, lookup, product_of
from tilusbuild.cli import options
from tilusbuild.cli.arguments import SelectionArgs, Verb
from tilusbuild.cli.options import CountsLine, emit
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.planner import Plan, ProgramJob, jobs
from tilusbuild.render import templates_directory
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.report.text import amount, counted, one_line
from tilusbuild.status import KNOWN_IN_CACHE, Status


class FileNode(JsonLine, frozen=True):
    """An input of scripts. A path inside the project is relative to it."""

    event: ClassVar[str] = "file"
    path: str
    kind: str
    """"manifest", "template" or "header"."""


class ScriptNode(JsonLine, frozen=True):
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


class Graph(Struct, frozen=True):
    """Everything, in the manifest's order."""

    project: str
    files: Sequence[FileNode]
    scripts: Sequence[ScriptNode]


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
    counts = {"files": len(found.files), "scripts": len(found.scripts), "programs": plan.size}
    emit(CountsLine(counts))
    return 0


_Held: TypeAlias = Mapping[str, tuple[Status, int]]
"""What the cache has of each program: its status, and the bytes of its library."""


def graph(project: Project, plan: Plan) -> Graph:
    """Return the graph of a plan. Reads only."""
    held: dict[str, tuple[Status, int]] = {}
    groups: dict[str, list[ProgramJob]] = {}
    for job in jobs(plan):
        groups.setdefault(_name(job), []).append(job)
        if job.hash not in held:
            held[job.hash] = _held(lookup(project.cache, job.hash))
    manifest = FileNode(_shown(project.manifest.path, project.manifest.root), "manifest")
    files = {manifest.path: manifest}
    scripts = []
    for group in groups.values():
        inputs = _inputs({job.planned for job in group}, project.manifest.root)
        files |= {file.path: file for file in inputs}
        names = (manifest.path, *(file.path for file in inputs))
        scripts.append(_script(group, names, held))
    return Graph(plan.project, list(files.values()), scripts)


def _name(job: ProgramJob) -> str:
    return f"{job.script} {job.planned.target.name}"


def _held(entry: Entry | None) -> tuple[Status, int]:
    if entry is None:
        return Status.MISSING, 0
    return entry.status, product_of(entry.meta).size or 0


def _script(group: Sequence[ProgramJob], inputs: tuple[str, ...], held: _Held) -> ScriptNode:
    statuses, sizes = zip(*(held[program] for program in {job.hash for job in group}), strict=True)
    target = group[0].planned.target
    return ScriptNode(
        name=_name(group[0]),
        script=group[0].script,
        target=target.name,
        arch=target.arch,
        programs=len(statuses),
        inputs=inputs,
        library=sum(sizes),
        **{status: statuses.count(status) for status in KNOWN_IN_CACHE},
    )


def _inputs(instances: Collection[PlannedInstance], root: str) -> list[FileNode]:
    """Return the files among the inputs, templates first. The rest are places where one was looked
    for."""
    templates = {path for instance in instances for path in instance.inputs.templates}
    headers = {path for instance in instances for path in instance.inputs.paths} - templates
    kinds = (("template", templates), ("header", headers))
    return [
        FileNode(_shown(path, root), kind)
        for kind, paths in kinds
        for path in sorted(paths)
        if os.path.isfile(path)
    ]


def _shown(path: str, root: str) -> str:
    relative = os.path.relpath(path, root)
    return path if relative.startswith("../") else relative


MAX_NAMES = 8
"""Files that a node names; the rest are counted."""

_SHAPES = {"manifest": "folder", "template": "note", "header": "note"}
_COLOURS = {
    Status.BUILT: "palegreen",
    Status.FAILED: "lightcoral",
    Status.PRUNED: "khaki",
    Status.MISSING: "white",
}


def dot(graph: Graph) -> str:
    """Return the graph for Graphviz."""
    return "".join(f"{line}\n" for line in _lines(graph))


def _lines(graph: Graph) -> Iterator[str]:
    yield f"digraph {_quoted(graph.project)} {{"
    yield "  rankdir=LR; ranksep=1; compound=true;"
    yield '  node [shape=box, fontname="Helvetica,sans-serif", fontsize=12];'
    clusters: dict[str, list[ScriptNode]] = {}
    for script in graph.scripts:
        clusters.setdefault(script.script, []).append(script)
    yield from _files(graph, clusters)
    for name, targets in clusters.items():
        yield f"  subgraph {_quoted(f'cluster {name}')} {{"
        label = _quoted(name)
        yield f'    label={label}; style=rounded; color=gray; fontname="Helvetica,sans-serif";'
        for target in targets:
            yield f"    {_script_id(target.name)} [shape=plain, label=<{_numbers(target)}>];"
        yield "  }"
    yield "}"


def _files(graph: Graph, clusters: dict[str, list[ScriptNode]]) -> Iterator[str]:
    """Yield a node for the files of one kind that the same scripts read, and its edges."""
    ours = os.path.join(templates_directory(), "")
    readers: dict[str, list[str]] = {file.path: [] for file in graph.files}
    for script in graph.scripts:
        for path in script.inputs:
            readers[path].append(script.name)
    groups: dict[tuple[str, tuple[str, ...]], list[FileNode]] = {}
    for file in graph.files:
        groups.setdefault((file.kind, tuple(readers[file.path])), []).append(file)
    for (kind, names), files in groups.items():
        # Our own templates are named as templates include them, wherever we are installed.
        shown = [file.path.removeprefix(ours) for file in files[:MAX_NAMES]]
        if len(files) > MAX_NAMES:
            shown.append(f"… and {len(files) - MAX_NAMES} more")
        node = _quoted(f"file {files[0].path}")
        yield f"  {node} [label={_quoted(*shown)}, shape={_SHAPES[kind]}];"
        for cluster, targets in clusters.items():
            read = [target.name for target in targets if target.name in names]
            if len(read) == len(targets) > 1:
                middle = _script_id(read[len(read) // 2])
                yield f"  {node} -> {middle} [lhead={_quoted(f'cluster {cluster}')}];"
            else:
                yield from (f"  {node} -> {_script_id(name)};" for name in read)


def _numbers(script: ScriptNode) -> str:
    """Return what is known of a script for a target, as a table."""
    known = [(status, number) for status in KNOWN_IN_CACHE if (number := getattr(script, status))]
    arch = "" if script.target == script.arch else f" ({_text(script.arch)})"
    wide = f'<TD COLSPAN="{max(1, len(known))}">'
    rows = [f"{wide}<B>{_text(script.target)}</B>{arch}<BR/>{counted(script.programs, 'program')}"]
    cells = (
        f'<TD BGCOLOR="{_COLOURS[status]}">{number:,}<BR/>'
        f"{'to compile' if status == Status.MISSING else status}"
        for status, number in known
    )
    rows += ["</TD>".join(cells)] if known else []
    rows += [f"{wide}{amount(script.library)} of libraries"] if script.library else []
    body = "".join(f"<TR>{row}</TD></TR>" for row in rows)
    head = '<TABLE BORDER="0" CELLBORDER="1" CELLSPACING="0" CELLPADDING="6" COLOR="gray40"'
    return f'{head} BGCOLOR="white">{body}</TABLE>'


def _script_id(name: str) -> str:
    return _quoted(f"script {name}")


def _text(text: str) -> str:
    """Return a text for a label that is like HTML."""
    return html.escape(one_line(text))


def _quoted(*lines: str) -> str:
    """Return a string of DOT, in which the quote and, in labels, the backslash have a meaning."""
    escaped = (one_line(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    text = "\\n".join(escaped)
    return '"' + text.encode("utf-8", "backslashreplace").decode("utf-8") + '"'


VERB = Verb(SelectionArgs, run, (FileNode, ScriptNode, CountsLine))
