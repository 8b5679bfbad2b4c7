"""Tensor maps, clusters and a dependent launch: compiled for Hopper, launched on a driver that
writes down what it is asked."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import tiles
from support.processes import run_to_end
from support.project import NewProject

COMPILE = Path(__file__).parents[1] / "compile"
X = {"dtype": "bf16", "shape": [100, 200], "data": 1 << 20}


@pytest.fixture
def launched(tmp_path: Path) -> Any:
    """launched(library, arguments): what the launcher answers, and the driver's lines."""
    made, journal = tmp_path / "driver", tmp_path / "journal"
    made.mkdir()
    library = str(made / "libcuda.so.1")
    fake = str(COMPILE / "fake_cuda.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", fake, "-o", library], check=True)

    def call(library: Path, *arguments: Any) -> tuple[Any, list[str]]:
        asked = {"library": str(library), "calls": [{"packed": list(arguments)}]}
        done = run_to_end(
            [sys.executable, str(COMPILE / "launcher_process.py")],
            input=json.dumps(asked),
            environment={
                "LD_LIBRARY_PATH": str(made),
                "FAKE_CUDA_JOURNAL": str(journal),
                "FAKE_CUDA_PARAMETERS": "bytes2 bytes2 i32 f32",
            },
        )
        lines = journal.read_text(errors="replace").splitlines()
        return json.loads(done.stdout)["answers"][0], lines

    return call


@pytest.mark.nvcc
def test_a_kernel_of_hoppers(new_project: NewProject, launched: Any) -> None:
    project = new_project(tiles.MANIFEST, tiles.FILES)
    assert project.compiled() == 4
    assert project.build("--device-compiler", "nvcc")["compiled"] == 0
    (program,) = (
        path
        for path in project.programs.values()
        if "block_m = 64\nblock_n = 32\n" in (path / "program.txt").read_text()
    )
    text = (program / "program.txt").read_text()
    assert "x: bf16*[m, n] not a parameter\n" in text
    box = "box block_m, block_n"
    assert f"x_map: CUtensorMap of x {box} swizzle row l2-promotion 128\n" in text
    assert "cluster = 1, 2\npdl = True\n" in text
    answer, lines = launched(program / "module" / "lib.so", X, {**X, "data": 2 << 20}, 0.5)
    assert answer == [0, ""]
    assert [line for line in lines if line.startswith(("map", "launch"))] == [
        (
            f"map type=9 at 0x{at}00000 200:0:32:1 100:400:64:1 interleave=0 swizzle=2 "
            f"promotion={promotion} fill=0 aligned=1"
        )
        for at, promotion in ((1, 2), (2, 0))
    ] + [
        (
            "launch in primary0 grid=7,2,1 block=128,1,1 shared=0 stream=(nil) "
            "attributes: cluster=1,2,1 6=1 parameters: a0a0 a1a1 100 0.5"
        )
    ]


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "cluster = [1, 2]",
            "cluster = [2]",
            "launch.cluster is (2, 1, 1); the kernel is compiled",
        ),
        (
            'm = "i32"',
            'm = { type = "i32", parameter = false }',
            '"scale" has 4 parameters, and args declares 3',
        ),
        ("block_n = [32, 64]", "block_n = [12]", "x_map.swizzle is 24, not one of"),
    ],
)
def test_what_does_not_fit_is_not_built(new_project, old, new, message) -> None:
    project = new_project(tiles.MANIFEST, tiles.FILES)
    project.edit("tilus.toml", old, new)
    project.edit("tilus.toml", "block_m = [32, 64]", "block_m = [32]")
    assert message in project.run("build", status=None).err
