"""The graph as Graphviz reads it: every name in quotes, whatever it is."""

import re
import shutil
import subprocess

import pytest

from tilusbuild.builder.graph import (
    MAX_NAMES,
    MAX_NODES,
    FileNode,
    Graph,
    ProgramNode,
    ScriptNode,
    dot,
)
from tilusbuild.status import Status


def test_files_lead_to_scripts_and_these_to_programs() -> None:
    statuses = {"built": 1, "failed": 0, "pruned": 0, "missing": 2}
    graph = Graph(
        "p",
        [FileNode("tilus.toml", "manifest"), FileNode("k.cu.j2", "template")],
        [ScriptNode("mm", "h100", "sm_90a", ("tilus.toml", "k.cu.j2"), statuses, 26_000)],
        [ProgramNode("ab12", "mm/0 h100", Status.BUILT, {"tile": 16, "fast": True}, ("mm h100",))],
    )
    numbers = (
        '<TR><TD COLSPAN="2"><B>h100</B> (sm_90a)<BR/>3 programs</TD></TR>'
        '<TR><TD BGCOLOR="palegreen">1<BR/>built</TD><TD BGCOLOR="white">2<BR/>to compile</TD></TR>'
        '<TR><TD COLSPAN="2">26.0 kB of libraries</TD></TR>'
    )
    lines = dot(graph).splitlines()
    assert lines[3:6] == [
        '  "file tilus.toml" [label="tilus.toml", shape=folder];',
        '  "file tilus.toml" -> "script mm h100";',
        '  "file k.cu.j2" [label="k.cu.j2", shape=note];',
    ]
    assert lines[7] == '  subgraph "cluster mm" {'
    assert numbers in lines[9]
    assert lines[11:] == [
        (
            r'  "program ab12" [label="mm/0 h100\nbuilt", tooltip="tile=16, fast=true"'
            ", style=filled, fillcolor=palegreen];"
        ),
        '  "script mm h100" -> "program ab12";',
        "}",
    ]


def test_files_of_the_same_readers_are_one_node_and_what_all_targets_read_one_edge() -> None:
    headers = [FileNode(f"{n}.h", "header") for n in range(300)]
    inputs = tuple(each.path for each in headers)
    scripts = [ScriptNode("mm", name, name, inputs, {"built": 9}) for name in ("a", "b", "c")]
    scripts.append(ScriptNode("other", "a", "a", inputs[:1], {"built": 9}))
    text = dot(Graph("p", headers, scripts, []))
    assert text.count('"file ') == 2 + 3, "two nodes, three edges"
    assert r"1.h\n2.h" in text
    assert f"… and {299 - MAX_NAMES} more" in text
    assert '"file 1.h" -> "script mm b" [lhead="cluster mm"];' in text


def test_a_name_cannot_end_its_quotes_or_its_line() -> None:
    names = ['"]; x [y="', "a\\", "two\nlines", "\udcff"]
    files = [FileNode(name, "header") for name in names]
    scripts = [ScriptNode(f"s{n}", "<a>", "a&", (name,), {}) for n, name in enumerate(names)]
    lines = dot(Graph("p", files, scripts, [])).splitlines()
    assert "<B>&lt;a&gt;</B> (a&amp;)" in "".join(lines)
    assert lines[3:11:2] == [
        r'  "file \"]; x [y=\"" [label="\"]; x [y=\"", shape=note];',
        r'  "file a\\" [label="a\\", shape=note];',
        r'  "file two\\nlines" [label="two\\nlines", shape=note];',
        r'  "file \\xff" [label="\\xff", shape=note];',
    ]


def crowd(count: int) -> Graph:
    """One script with so many programs."""
    programs = [
        ProgramNode(f"{i:064x}", f"mm/{i} h100", Status.BUILT, {"tile": i}, ("mm h100",))
        for i in range(count)
    ]
    script = ScriptNode("mm", "h100", "sm_90a", (), {"built": count})
    return Graph("p", [], [script], programs)


def test_many_programs_are_the_cells_of_one_table() -> None:
    few, many = dot(crowd(MAX_NODES)), dot(crowd(400))
    assert (few.count('"program '), few.count("<TD HREF")) == (2 * MAX_NODES, 0)
    assert (many.count('"program '), many.count("<TD HREF")) == (0, 400)


def test_a_table_is_no_wider_than_a_screen_and_no_higher() -> None:
    if not shutil.which("dot"):
        pytest.skip("Graphviz is not installed")
    drawn = subprocess.run(
        ["dot", "-Tsvg"], input=dot(crowd(400)).encode(), capture_output=True, check=True
    )
    size = re.search(rb'<svg width="(\d+)pt" height="(\d+)pt"', drawn.stdout)
    assert size is not None
    assert max(map(int, size.groups())) < 1600
