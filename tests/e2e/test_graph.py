"""The build graph: which files are inputs of which scripts, and what became of the programs."""

from typing import Any

from support import scale
from support.nvcc_journal import FakeCuda
from support.project import NewProject, Project

MACROS = "{% macro product() %}a * x[i]{% endmacro %}"


def test_the_graph_before_and_after_a_build(new_project: NewProject):
    """Given two scripts, one of which asks for a file of macros and reaches two headers."""
    template = scale.TEMPLATE.replace(
        "{# y", '{% from "kernels/macros.j2" import product %}\n#include "factor.h"\n{# y'
    )
    mixed = scale.script("mixed").replace('["cpu"]', '["cpu", "gpu"]')
    broken = scale.TEMPLATE.replace("constexpr", "{{ 'x' if unroll == 2 }}constexpr")
    project = new_project(
        scale.manifest(mixed, scale.script("plain")),
        {
            "kernels/mixed.cu.j2": template,
            "kernels/macros.j2": MACROS,
            "kernels/factor.h": '#include "deeper.h"\n',
            "kernels/deeper.h": "",
            "kernels/plain.cu.j2": broken,
        },
    )
    words = ("graph", "--json", "--target", "cpu")
    *nodes, summary = project.run(*words).events
    assert {node["path"]: node["kind"] for node in nodes if node["event"] == "file"} == {
        "tilus.toml": "manifest",
        "kernels/mixed.cu.j2": "template",
        "kernels/macros.j2": "template",
        "kernels/factor.h": "header",
        "kernels/deeper.h": "header",
        "kernels/plain.cu.j2": "template",
    }
    mine, plain = (node for node in nodes if node["event"] == "script")
    assert plain["inputs"] == ["tilus.toml", "kernels/plain.cu.j2"]
    assert len(mine["inputs"]) == 5
    assert (plain["programs"], plain["missing"]) == (2, 2)
    assert summary == {"event": "summary", "files": 6, "scripts": 2, "programs": 4}
    assert not project.cache.exists(), "looking writes nothing"

    project.build("--target", "cpu")
    *nodes, _ = project.run(*words).events
    scripts = {node["name"]: node for node in nodes if node["event"] == "script"}
    assert [node["inputs"] for node in scripts.values()] == [mine["inputs"], plain["inputs"]], (
        "the same when the plan is remembered"
    )
    assert {name: (node["built"], node["failed"]) for name, node in scripts.items()} == {
        "mixed cpu": (2, 0),
        "plain cpu": (1, 1),
    }
    assert scripts["mixed cpu"]["library"] > scripts["plain cpu"]["library"] > 0

    drawn = project.run("graph", "plain").out
    assert '"palegreen">1<BR/>built</TD><TD BGCOLOR="lightcoral">1<BR/>failed<' in drawn
    assert drawn.count(" -> ") == 2
    assert "mixed" not in drawn
    assert 'did you mean "plain"?' in project.run("graph", "plane", status=2).err


# What the builds of a project cost, as `tilusbuild report` has it.
def told(events: list[dict[str, Any]]) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Scripts, programs and the summary of a report."""
    of = {kind: [e for e in events if e["event"] == kind] for kind in ("script", "program")}
    return of["script"], of["program"], events[-1]


def test_the_report_before_and_after_builds(project: Project):
    before = project.run("report", "--json")
    assert (before.summary["programs"], before.summary["timed"]) == (2, 0)
    assert before.summary["statuses"]["missing"] == 2
    assert "the compiles of 0 of 2 programs are remembered" in project.run("report").out
    assert not project.cache.exists(), "looking writes nothing"

    project.build()
    (script,), programs, summary = told(project.run("report", "--json").events)
    assert (script["script"], script["target"], script["timed"]) == ("scale", "cpu", 2)
    assert {program["hash"] for program in programs} == set(project.programs)
    for program in programs:
        assert program["seconds"] > 0
        assert program["peak_rss"] > 1_000_000
        assert program["library"] == len(project.libraries[program["hash"]])
    assert summary["seconds"] == script["seconds"]
    assert script["longest"] == max(program["seconds"] for program in programs)

    text = project.run("report", "--top", "1").out
    assert "Slowest to compile" in text
    assert text.count("scale/") == 2, "the slowest, and the largest: none spills"
    assert "not a number of programs" in project.run("report", "--top", "-1", status=2).err


def test_registers_and_spills_of_a_gpus_programs(new_project: NewProject, fake_cuda: FakeCuda):
    project = new_project(scale.manifest(scale.script(target="gpu")), **fake_cuda.environment)
    project.build()
    _, (program, *_), _ = told(project.run("report", "--json").events)
    (usage,) = program["usages"]
    assert (usage["kernel"], usage["arch"]) == ("scale", "sm_80")
    assert usage["registers"] > 0
