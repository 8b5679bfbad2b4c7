"""`tilusbuild import` of Kernel Tuner's scripts: what their calls become, and how they end."""

from pathlib import Path

import pytest

from support.project import Project
from tilusbuild.errors import InputError
from tilusbuild.intake import builds, kernel_tuner
from tilusbuild.intake.draft import ManifestDraft
from tilusbuild.manifest.loading import load_manifest

KERNEL = """
__global__ void scale(float *x, const float *y, int n) {
    int i = blockIdx.x * block_size_x + threadIdx.x;
    if (i < n) x[i] = y[i];
}
"""
HEAD = f"""
import os
from collections import OrderedDict
import numpy
from kernel_tuner import tune_kernel

SOURCE = '''{KERNEL}'''
n = numpy.int32(1e6)
args = [1, 2, n]
params = OrderedDict(block_size_x=[32 * i for i in range(1, 5)], tile=[1, 2, 4])
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, {"TILUSBUILD_CACHE_DIR": str(tmp_path / ".cache")})


def imported(tmp_path: Path, text: str, **files: str) -> tuple[ManifestDraft, dict[str, str]]:
    """The draft of a script, and the sources that it holds."""
    (tmp_path / "tune.py").write_text(HEAD + text)
    for name, source in files.items():
        (tmp_path / f"{name}.cu").write_text(source)
    draft, made = ManifestDraft("p"), dict[str, str]()
    kernel_tuner.read_tuning_script(draft, str(tmp_path), "tune.py", made)
    return draft, made


def test_values_are_those_that_a_manifest_can_have(tmp_path: Path) -> None:
    text = """
params = {"tile": [16 * 2, 32, 8], "part": [1.5, 1e999]}
tune_kernel("scale", SOURCE, n, args, params)
"""
    draft = imported(tmp_path, text)[0]
    assert draft.kernels[0].space == {"tile": [32, 8]}
    assert "scale: the values of part are not understood" in draft.notes


def test_a_loop_is_walked_with_each_item(tmp_path: Path) -> None:
    text = """
sizes = [16]
for _ in range(3):
    sizes.append(sizes[-1] * 2)
params = {"block_size_x": sizes}
for number, (name, values) in enumerate({"tile": [1, 2], "order": ["row"]}.items()):
    params[f"{name}_{number}"] = values
for device in ("A100", "H100"):
    tune_kernel("scale", SOURCE, n, args, params | {"wide": [4]})
"""
    (kernel,) = imported(tmp_path, text)[0].kernels
    assert kernel.space == {
        "block_size_x": [16, 32, 64, 128],
        "tile_0": [1, 2],
        "order_1": ["row"],
        "wide": [4],
    }


def test_the_recorder_comes_before_a_package_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "kernel_tuner").mkdir()
    (tmp_path / "kernel_tuner/__init__.py").touch()
    (tmp_path / "beside.py").write_text("size = 7")
    text = """
import beside
from kernel_tuner.utils.directives import anything
tune_kernel("scale", SOURCE, beside.size, args, params)
"""
    assert imported(tmp_path, text)[0].kernels[0].grid == ["cdiv(7, block_size_x)"]


def test_what_kernel_tuner_alone_writes_is_named(tmp_path: Path) -> None:
    source = KERNEL.replace("if", "#pragma unroll loop_unroll_factor_0\n grid_size_x; if")
    text = f"tune_kernel('scale', {source!r}, n, args, params, defines={{}})"
    notes = "\n".join(imported(tmp_path, text)[0].notes)
    assert all(word in notes for word in ("its defines", "grid_size_x", "loop_unroll_factor_0"))


def test_a_source_beside_the_script_is_found(tmp_path: Path) -> None:
    text = """
here = os.path.dirname(os.path.realpath(__file__)) + "/"
tune_kernel("scale", here + "scale.cu", n, args, params, compiler_options=["-std=c++11"])
"""
    draft = imported(tmp_path, text, scale=KERNEL)[0]
    assert draft.kernels[0].template == "scale.cu"
    assert draft.toolchain == {}  # which a manifest cannot have
    assert "scale: an option of the compiler is left out: -std=c++11" in draft.notes


def test_each_call_has_what_it_is_given(tmp_path: Path) -> None:
    text = """
