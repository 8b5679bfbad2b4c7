"""`build --profile-headers`: a run beside the build, which it leaves as it is."""

from __future__ import annotations

import json

import pytest

from support import scale
from support.project import NewProject, Project


def headers_of(project: Project, *words: str) -> list[dict[str, object]]:
    """The lines on headers of a build."""
    ran = project.run("build", "--json", "--profile-headers", *words)
    lines = map(json.loads, ran.out.splitlines())
    return [line for line in lines if line["event"] == "headers"]


@pytest.mark.nvcc
@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
def test_the_headers_of_a_kernel(new_project: NewProject, compiler: str) -> None:
    project = new_project(scale.manifest(scale.script(target="gpu", schedules=2)))
    scale.include_headers(project)
    project.edit("include/c.h", "constexpr", "#include <cuda_fp16.h>\nconstexpr")
    words = ("--device-compiler", compiler)
    project.build(*words)
    before = {path: path.read_bytes() for path in project.cache.glob("programs/**/*.*")}
    (line,) = headers_of(project, *words, "--trace", "trace.json")
    assert (line["script"], line["program"], line["problem"]) == ("scale", "scale/0 gpu", None)
    costs = {cost["header"].strip("<>").split("/")[-1]: cost for cost in line["headers"]}  # type: ignore[attr-defined]
    assert costs["b.h"]["whole"] >= costs["c.h"]["whole"] >= costs["cuda_fp16.h"]["whole"] > 0
    assert costs["b.h"]["own"] < costs["b.h"]["whole"]
    assert line["phases"]["headers"] > 0  # type: ignore[index]
    trace = json.loads((project.directory / "trace.json").read_text())["traceEvents"]
    rows = [each["args"]["name"] for each in trace if each["name"] == "thread_name"]
    assert "headers of scale/0 gpu" in rows
    assert any(each.get("cat") == "header" and "c.h" in each["name"] for each in trace)
    after = {path: path.read_bytes() for path in project.cache.glob("programs/**/*.*")}
    assert after == before
    assert project.compiled(*words) == 0
    shown = project.run("build", "--profile-headers", *words).out
    assert shown.startswith("scale/0 gpu: ")
    assert "without its includes" in shown


def test_a_compiler_without_a_report_says_so(new_project: NewProject) -> None:
    project = new_project(scale.manifest(scale.script(schedules=1)))
    shown = project.run("build", "--profile-headers").out
    assert shown == "scale/0 cpu: no times of headers: g++ reports no times\n"
    assert project.run("build", "--profile-headers").out == shown  # not answered from the record
    assert project.run("build", "--profile-headers", "--dry-run").out == ""
