"""`build --check` says whether a build would have anything to do, and writes nothing."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.project import Project, needs_cxx
from support.trees import snapshot


def checked(project: Project, *words: str, status: int) -> str:
    """What it prints; nothing in the project or at home is another one after it."""
    before = snapshot(project.directory), snapshot(os.environ["HOME"])
    out = project.run("build", "--check", *words, status=status).out
    assert (snapshot(project.directory), snapshot(os.environ["HOME"])) == before
    assert out.count("\n") == (0 if "-q" in words else 1)
    return out


def a_template(project: Project) -> None:
    project.edit("kernels/scale.cu.j2", "a * x[i]", "x[i] * a")


def a_program(project: Project) -> None:
    shutil.rmtree(next((project.cache / "programs").iterdir()))


def the_index(project: Project) -> None:
    (project.cache / "index.json").unlink()


@pytest.mark.parametrize("change", [a_template, a_program, the_index])
def test_what_a_build_would_do(project: Project, change: Callable[[Project], None]) -> None:
    needs_cxx()
    checked(project, status=1)
    project.build()
    assert checked(project, status=0) == "up to date\n"
    time.sleep(0.02)
    change(project)
    assert checked(project, status=1).startswith("out of date: ")
    assert checked(project, "-q", status=1) == ""
    [line] = project.run("build", "--check", "--json", status=1).events
    assert line["event"] == "check"
    assert line["what"]
    project.build()
    assert checked(project, status=0) == "up to date\n"


def test_without_a_record_and_by_one_it_says_the_same(project: Project, tmp_path: Path) -> None:
    needs_cxx()
    time.sleep(0.1)
    project.build()
    assert checked(project, status=0) == "up to date\n"
    assert project.run("build", "--check", HOME=str(tmp_path / "other")).out == "up to date\n"
    [line] = project.run("build", "--check", "--json").events
    assert (line["programs"], line["to_build"], line["what"]) == (2, 0, None)
