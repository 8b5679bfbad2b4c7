"""examples/plain: a file that is not a template, and kernels by their C++ names."""

import shutil
from pathlib import Path

import pytest

from support.project import Project

EXAMPLE = Path(__file__).parents[2] / "examples/plain"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    copied = tmp_path / "plain"
    shutil.copytree(EXAMPLE, copied, ignore=shutil.ignore_patterns(".cache"))
    return Project(copied, {"TILUSBUILD_CACHE_DIR": str(copied / ".cache")})


@pytest.mark.nvcc
def test_a_source_is_the_file_and_the_kernel_is_what_its_name_says(project: Project):
    project.run("render", "--output", "rendered")
    rendered = sorted((project.directory / "rendered").rglob("*.cu"))
    assert len(rendered) == 24
    file = (EXAMPLE / "src/softmax.cu").read_bytes()
    assert all(path.read_bytes().startswith(file) for path in rendered)
    assert not project.programs
    project.run("build", "softmax[dtype=f16,half=true]", "--level", "0")
    (program,) = project.programs.values()
    assert "_ZN4rows7softmaxI6__half" in (program / "meta.json").read_text()
    told = project.run("render", "softmax[dtype=f16,half=true]", "--level", "0").out
    assert told.endswith("&rows::softmax<__half, 128, true>;\n")
