"""The build graph as values, and as DOT: files, the scripts that they are inputs of, programs.

A script for one target is one node, whatever its constants, so that a graph of ten thousand
programs can still be looked at; its programs are nodes of their own only where they were asked for.
Equal graphs print equal texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tilusbuild.expr import Value
from tilusbuild.report.text import counted, one_line
from tilusbuild.status import Status
from tilusbuild.table import cell_text

Kind = Literal["manifest", "template", "header"]

_SHAPES = {"manifest": "folder", "template": "note", "header": "note"}
_COLOURS = {
    Status.BUILT: "palegreen",
    Status.FAILED: "lightcoral",
    Status.PRUNED: "khaki",
    Status.MISSING: "white",
}


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


def dot(graph: Graph) -> str:
    """The graph for Graphviz."""
    return "".join(f"{line}\n" for line in _lines(graph))


def _lines(graph: Graph) -> Iterator[str]:
    yield f"digraph {_quoted(graph.project)} {{"
    yield "  rankdir=LR;"
    yield "  node [shape=box];"
    for file in graph.files:
        yield f"  {_file(file.path)} [label={_quoted(file.path)}, shape={_SHAPES[file.kind]}];"
    for script in graph.scripts:
        yield f"  {_script(script.name)} [label={_label(script)}, style=rounded];"
        for path in script.inputs:
            yield f"  {_file(path)} -> {_script(script.name)};"
    for program in graph.programs:
        node = _quoted(f"program {program.hash}")
        label = _quoted(program.label, program.status)
        values = _quoted(", ".join(f"{n}={cell_text(v)}" for n, v in program.values.items()))
        look = f"style=filled, fillcolor={_COLOURS[program.status]}"
        yield f"  {node} [label={label}, tooltip={values}, {look}];"
        for name in program.scripts:
            yield f"  {_script(name)} -> {node};"
    yield "}"


def _file(path: str) -> str:
    return _quoted(f"file {path}")


def _script(name: str) -> str:
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
    """A string of DOT. In one only the quote and, in labels, the backslash have a meaning."""
    escaped = (one_line(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    text = "\\n".join(escaped)
    return '"' + text.encode("utf-8", "backslashreplace").decode("utf-8") + '"'
