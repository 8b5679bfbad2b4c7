"""A build of many programs with nothing to do looks at what was compiled, and not for every file
that somebody may have deleted by hand: docs/cache.md says who finds that, and how it comes back."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import scale
from support.project import Project, needs_cxx

FEW_ARE_MANY = """\
import sys
from tilusbuild.builder import noop_record
from tilusbuild.cli.main import main
noop_record.LOOKED_AT_WHOLE = 2
sys.exit(main(["build"]))
"""
"""A build to which three programs are many."""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Three programs, and a record of a build of many."""
    needs_cxx()
    found = Project(tmp_path / "project")
    found.write("tilus.toml", scale.manifest(scale.script(schedules=3)))
    found.write("kernels/scale.cu.j2", scale.TEMPLATE)
    for _ in range(2):
        build_many(found)
    return found


def build_many(project: Project) -> str:
    command = [sys.executable, "-c", FEW_ARE_MANY]
    environment = {**os.environ, **project.environment}
    ran = subprocess.run(
        command, cwd=project.directory, env=environment, capture_output=True, text=True, check=True
    )
    return ran.stderr


def first(project: Project) -> Path:
    return next(iter(project.programs.values()))


@pytest.mark.parametrize("part", ["module/lib.so", "module", ""])
def test_what_was_compiled_comes_back_by_the_same_command(project: Project, part: str) -> None:
    path = first(project) / part
    path.unlink() if path.is_file() else shutil.rmtree(path)
    build_many(project)
    assert project.run("cache", "verify").status == 0
    assert "nothing to do" in build_many(project)


def touched_manifest(project: Project) -> None:
    os.utime(project.directory / "tilus.toml")


def advice_of_verify(project: Project) -> None:
    found = project.run("cache", "verify", status=1).out
    assert f"programs/{first(project).name}" in found
    shutil.rmtree(first(project))


@pytest.mark.parametrize("name", ["meta.json", "options.txt", "module/source.cu"])
@pytest.mark.parametrize("then", [touched_manifest, advice_of_verify])
def test_another_file_comes_back_by_a_plan_or_as_verify_says(project, name, then) -> None:
    (first(project) / name).unlink()
    assert "nothing to do" in build_many(project)
    then(project)
    build_many(project)
    assert project.run("cache", "verify").status == 0


def test_a_plan_knows_the_programs_of_such_a_record(project: Project) -> None:
    """Else each edit would read all entries."""
    touched_manifest(project)
    for path in project.programs.values():  # read, it would be no JSON
        meta = path / "meta.json"
        meta.write_bytes(b"x" * meta.stat().st_size)
    assert "nothing to do" in build_many(project)
