"""What a build keeps of when everything ran, as `report --json` prints it."""

from itertools import pairwise
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


def test_the_steps_of_every_program_follow_one_another(built: Project) -> None:
    found = timeline(built)
    assert {each["hash"] for each in found["attempts"]} == set(built.programs)
    changes = []
    for each in found["attempts"]:
        steps = each["steps"]
        names = [step["name"] for step in steps if step["name"] not in ("gcc", "launcher: gcc")]
        assert [name for name in names if not name.startswith("launcher")] == [
            *("render", "nvcc", "as", "ld", "publish")
        ]
        for one, other in pairwise(steps):
            assert one["start"] <= one["end"] <= other["start"] + 1e-6
        changes += [(steps[0]["start"], 1), (steps[-2]["end"], -1)]
    running, most = 0, 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    assert 1 <= most <= 4 == found["jobs"], "no more than compile at once"
    assert [each["name"] for each in found["phases"]] == ["plan"]


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
