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
    draft, sources = ManifestDraft("p"), dict[str, str]()
    kernel_tuner.read_tuning_script(draft, str(tmp_path), "tune.py", sources)
    return draft, sources


CALL = 'tune_kernel("scale", SOURCE, n, args, params)\n'
COMMENTED = KERNEL.replace("x[i] = y[i];", "x[i] = y[i]; // y[i] = 0;").replace("const ", "")
REWRITTEN = KERNEL.replace("if", "#pragma unroll loop_unroll_factor_0\n grid_size_x; if")
LOOP = """
sizes = [16]
for _ in range(3):
    sizes.append(sizes[-1] * 2)
params = {"block_size_x": sizes}
for number, (name, values) in enumerate({"tile": [1, 2], "order": ["row"]}.items()):
    params[f"{name}_{number}"] = values
for device in ("A100", "H100"):
    tune_kernel("scale", SOURCE, n, args, params | {"wide": [4]})
"""
SPACE = {"block_size_x": [16, 32, 64, 128], "tile_0": [1, 2], "order_1": ["row"], "wide": [4]}
BIG = "params = {'block_size_x': list(range(1, 1025)), 'tile': list(range(1, 1025))}\n"
ONE_KERNEL: dict[str, tuple[str, dict[str, object], tuple[str, ...]]] = {
    "values that a manifest can have": (
        'params = {"tile": [16 * 2, 32, 8], "part": [1.5, 1e999]}\n' + CALL,
        {"space": {"tile": [32, 8]}},
        ("scale: the values of part are not understood",),
    ),
    "a loop, with each item": (LOOP, {"space": SPACE}, ()),
    "blocks that no device has, which Kernel Tuner leaves out": (
        'params["block_size_y"] = [1, 8, 16]\n' + CALL,
        {
            "restrict": {"threads": "block_size_x * block_size_y <= arch.threads_per_block"},
            "block": ["block_size_x", "block_size_y"],
        },
        (),
    ),
    "a block without x, which is Kernel Tuner's 256 and a macro of the source": (
        "params = {'block_size_y': [1, 2], 'b': [1]}\n" + CALL,
        {
            "block": [256, "block_size_y"],
            "flags": [
                *(f"-D{n}={{{{ {n} }}}}" for n in ("block_size_y", "b")),
                "-Dblock_size_x=256",
            ],
        },
        (),
    ),
    "names that Kernel Tuner alone writes": (
        f"tune_kernel('scale', {REWRITTEN!r}, n, args, params, defines={{}})",
        {},
        ("its defines", "grid_size_x", "loop_unroll_factor_0"),
    ),
    "an argument that a comment assigns to": (
        f"tune_kernel('scale', {COMMENTED!r}, n, args, params)",
        {"args": {"x": {"type": "f32*[n]", "out": True}, "y": "f32*[n]", "n": "i32"}},
        (),
    ),
    "a space that is too large": (BIG + CALL, {}, ("1,048,576 points; level = 1 is written",)),
}


@pytest.mark.parametrize("case", ONE_KERNEL)
def test_what_becomes_of_one_call(tmp_path: Path, case: str) -> None:
    text, fields, notes = ONE_KERNEL[case]
    draft, _ = imported(tmp_path, text)
    (kernel,) = draft.kernels
    assert {name: getattr(kernel, name) for name in fields} == fields
    assert all(note in "\n".join(draft.notes) for note in notes)


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
limit, table = 96, numpy.array([2, 4])

@(lambda rule: rule)
def small(config):
    "Keeps it small."
    return config["block_size_x"] * config["tile"] <= limit

tune_kernel("scale", SOURCE, n, args, params, restrictions=[
    "tile == 1 or block_size_x > 32", lambda p: p["block_size_x"] // p["tile"] >= 16, small,
    lambda p: some(p), lambda p: p["tile"] < table[0],
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
    assert all(any(text in note for note in draft.notes) for text in ("some(p)", "table[0]"))


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
