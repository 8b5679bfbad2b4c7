"""What a build keeps of when everything ran, as `report --json` prints it."""

from typing import Any

import pytest

from support import scale
from support.nvcc_journal import FakeCuda
from support.project import NewProject, Project


def timeline(project: Project) -> dict[str, Any]:
    """The line of `report --json`."""
    found = project.run("report", "--json").events
    (line,) = (each for each in found if each["event"] == "timeline")
    return line


@pytest.fixture
def built(new_project: NewProject, fake_cuda: FakeCuda) -> Project:
    """Twelve programs for a GPU, built four at a time."""
    text = scale.manifest(scale.script(target="gpu", schedules=12))
    project = new_project(text, **fake_cuda.environment)
    project.build("-j", "4")
    return project


def test_every_compile_is_in_the_timeline(built: Project) -> None:
    found = timeline(built)
    assert {each["hash"] for each in found["attempts"]} == set(built.programs)
    for each in found["attempts"]:
        assert found["planned"] <= each["start"] < each["end"] <= found["seconds"]
        assert each["end"] - each["start"] >= each["seconds"] > 0
        assert (each["status"], each["elsewhere"]) == ("built", "")
    assert found["jobs"] == 4


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
    assert "timeline" not in {each["event"] for each in events}
