"""Kernels of CUDA Tile C++ (docs/pipelines.md)."""

import glob
import os
import re
from pathlib import Path

import pytest

from support.project import Project, head
from tilusbuild.toolchain.nvrtc_places import list_wheel_roots

PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
SECTION = PAGE.partition("### CUDA Tile C++")[2]
_NAMED = os.environ.get("TILUSBUILD_TEST_OTHER_CUDA", "/")
SCRIPT, SOURCE = re.findall(r"```(?:toml|cuda)\n(.*?)```", SECTION, re.DOTALL)[:2]


def make_project(directory: Path, arch: str, more: str = "") -> Project:
    manifest = head("gpu", arch) + more + SCRIPT
    return Project(directory).write_all({"tilus.toml": manifest, "double.cu.j2": SOURCE})


@pytest.fixture
def nvcc() -> str:
    roots = map(Path, (_NAMED, *list_wheel_roots(), *glob.glob("/usr/local/cuda-*")))
    for root in roots:
        if (root / "bin/tileiras").is_file():
            return str(root / "bin/nvcc")
    pytest.skip("needs nvcc 13.3 or later with tileiras")


@pytest.mark.nvcc
def test_a_kernel_of_the_page_is_compiled_for_each_architecture(nvcc: str, tmp_path: Path) -> None:
    project = make_project(tmp_path, "sm_80", f'[toolchain]\nnvcc = "{nvcc}"\n')
    project.edit("tilus.toml", '"sm_80"', '["sm_80", "sm_90a"]')
    assert project.compiled() == 1
    (shown,) = project.run("cache", "show", "--json", "double/0").events
    assert {*shown["kernels"]["twice"]} == {"sm_80", "sm_90a"}
    (options,) = project.cache.glob("programs/*/options.txt")
    assert "\ntileiras - " in options.read_text()
    assert project.run("verify", "--rebuild", NVCC=nvcc).status == 0


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("arch", "old", "new", "message"),
    [
        ("sm_90", "", "", 'CUDA Tile makes code of sm_90a for sm_90\n'),
        ("sm_75", "", "", "CUDA Tile needs sm_80 or later, which sm_75 is not"),
        ("sm_80", "[script", "ptx = true\n[script", "CUDA Tile makes no PTX"),
        ("sm_80", "c++20", "c++17", "it knows c++20, c++23"),
        ("sm_80", "args =", 'flags = ["-lineinfo"]\nargs =', 'does not know "-lineinfo"'),
    ],
)  # fmt: skip
def test_what_tiles_cannot_do_is_one_located_error(
    nvcc: str, tmp_path: Path, arch: str, old: str, new: str, message: str
) -> None:
    project = make_project(tmp_path, arch)
    project.edit("tilus.toml", old, new)
    project.edit("tilus.toml", "[script", f'[toolchain]\nnvcc = "{nvcc}"\n[script')
    shown = project.run_to_error("build")
    assert message in shown
    assert re.match(r"tilus\.toml:\d+:\d+: error: ", shown)


@pytest.mark.nvcc
def test_an_older_nvcc_is_named(tmp_path: Path) -> None:
    shown = make_project(tmp_path, "sm_80", '[toolchain]\nnvcc = "<13.3"\n').run("build", status=2)
    assert re.search(r"error: CUDA Tile needs nvcc 13\.3 or later, not 13\.\d", shown.err)
