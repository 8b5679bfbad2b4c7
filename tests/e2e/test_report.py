"""What the builds of a project cost, as `tilusbuild report` has it."""

from typing import Any

from support import scale
from support.nvcc_journal import FakeCuda
from support.project import NewProject, Project


def split_report(events: list[dict[str, Any]]) -> tuple[list[Any], list[Any], dict[str, Any]]:
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
    (script,), programs, summary = split_report(project.run("report", "--json").events)
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
    _, (program, *_), _ = split_report(project.run("report", "--json").events)
    (usage,) = program["usages"]
    assert (usage["kernel"], usage["arch"]) == ("scale", "sm_80")
    assert usage["registers"] > 0
