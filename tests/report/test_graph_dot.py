"""The graph as Graphviz reads it: every name in quotes, whatever it is."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tilusbuild.builder.graph import MAX_NODES, FileNode, Graph, ProgramNode, ScriptNode, dot
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


def crowd(count: int) -> Graph:
    """One script with so many programs."""
    programs = [
        ProgramNode(f"{i:064x}", Status.BUILT, f"mm/{i} h100", {"tile": i}, ("mm h100",))
        for i in range(count)
    ]
    script = ScriptNode("mm", "h100", "sm_90a", (), {"built": count})
    return Graph("p", [], [script], programs)


def test_many_programs_are_the_cells_of_one_table() -> None:
    few, many = dot(crowd(MAX_NODES)), dot(crowd(400))
    assert (few.count('"program '), few.count("<TD")) == (2 * MAX_NODES, 0)
    assert (many.count('"program '), many.count("<TD")) == (0, 400)


def test_a_table_is_no_wider_than_a_screen_and_no_higher() -> None:
    if not shutil.which("dot"):
        pytest.skip("Graphviz is not installed")
    drawn = subprocess.run(
        ["dot", "-Tsvg"], input=dot(crowd(400)).encode(), capture_output=True, check=True
    )
    size = re.search(rb'<svg width="(\d+)pt" height="(\d+)pt"', drawn.stdout)
    assert size is not None
    assert max(map(int, size.groups())) < 1600