from kernel_tuner.observers.nvml import NVMLObserver

def tune(source, size, **more):
    params = {"block_size_x": [32, 64]}
    return tune_kernel("scale", source, size, args, params, observers=[NVMLObserver(["power"])])

if __name__ == "__main__":
    results, env = tune(SOURCE, (n, 1))
    params["tile"] = params["tile"][1:]
    tune_kernel("scale", SOURCE, 7, args, params)
    min(results)
"""
    draft = imported(tmp_path, text)[0]
    called, other = draft.kernels
    assert called.space == {"block_size_x": [32, 64]}
    assert called.grid == ["cdiv(n, block_size_x)", 1]
    assert other.space["tile"] == [2, 4]
    assert other.grid == ["cdiv(7, block_size_x)"]
    assert any("failed after its call 2: ValueError" in note for note in draft.notes)


def test_a_script_that_does_not_end_is_stopped(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(builds, "_TIMEOUT", 1.0)
    with pytest.raises(InputError, match="not ended after 1 s before it called tune_kernel"):
        imported(tmp_path, "while True: pass")


RULES = """
limit = 96

def small(config):
    "Keeps it small."
    return config["block_size_x"] * config["tile"] <= limit

tune_kernel("scale", SOURCE, n, args, params, restrictions=[
    "tile == 1 or block_size_x > 32", lambda p: p["block_size_x"] // p["tile"] >= 16, small,
    lambda p: some(p),
])
tune_kernel("scale", SOURCE, n, args, params, restrictions=lambda p: p["tile"] < limit // 32)
"""


def test_restrictions_are_texts_and_functions(tmp_path: Path) -> None:
    draft, _ = imported(tmp_path, RULES)
    first, second = draft.kernels
    assert list(first.restrict.values()) == [
        "tile == 1 or block_size_x > 32",
        "block_size_x // tile >= 16",
        "block_size_x * tile <= 96",
    ]
    assert list(second.restrict.values()) == ["tile < 96 // 32"]
    assert any("some(p)" in note for note in draft.notes)


def test_blocks_that_no_device_has_are_left_out_as_kernel_tuner_does(tmp_path: Path) -> None:
    text = """
params["block_size_y"] = [1, 8, 16]
tune_kernel("scale", SOURCE, n, args, params)
"""
    (kernel,) = imported(tmp_path, text)[0].kernels
    assert kernel.restrict == {"threads": "block_size_x * block_size_y <= arch.threads_per_block"}
    assert kernel.block == ["block_size_x", "block_size_y"]


def test_grids_and_shared_memory_are_texts_and_functions(tmp_path: Path) -> None:
    text = """
tune_kernel("scale", SOURCE, (4096, "tile", lambda p: p["tile"]), args, params,
            grid_div_x=["block_size_x // tile"], grid_div_y=[], grid_div_z=lambda p: p["tile"] * 2,
            smem_args={"size": lambda p: p["block_size_x"] * 4},
            compiler_options=["-std=c++20", "-O3", "-I/usr/include/x"])
"""
    draft, _ = imported(tmp_path, text)
    (kernel,) = draft.kernels
    assert kernel.grid == ["cdiv(4096, (block_size_x // tile))", "tile", "cdiv(tile, (tile * 2))"]
    assert kernel.smem == "block_size_x * 4"
    assert (draft.toolchain["std"], kernel.flags[-1]) == ("c++20", "-O3")
    assert any("-I/usr/include/x" in note for note in draft.notes)


def test_a_block_without_x_has_kernel_tuner_s_256(tmp_path: Path) -> None:
    text = "tune_kernel('scale', SOURCE, n, args, {'block_size_y': [1, 2], 'block_size_x_': [1]})"
    (kernel,) = imported(tmp_path, text)[0].kernels
    assert kernel.block == [256, "block_size_y"]
    assert "-Dblock_size_x=256" in kernel.flags  # the source has it


def test_what_a_comment_assigns_to_is_no_output(tmp_path: Path) -> None:
    source = KERNEL.replace("x[i] = y[i];", "x[i] = y[i]; // y[i] = 0;").replace("const ", "")
    text = 'tune_kernel("scale", "scale.cu", n, args, params)'
    (kernel,) = imported(tmp_path, text, scale=source)[0].kernels
    assert kernel.args == {"x": {"type": "f32*[n]", "out": True}, "y": "f32*[n]", "n": "i32"}


TYPED = '''
GENERIC = """
#include <cuda_fp16.h>
using half = __half;
template <typename T, int block>
__global__ void fill(half *x, const float2 *y, T *z, int n) {
    int i = blockIdx.x * block + threadIdx.x;
    if (i < n) x[i] = half(y[i].x);
}
"""
tune_kernel("fill<half, block_size_x>", GENERIC, n, [1, 2, 3, n], params)
'''


def test_types_are_those_of_the_source(project: Project) -> None:
    project.write("tune.py", HEAD + TYPED)
    assert "the type of an argument is not understood: T *z" in project.run("import", "tune.py").out
    (fill,) = load_manifest(str(project.directory / "tilus.toml")).scripts.values()
    assert [arg.type for arg in fill.args.values()] == ["f16*[n]", "f32*[n]", "u8*[n]", "i32"]
    assert fill.kernel == "fill<half, block_size_x>"  # macros
    assert "12 to compile" in project.run("plan").out


LEFT_OUT = {
    "tune_kernel('scale', ['a.cu', 'b.cu'], n, args, params, lang='C')": "lang = 'C'",
    "tune_kernel('scale', lambda p: str(p), n, args, params)": "a kernel_source that is not text",
    "tune_kernel('scale', SOURCE, n, args, None)": "tune_params that are not a dictionary",
    "tune_kernel('scale', SOURCE, n, args, params, texmem_args={})": "texture references",
    "tune_kernel('other', SOURCE, n, args, params)": "declares no such kernel",
    "tune_kernel('scale', 'nowhere.cu', n, args, params)": "which does not exist",
}


@pytest.mark.parametrize("call", LEFT_OUT)
def test_what_is_left_out_says_why(tmp_path: Path, call: str) -> None:
    draft, _ = imported(tmp_path, call)
    assert not draft.kernels
    assert LEFT_OUT[call] in next(iter(draft.notes))


def test_a_space_that_is_too_large_is_built_in_part(tmp_path: Path) -> None:
    big = "{'block_size_x': list(range(1, 1025)), 'tile': list(range(1, 1025))}"
    draft, _ = imported(tmp_path, f"tune_kernel('scale', SOURCE, n, args, {big})")
    assert draft.level == 1
    assert any("1,048,576 points" in note for note in draft.notes)


FILLED = HEAD.replace(
    "__global__ void",
    "#define WIDTH 33\n__constant__ float filter[WIDTH*WIDTH]; // __constant__ int scaled[2];\n"
    "__constant__ unsigned int scaled = 1;\n__constant__ Odd odd;\n__global__ void",
)
FILLED += """
given = {"filter": [3.0], "scaled": 1, "odd": 2, "none": n}
tune_kernel("scale", SOURCE, n, args, params, cmem_args=given)
"""


def test_the_constants_that_a_script_fills_are_arguments(project: Project) -> None:
    project.write("tune.py", FILLED)
    printed = project.run("import", "tune.py").out
    args = load_manifest(str(project.directory / "tilus.toml")).scripts["scale"].args
    assert [*args] == ["x", "y", "n", "filter", "filter_size", "scaled"]
    assert (args["filter"].type, args["filter"].constant) == ("f32*[filter_size]", True)
    assert (args["filter_size"].type, args["filter_size"].parameter) == ("i32", False)
    assert (args["scaled"].type, args["scaled"].constant) == ("u32", True)
    for name in ("odd", "none"):
        assert f"scale: no argument was found to fill {name}: declare it in args" in printed


@pytest.mark.nvcc
def test_a_script_that_fills_constants_builds(project: Project) -> None:
    project.write("tune.py", FILLED)
    project.edit("tune.py", "__constant__ Odd odd;\n", "")
    project.edit("tune.py", "= y[i]", "= y[i] * filter[i % WIDTH] * scaled")
    project.run("import", "tune.py")
    assert project.compiled("--level", "0") == 1
