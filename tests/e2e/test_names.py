"""What `build` prints is what the other verbs take, also where constants and targets differ."""

import re
import shlex

import pytest

from support.project import Project, needs_cxx
from support.scale import TEMPLATE, manifest, script

MANY = (
    manifest(
        script(more='targets = ["cpu", "cpu2"]\nparams = { kind = ["a b", "c"] }').replace(
            'targets = ["cpu"]\n', ""
        ),
    )
    + '\n[target.cpu2]\narch = "cpu"\nflags = ["-O1"]\n'
)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Project, list[str]]:
    """A project of four instances with two programs each, and the names that the build printed."""
    needs_cxx()
    project = Project(tmp_path_factory.mktemp("names")).write_all(
        {"tilus.toml": MANY, "kernels/scale.cu.j2": TEMPLATE}
    )
    events = project.run("build", "--json").events
    return project, sorted({each["label"] for each in events if each["event"] == "finished"})


def test_every_printed_name_is_understood_by_every_verb(built) -> None:
    project, names = built
    assert len(names) == 8
    assert names[0] == 'scale[kind="a b"]/0 cpu'
    hashes = set()
    for name in names:
        hashes.add(project.run("cache", "show", name, "--path").out)
        (listed,) = project.run("cache", "ls", name, "--json").events
        assert listed["label"] == name
        (explained,) = project.run("explain", name, "--json").events
        assert (explained["program"], explained["state"]) == (name, "built")
    assert len(hashes) == 8
    ran = project.run("run", names[3], "--size", "n=64")
    assert ran.out.startswith(f"{names[3]}: ")
    summary = project.run("build", names[3], "--json").events[-1]
    assert summary["programs"] == 1
    exported = project.run("cache", "export", "out", names[3], "--layout", "hidet", "--json")
    assert exported.events[0]["files"] > 0
    assert len(list((project.directory / "out").rglob("lib.so"))) == 1


def test_an_instance_selects_its_programs(built) -> None:
    project, _ = built
    assert project.run("build", "scale[kind=c]", "--json").events[-1]["programs"] == 4
    assert project.run("build", 'scale["a b"] cpu', "--json").events[-1]["programs"] == 2
    # As a shell hands it over when nobody wrote quotes.
    assert project.run("build", "scale[kind=c]", "cpu", "--json").events[-1]["programs"] == 2
    refused = project.run("build", "scale[kind=d]", status=2)
    assert "scale[kind=c]" in refused.err


@pytest.mark.parametrize("words", [("cache", "show", "scale/1"), ("run", "scale", "--size", "n=8")])
def test_what_means_several_is_listed_as_it_can_be_typed(built, words) -> None:
    project, _ = built
    refused = project.run(*words, status=2)
    offered = re.findall(r"^  ('scale.*)$", refused.err, re.MULTILINE)
    assert len(offered) >= 2, refused.err
    for line in offered:
        typed = shlex.split(line, comments=True)
        project.run(*(each for word in words for each in (typed if "scale" in word else [word])))


def test_what_fails_is_named_as_it_can_be_typed(built, tmp_path) -> None:
    project = built[0].copy(tmp_path / "own")
    project.edit("kernels/scale.cu.j2", "extern", "#error never\nextern")
    ran = project.run("build", status=1)
    names = re.findall(r"^error: (scale.*): none of its schedules builds", ran.err, re.MULTILINE)
    assert 'scale[kind="a b"] cpu' in names
    assert len(names) == 4
    for name in names:
        assert project.run("plan", name, "--json").events[-1]["programs"] == 2


def test_run_numbers_as_build_does(built) -> None:
    project, names = built
    default = project.run("run", "scale[kind=c] cpu", "--size", "n=8").out.split(":")[0]
    assert default in names
    by_number = project.run("run", "scale[kind=c]/1 cpu", "--size", "n=8").out
    assert by_number.startswith("scale[kind=c]/1 cpu: unroll=2")
    refused = project.run("run", "scale[kind=c]/2 cpu", "--size", "n=8", status=2)
    assert "they go from 0 to 1" in refused.err
