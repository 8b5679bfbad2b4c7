"""A program of several architectures is compiled for each by itself, and for each once.

Each test says how often a source was compiled for an architecture.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.project import Project, head
from tilusbuild.binary.fatbin import extract_cubins

pytestmark = pytest.mark.nvcc

SCRIPT = """\
[script.scale]
template = "scale.cu.j2"
kernel = "KERNEL"
args = { x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i32" }
space = { block = [64] }
launch = { grid = ["cdiv(n, block)"], block = ["block"] }
"""
SOURCE = """\
__global__ void scale(const float *x, float *y, int n) {
  int i = blockIdx.x * {{ block }} + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
"""


def compiles(project: Project) -> int:
    """How often a build compiled the source for an architecture."""
    ended = [e for e in project.run("build", "--json", "-v").events if e["event"] == "finished"]
    assert all(event["status"] == "built" for event in ended)
    return sum("/cwd/source.cu" in command for event in ended for command in event["commands"])


def make_project(directory: Path, compiler: str = "nvcc", kernel: str = "scale") -> Project:
    manifest = head("gpu", "sm_80") + SCRIPT.replace("KERNEL", kernel)
    manifest += f'[toolchain]\ndevice-compiler = "{compiler}"\n'
    source = SOURCE if ":" in kernel else f'extern "C" {SOURCE}'
    return Project(directory).write_all({"tilus.toml": manifest, "scale.cu.j2": source})


@pytest.mark.parametrize("kernel", ["scale", "::scale"])
@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
def test_one_more_architecture_is_one_compile_more(
    compiler: str, kernel: str, tmp_path: Path
) -> None:
    project = make_project(tmp_path / "project", compiler, kernel)
    assert compiles(project) == 1
    arch = '"sm_80"'
    for new, count in (
        ('["sm_80", "sm_86"]', 1),
        ('["sm_86", "sm_80"]', 0),
        ('"sm_86"', 0),
        ('["sm_90a", "sm_86", "sm_80"]', 1),
        ('["sm_80", "sm_90a"]', 0),
        ('["sm_80", "sm_86"]\nptx = true', 1),  # the PTX of sm_86
        ('["sm_90a", "sm_86"]\nptx = true', 0),
    ):
        project.edit("tilus.toml", f"arch = {arch}", f"arch = {new}")
        assert compiles(project) == count, new
        arch = new
    # The same bytes as a build that finds nothing, and as the script beside the library.
    fresh = project.copy(tmp_path / "fresh", cache=False)
    assert compiles(fresh) == 2
    ((program, library),) = fresh.libraries.items()
    assert project.libraries[program] == library
    alone = tmp_path / "alone"
    for name in (f"programs/{program}", "include"):
        shutil.copytree(project.cache / name, alone / name)
    module = alone / "programs" / program / "module"
    (module / "lib.so").unlink()
    environment = {**os.environ, "PYTHON": sys.executable}  # it has NVRTC's wheel
    subprocess.run([module / "compile.sh"], check=True, env=environment)
    assert (module / "lib.so").read_bytes() == library


@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
def test_code_is_packed_without_another_compile(compiler: str, tmp_path: Path) -> None:
    # Given a built project, when its code is to be compressed,
    project = make_project(tmp_path, compiler)
    assert compiles(project) == 1
    ((_, plain),) = project.libraries.items()
    project.edit("tilus.toml", 'arch = "sm_80"', 'arch = "sm_80"\ncompress = true')
    assert compiles(project) == 0
    # then another library has the same cubin in fewer bytes, as `verify` finds again,
    (packed,) = (library for library in project.libraries.values() if library != plain)
    before, after = *extract_cubins(plain), *extract_cubins(packed)
    assert before.data == after.data
    assert after.image.size < before.image.size // 2
    assert "2 programs compiled again, 0 not reproduced" in project.run("verify", "--rebuild").out
    # and `preflight` knows which drivers unpack it.
    project.run("package", "--format", "dir")
    words = ("preflight", "dist/p-0.1.0", "--device", "sm_80", "--driver")
    assert "made with CUDA 13" in project.run(*words, "12.9", status=1).out
    project.run(*words, "13.0")


def test_another_launch_of_the_same_source_is_only_linked(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    assert compiles(project) == 1
    project.edit("tilus.toml", '["block"] }', '["block"], smem = 16 }')
    assert (compiles(project), len(project.libraries)) == (0, 2)
    project.edit("scale.cu.j2", "2 *", "3 *")
    assert compiles(project) == 1


def test_code_that_was_stored_damaged_is_compiled_again(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    project.build()
    (stored,) = project.cache.glob("state/code/*")
    stored.write_bytes(stored.read_bytes()[:-9])
    project.edit("tilus.toml", 'arch = "sm_80"', 'arch = ["sm_80", "sm_86"]')
    assert compiles(project) == 2
