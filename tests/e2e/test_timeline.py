"""What a build keeps of when everything ran, as `report --json` prints it."""

from typing import Any

import pytest

from support import scale
from support.nvcc_journal import FakeCuda
from support.project import NewProject, Project


def timeline(project: Project) -> dict[str, Any]:
    """The line of `report --json`."""
    events = project.run("report", "--json").events
    (line,) = (event for event in events if event["event"] == "timeline")
    return line


@pytest.fixture
def built(new_project: NewProject, fake_cuda: FakeCuda) -> Project:
    """Twelve programs for a GPU, built four at a time."""
    text = scale.manifest(scale.script(target="gpu", schedules=12))
    project = new_project(text, **fake_cuda.environment)
    project.build("-j", "4")
    return project


def test_every_compile_is_in_the_timeline(built: Project) -> None:
    line = timeline(built)
    assert {attempt["hash"] for attempt in line["attempts"]} == set(built.programs)
    for attempt in line["attempts"]:
        assert line["planned"] <= attempt["start"] < attempt["end"] <= line["seconds"]
        assert attempt["end"] - attempt["start"] >= attempt["seconds"] > 0
        assert (attempt["status"], attempt["elsewhere"]) == ("built", "")
    assert line["jobs"] == 4


def test_a_build_that_fails_leaves_its_times_and_one_with_nothing_to_do_none(project: Project):
    project.build()
    began = timeline(project)["began"]
    project.build()
    assert timeline(project)["began"] == began
    project.edit("kernels/scale.cu.j2", "extern", "mistake extern")
    project.run("build", status=1)
    (*_, last) = timeline(project)["attempts"]
    assert last["status"] == "failed"
    assert last["reason"]
    # The failure is no longer the last build when an edit is taken back, which compiles nothing.
    project.edit("kernels/scale.cu.j2", "mistake extern", "extern")
    project.build()
    events = project.run("report", "--json").events
    assert "timeline" not in {event["event"] for event in events}
