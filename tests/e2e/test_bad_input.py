"""What is wrong with the input is told with its place, at once, and nothing is written."""

import pytest

from support.nvcc_journal import FakeCuda
from support.project import Project

SPACE_TABLE = "[script.scale.space]\n"


@pytest.fixture
def refused(project: Project):
    """refused("build") gives stderr of a command that ends with 2 and writes nothing."""

    def run(*words):
        before = sorted(path for path in project.directory.rglob("*"))
        ran = project.run(*(words or ("build",)), status=2)
        assert sorted(path for path in project.directory.rglob("*")) == before
        assert ran.out == ""
        return ran.err

    return run


def locate_text(project, text):
    """The line and column at which a text first stands in the manifest, as messages have it."""
    before = (project.directory / "tilus.toml").read_text(encoding="utf-8").partition(text)[0]
    return f"tilus.toml:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}: "


MISTAKES = {
    "a rule that divides by zero": (
        SPACE_TABLE,
        'restrict = { rule = "unroll % (unroll - 1) == 0" }\n' + SPACE_TABLE,
        '"unroll %',
        ["rule", "zero"],
    ),
    "an empty space": (
        SPACE_TABLE,
        'restrict = { never = "unroll > 2" }\n' + SPACE_TABLE,
        "",
        ["never"],
    ),
    "a space of more than a million points": (
        "range = [1, 2]",
        "range = [1, 1001] }\nother = { range = [1, 1000]",
        "",
        ["1,001,000", "sample"],
    ),
}
"""Mistakes that a plan finds; tests/manifest/mistakes.txt has those that loading does."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_manifest(project: Project, refused, mistake):
    old, new, text, words = MISTAKES[mistake]
    project.edit("tilus.toml", old, new)
    stderr = refused()
    for word in words:
        assert word in stderr, stderr
    if text:
        line = locate_text(project, text).split(":")[1]
        assert f"tilus.toml:{line}:" in stderr, stderr
    else:
        assert "tilus.toml:" in stderr


# ---- the machine and the command line ------------------------------------------------------------


def test_an_arch_that_the_toolkit_does_not_know(project: Project, refused, fake_cuda: FakeCuda):
    project.environment |= fake_cuda.environment
    project.edit("tilus.toml", 'targets = ["cpu"]', 'targets = ["gpu"]')
    project.edit("tilus.toml", '"sm_80"', '"sm_70"')
    stderr = refused()
    assert locate_text(project, '"sm_70"') in stderr
    assert "sm_75" in stderr, "which it does know"


@pytest.mark.parametrize(
    "words",
    [
        ("build", "-C", "nowhere"),
        ("build", "-j", "many"),
        ("build", "--target", "nothing"),
        ("explain", "scale/99"),
        ("run", "scale", "--size", "n=many"),
        ("cache", "gc", "--older-than", "soon"),
        ("cache", "show", "zzz"),
        (),
    ],
    ids=" ".join,
)
def test_a_mistake_on_the_command_line(project: Project, words):
    before = sorted(project.directory.rglob("*"))
    ran = project.run(*words, status=2)
    assert ran.err.strip()
    assert sorted(project.directory.rglob("*")) == before
