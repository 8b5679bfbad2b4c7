"""What is wrong with the input is told with its place, at once, and nothing is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.nvcc_journal import FakeCuda
from support.project import Project

SCRIPT_TABLE = "[script.scale]"
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


def place(project, text):
    """The line and column at which a text first stands in the manifest, as messages have it."""
    before = (project.directory / "tilus.toml").read_text(encoding="utf-8").partition(text)[0]
    return f"tilus.toml:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}: "


# ---- the manifest --------------------------------------------------------------------------------


def test_a_missing_manifest(project: Project, refused):
    os.remove(project.directory / "tilus.toml")
    said = refused()
    assert "no tilus.toml" in said
    assert str(project.directory) in said, "where it was looked for"


def test_an_empty_manifest(project: Project, refused):
    project.write("tilus.toml", "")
    assert "edition" in refused()


def test_a_manifest_that_is_not_utf_8(project: Project, refused):
    (project.directory / "tilus.toml").write_bytes(b'edition = 1\n[project]\nname = "\xff"\n')
    said = refused()
    assert "tilus.toml:3:" in said
    assert "UTF-8" in said


def test_a_manifest_that_is_not_toml(project: Project, refused):
    project.edit("tilus.toml", "edition = 1", "edition = 1\nedition 2")
    assert "tilus.toml:2:" in refused()


def test_a_manifest_that_is_a_directory(project: Project, refused):
    os.remove(project.directory / "tilus.toml")
    (project.directory / "tilus.toml").mkdir()
    assert "tilus.toml" in refused()


def test_several_mistakes_in_one_run(project: Project, refused):
    project.edit("tilus.toml", "kernel =", "kernl =")
    project.edit("tilus.toml", 'targets = ["cpu"]', 'targets = ["cpi"]')
    project.edit("tilus.toml", 'version = "0.1.0"', "version = 1")
    said = refused()
    assert place(project, "kernl") in said
    assert 'did you mean "kernel"?' in said
    assert place(project, '"cpi"') in said
    assert 'did you mean "cpu"?' in said
    assert place(project, "1\n\n[build]") in said


MISTAKES = {
    "two scripts of one name in snake case": (
        "[script.scale.space]",
        '[script.Scale]\ntemplate = "kernels/scale.cu.j2"\nkernel = "scale"\n[script.scale.space]',
        "script.Scale",
        ["Scale", "scale"],
    ),
    "an edition of the future": ("edition = 1", "edition = 2", "2", ["edition"]),
    "a wrong type": ("range = [1, 2]", 'range = "1 to 2"', '"1 to 2"', ["range"]),
    "a template that is missing": (
        "kernels/scale.cu.j2",
        "kernels/scala.cu.j2",
        '"kernels/scala.cu.j2"',
        ["kernels/scala.cu.j2"],
    ),
    "a template outside the project": (
        '"kernels/scale.cu.j2"',
        '"../scale.cu.j2"',
        '"../scale.cu.j2"',
        ["outside"],
    ),
    "a default outside its space": (
        SPACE_TABLE,
        "default = { unroll = 3 }\n" + SPACE_TABLE,
        "3 }",
        ["unroll", "3"],
    ),
    "a rule that divides by zero": (
        SPACE_TABLE,
        'restrict = { rule = "unroll % (unroll - 1) == 0" }\n' + SPACE_TABLE,
        '"unroll %',
        ["rule", "zero"],
    ),
    "a rule with an unknown name": (
        SPACE_TABLE,
        'restrict = { rule = "unrol > 1" }\n' + SPACE_TABLE,
        "unrol >",
        ["unrol", 'did you mean "unroll"?'],
    ),
    "a rule that is no expression": (
        SPACE_TABLE,
        'restrict = { rule = "unroll >" }\n' + SPACE_TABLE,
        '"unroll >"',
        ["rule"],
    ),
    "derived values in a circle": (
        SPACE_TABLE,
        'derived = { p = "q + 1", q = "p + 1" }\n' + SPACE_TABLE,
        "p = ",
        ["p", "q"],
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
    "an arch that nobody knows": ('"sm_80"', '"sm_8"', '"sm_8"', ["sm_8", 'did you mean "sm_8']),
    "no kernel and no entry": ('kernel = "scale"\n', "", SCRIPT_TABLE, ["kernel", "entry"]),
    "an include directory that is missing": (
        "[build]",
        '[build]\ninclude-dirs = ["inc"]',
        '"inc"',
        ["inc"],
    ),
    "an argument of no known type": ('a = "f32"', 'a = "f33"', '"f33"', ["f33", "f32"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_manifest(project: Project, refused, mistake):
    old, new, at, words = MISTAKES[mistake]
    project.edit("tilus.toml", old, new)
    said = refused()
    for word in words:
        assert word in said, said
    if at:
        line = place(project, at).split(":")[1]
        assert f"tilus.toml:{line}:" in said, said
    else:
        assert "tilus.toml:" in said


# ---- templates -----------------------------------------------------------------------------------


def test_a_parameter_that_nobody_declares(project: Project, refused):
    project.edit("kernels/scale.cu.j2", "{{ unroll }}", "{{ unrol }}")
    said = refused()
    assert "kernels/scale.cu.j2:2:" in said
    assert 'did you mean "unroll"?' in said


def test_a_template_that_does_not_parse(project: Project, refused):
    project.edit("kernels/scale.cu.j2", "{% else %}", "{% esle %}")
    assert "kernels/scale.cu.j2:7:" in refused()


def test_a_template_that_includes_from_outside(project: Project, refused):
    project.write("../secret.j2", "secret")
    project.edit("kernels/scale.cu.j2", "constexpr", '{% include "../secret.j2" %}\nconstexpr')
    said = refused()
    assert "kernels/scale.cu.j2:2" in said
    assert "secret.j2" in said


def test_a_template_that_reaches_for_python(project: Project, refused):
    project.edit("kernels/scale.cu.j2", "{{ unroll }}", "{{ unroll.__class__.__mro__ }}")
    assert "kernels/scale.cu.j2:2" in refused()


# ---- the machine and the command line ------------------------------------------------------------


def test_an_arch_that_the_toolkit_does_not_know(project: Project, refused, fake_cuda: FakeCuda):
    project.environment |= fake_cuda.environment
    project.edit("tilus.toml", 'targets = ["cpu"]', 'targets = ["gpu"]')
    project.edit("tilus.toml", '"sm_80"', '"sm_70"')
    said = refused()
    assert place(project, '"sm_70"') in said
    assert "sm_75" in said, "which it does know"


def test_a_cache_directory_that_is_a_file(project: Project, refused):
    project.write(".cache", "a file")
    assert "a file is in the way" in refused()
    project.write("file", "another")
    assert "a file is in the way" in refused("build", "--cache-dir", "file/below")


def test_a_cache_directory_with_something_else_in_it(project: Project, refused):
    project.write("data/mine.txt", "precious")
    said = refused("build", "--cache-dir", "data")
    assert "not a cache" in said
    assert "mine.txt" in said


def test_no_nvcc(project: Project, refused, tmp_path: Path):
    """The message says where it was looked for."""
    project.edit("tilus.toml", 'targets = ["cpu"]', 'targets = ["gpu"]')
    project.edit("tilus.toml", "[build]", '[toolchain]\nnvcc = "./no/nvcc"\n[build]')
    said = refused()
    assert place(project, '"./no/nvcc"') in said
    assert "no nvcc found" in said
    assert str(project.directory / "no/nvcc") in said


@pytest.mark.parametrize(
    "words",
    [
        ("build", "-C", "nowhere"),
        ("build", "-j", "many"),
        ("build", "-j", "0"),
        ("build", "--level", "3"),
        ("build", "--target", "nothing"),
        ("build", "nothing"),
        ("explain", "scale/x"),
        ("explain", "scale/99"),
        ("run", "nothing"),
        ("run", "scale", "--size", "n=many"),
        ("run", "scale", "--schedule", "99"),
        ("cache", "gc", "--older-than", "soon"),
        ("cache", "gc", "--max-size", "some"),
        ("cache", "show", "zzz"),
        ("cache",),
        (),
    ],
    ids=" ".join,
)
def test_a_mistake_on_the_command_line(project: Project, words):
    before = sorted(project.directory.rglob("*"))
    ran = project.run(*words, status=2)
    assert ran.err.strip()
    assert sorted(project.directory.rglob("*")) == before


def test_settings_of_the_environment_are_checked(project: Project, refused):
    project.environment["TILUSBUILD_JOBS"] = "many"
    assert "TILUSBUILD_JOBS" in refused()
