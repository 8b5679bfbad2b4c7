"""`-v` prints each command line, `-vv` what the compilers said, too; without, neither is told."""

import shlex

import pytest

from support import scale
from support.nvcc_journal import FakeCuda
from support.project import NewProject, Project

NOISY = "// fake: noise 60\n" + scale.TEMPLATE


@pytest.fixture
def project(new_project: NewProject, fake_cuda: FakeCuda) -> Project:
    text = scale.manifest(scale.script(target="gpu", schedules=2))
    return new_project(text, {"kernels/scale.cu.j2": NOISY}, **fake_cuda.environment)


def commands(text: str) -> list[list[str]]:
    return [
        shlex.split(line.removeprefix("  $ ")) for line in text.splitlines() if line[:4] == "  $ "
    ]


def test_v_prints_the_command_lines_of_each_program(project: Project, fake_cuda: FakeCuda) -> None:
    told = commands(project.run("-v", "build").err)
    assert [words[0] for words in told].count(fake_cuda.nvcc) == 2
    assert all("source.cu" in " ".join(words) for words in told if words[0] == fake_cuda.nvcc)
    assert commands(project.run("-v", "build").err) == []


def test_vv_prints_what_the_compilers_said_too(project: Project) -> None:
    said = project.run("-vv", "build").err
    assert commands(said)
    assert said.count("  this is a warning that says nothing") == 2


@pytest.mark.parametrize(
    ("words", "told", "said"), [((), False, False), (("-v",), True, False), (("-vv",), True, True)]
)
def test_events_have_as_much_as_was_asked_for(project, words, told, said) -> None:
    events = project.run("--json", *words, "build").events
    finished = [each for each in events if each["event"] == "finished"]
    assert len(finished) == 2
    assert all(bool(each["commands"]) == told for each in finished)
    assert all(("warning" in each["log"]) == said for each in finished)


def test_the_variable_may_say_how_much(project: Project) -> None:
    assert commands(project.run("build", TILUSBUILD_VERBOSE="true").err)
