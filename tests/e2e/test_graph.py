"""The build graph: which files are inputs of which scripts, and what became of the programs."""

from support import scale
from support.project import NewProject

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
    *nodes, _ = project.run(*words, "--programs").events
    assert [node["inputs"] for node in nodes if node["event"] == "script"] == [
        mine["inputs"],
        plain["inputs"],
    ], "the same when the plan is remembered"
    programs = {node["label"]: node for node in nodes if node["event"] == "program"}
    assert {label: node["status"] for label, node in programs.items()} == {
        "mixed/0 cpu": "built",
        "mixed/1 cpu": "built",
        "plain/0 cpu": "built",
        "plain/1 cpu": "failed",
    }
    sizes = {node["name"]: node["library"] for node in nodes if node["event"] == "script"}
    assert sizes["mixed cpu"] > sizes["plain cpu"] > 0
    assert programs["plain/1 cpu"]["values"] == {"unroll": 2}
    assert {node["hash"] for node in programs.values()} == set(project.programs)

    drawn = project.run("graph", "plain", "--programs").out
    assert '"palegreen">1<BR/>built</TD><TD BGCOLOR="lightcoral">1<BR/>failed<' in drawn
    assert drawn.count(" -> ") == 4
    assert "mixed" not in drawn
    assert 'did you mean "plain"?' in project.run("graph", "plane", status=2).err
