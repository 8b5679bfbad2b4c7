"""The graph as Graphviz reads it: every name in quotes, whatever it is."""

from __future__ import annotations

from tilusbuild.builder.graph import FileNode, Graph, ProgramNode, ScriptNode, dot
from tilusbuild.status import Status


def test_files_lead_to_scripts_and_these_to_programs() -> None:
    statuses = {"built": 1, "failed": 0, "pruned": 0, "missing": 2}
    graph = Graph(
        "p",
        [FileNode("tilus.toml", "manifest"), FileNode("k.cu.j2", "template")],
        [ScriptNode("mm", "h100", "sm_90a", ("tilus.toml", "k.cu.j2"), statuses)],
        [ProgramNode("ab12", Status.BUILT, "mm/0 h100", {"tile": 16, "fast": True}, ("mm h100",))],
    )
    assert dot(graph).splitlines() == [
        'digraph "p" {',
        "  rankdir=LR;",
        "  node [shape=box];",
        '  "file tilus.toml" [label="tilus.toml", shape=folder];',
        '  "file k.cu.j2" [label="k.cu.j2", shape=note];',
        (
            r'  "script mm h100" [label="mm\nh100 (sm_90a)\n3 programs\n1 built, 2 to compile"'
            ", style=rounded];"
        ),
        '  "file tilus.toml" -> "script mm h100";',
        '  "file k.cu.j2" -> "script mm h100";',
        (
            r'  "program ab12" [label="mm/0 h100\nbuilt", tooltip="tile=16, fast=true"'
            ", style=filled, fillcolor=palegreen];"
        ),
        '  "script mm h100" -> "program ab12";',
        "}",
    ]


def test_a_name_cannot_end_its_quotes_or_its_line() -> None:
    names = ['"]; x [y="', "a\\", "two\nlines", "\udcff"]
    lines = dot(Graph("p", [FileNode(name, "header") for name in names], [], [])).splitlines()
    assert lines[3:-1] == [
        r'  "file \"]; x [y=\"" [label="\"]; x [y=\"", shape=note];',
        r'  "file a\\" [label="a\\", shape=note];',
        r'  "file two\\nlines" [label="two\\nlines", shape=note];',
        r'  "file \\xff" [label="\\xff", shape=note];',
    ]
