"""Tensor maps, clusters and a dependent launch: compiled for Hopper, launched on a driver that
writes down what it is asked."""

from pathlib import Path

import pytest

from support import tiles
from support.fake_driver import FakeDriver, build_driver
from support.project import NewProject, head

X = {"dtype": "bf16", "shape": [100, 200], "data": 1 << 20}
# Of a kernel that takes a map and a number, and the map by the numbers of the driver's function.
GENERATOR = """\
from tilusbuild.generate import Source, TensorMap

def scale(columns):
    x = TensorMap("x", 9, (columns, "m // 2"), ("4 * n",), (32, 16), (1, 1), 0, 2, 3, 1)
    text = "extern \\"C\\" __global__ void scale(const __grid_constant__ CUtensorMap x, int m) {}"
    return Source(f"#include <cuda.h>\\n{text}", parameters=(x, "m"), grid=("m",), block=(32,))
"""
GENERATED = (
    head("gpu", "sm_90a")
    + """\
[script.scale]
generator = "gen.py:scale"
kernel = "scale"
args = { x = "bf16*[m, n]", m = "i32", n = "i32" }
space = { columns = [128] }
launch = { grid = [1], block = [1] }
"""
)


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    return FakeDriver(build_driver(tmp_path / "driver"), tmp_path / "journal")


@pytest.mark.nvcc
def test_a_kernel_of_hoppers(new_project: NewProject, driver: FakeDriver) -> None:
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
    call = {"packed": [X, {**X, "data": 2 << 20}, 0.5]}
    parameters = {"FAKE_CUDA_PARAMETERS": "bytes2 bytes2 i32 f32"}
    answer = driver.call(program / "module" / "lib.so", call, environment=parameters)
    assert answer.answers == [[0, ""]]
    assert driver.lines("map") + driver.lines("launch") == [
        (
            f"map type=9 at 0x{digit}00000 200:0:32:1 100:400:64:1 interleave=0 swizzle=2 "
            f"promotion={promotion} fill=0 aligned=1"
        )
        for digit, promotion in ((1, 2), (2, 0))
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


@pytest.mark.nvcc
def test_a_map_that_a_generator_makes(new_project: NewProject, driver: FakeDriver) -> None:
    # Given a generator whose map has every second row of a tensor, and 128 of its columns,
    project = new_project(GENERATED, {"gen.py": GENERATOR})
    assert project.compiled() == 1
    (program,) = project.programs.values()
    # when it is called,
    parameters = {"FAKE_CUDA_PARAMETERS": "bytes2 i32"}
    library = program / "module" / "lib.so"
    answer = driver.call(library, {"packed": [X]}, environment=parameters)
    # then the driver gets the numbers of the generator, with the sizes of the call.
    assert answer.answers == [[0, ""]]
    (line,) = driver.lines("map")
    assert line.startswith("map type=9 at 0x100000 128:0:32:1 50:800:16:1 interleave=0 ")
    assert line.endswith(" swizzle=2 promotion=3 fill=1 aligned=1")
    assert driver.lines("launch")[0].endswith("parameters: a0a0 100")


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"x", 9', '"m", 9', '"m" is not a tensor that each call has on the device'),
        ("m // 2", "q", 'dimension "q" is neither an argument nor a constant'),
        ('("4 * n",)', "()", "it has 2 sizes, and 0 strides"),
        ("(32, 16)", "(32,)", 'box has 1 sizes; "x" has 2 dimensions'),
        ("(32, 16)", '("n", 16)', "its box and element strides are numbers"),
        ("0, 2, 3, 1", "0, 4, 3, 1", "its swizzle is 4, not 0 to 3"),
    ],
)
def test_a_map_that_cannot_be_made(new_project: NewProject, old: str, new: str, message: str):
    project = new_project(GENERATED, {"gen.py": GENERATOR})
    project.edit("gen.py", old, new)
    assert f"its parameter 0, a tensor map: {message}" in project.run_to_error("build")
