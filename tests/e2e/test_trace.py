"""`--trace`: what ran when, as events that trace viewers open; and what a build keeps of it."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from support import scale
from support.nvcc_journal import FakeCuda
from support.project import NewProject, Project

Events = list[dict[str, Any]]


def events_of(path: Path) -> Events:
    """The events of a trace."""
    found: Events = json.loads(path.read_text())["traceEvents"]
    return found


def slices(events: Events, kind: str) -> Events:
    return [each for each in events if each["ph"] == "X" and each["cat"] == kind]


def rows(events: Events) -> dict[str, Events]:
    """The slices of each row, by its name."""
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = defaultdict(list)
    for each in events:
        if each["ph"] == "X":
            found[names[each["tid"]]].append(each)
    return found


def assert_nested(row: Events) -> None:
    """Slices of a row hold one another or are apart; in that, viewers differ when they cross."""
    open_until: list[float] = []
    for each in sorted(row, key=lambda each: (each["ts"], -each["dur"])):
        end = each["ts"] + each["dur"]
        while open_until and open_until[-1] <= each["ts"]:
            open_until.pop()
        assert not open_until or end <= open_until[-1], each
        open_until.append(end)


@pytest.fixture
def built(new_project: NewProject, fake_cuda: FakeCuda) -> Project:
    """Twelve programs for a GPU, built four at a time with a trace."""
    text = scale.manifest(scale.script(target="gpu", schedules=12))
    project = new_project(text, **fake_cuda.environment)
    project.build("-j", "4", "--trace", "t.json")
    return project


def test_the_steps_of_every_program_are_slices_of_a_compilers_place(built: Project):
    events = events_of(built.directory / "t.json")
    found = rows(events)
    places = [name for name in found if name.startswith("compiler ")]
    assert sorted(places) == [f"compiler {1 + n}" for n in range(len(places))]
    assert 1 <= len(places) <= 4, "no more than compile at once"
    for row in found.values():
        assert_nested(row)
    programs = slices(events, "program")
    assert {each["args"]["program"] for each in programs} == set(built.programs)
    for each in programs:
        inside = [
            other["name"]
            for other in found[next(n for n in places if each in found[n])]
            if each["ts"] <= other["ts"] < each["ts"] + each["dur"] and other is not each
        ]
        assert [name for name in inside if name != "gcc"] == ["render", "nvcc", "as", "ld"]
    assert len([e for e in events if e.get("cat") == "publish"]) == 12
    names = {each["name"] for each in slices(events, "build")}
    assert {"plan", "publish scripts"} <= names


def test_the_counters_count_what_runs(built: Project):
    events = events_of(built.directory / "t.json")
    running = [e for e in events if e["ph"] == "C" and e["name"] == "compilers running"]
    assert running == sorted(running, key=lambda each: each["ts"])
    assert max(each["args"]["value"] for each in running) <= 4
    assert running[-1]["args"]["value"] == 0
    assert {e["name"] for e in events if e["ph"] == "C"} >= {"memory predicted (MB)"}


def test_a_trace_is_written_when_nothing_is_to_be_done_and_when_the_build_fails(project):
    project.build()
    project.build()
    project.run("build", "--trace", "nothing.json")
    assert slices(events_of(project.directory / "nothing.json"), "compile") == []
    project.edit("kernels/scale.cu.j2", "extern", "mistake extern")
    project.run("build", "--trace", "wrong.json", status=1)
    (*_, last) = slices(events_of(project.directory / "wrong.json"), "program")
    assert last["args"]["status"] == "failed"
    assert last["args"]["reason"]


def test_package_and_tune_write_traces(project: Project):
    project.write("tilus.toml", (project.directory / "tilus.toml").read_text() + "[package.one]\n")
    project.build()
    project.run("package", "--format", "dir", "--trace", "p.json")
    names = {each["name"] for each in slices(events_of(project.directory / "p.json"), "build")}
    assert {"plan", "gather one", "write one"} <= names
    words = ("--budget", "4", "--unchecked", "--size", "n=8", "--trace", "t.json")
    project.run("tune", "scale", "--target", "cpu", *words)
    names = {each["name"] for each in slices(events_of(project.directory / "t.json"), "build")}
    assert "measure scale cpu" in names


def test_where_no_trace_can_be_written_nothing_is_done(project: Project):
    said = project.run("build", "--trace", "missing/t.json", status=2).err
    assert "--trace missing/t.json: no directory missing" in said
    assert not project.cache.exists()
