"""`tilusbuild import` of Kernel Tuner scripts as a command: manifests that build."""

from pathlib import Path

import pytest

from support.project import Project
from tilusbuild.manifest.loading import load

SCRIPT = '''\
"""Tunes the sum of two vectors."""
from collections import OrderedDict
import numpy
from kernel_tuner import tune_kernel

kernel_string = """
__global__ void vector_add(float *c, const float *a, const float *b, int n) {
    int i = blockIdx.x * block_size_x + threadIdx.x;
    if (i<n) {
        c[i] = a[i] + b[i];
    }
}
"""

size = 80 * 1000
n = numpy.int32(size)
tune_params = OrderedDict()
tune_params["block_size_x"] = [32 * i for i in range(1, 5)]
tune_params["unroll"] = [1, 2]
restrict = ["block_size_x * unroll <= 128", "lambda p: p"]

tune_kernel("vector_add", kernel_string, size, [1, 2, 3, n], tune_params, restrictions=restrict)
tune_kernel("other", open("x.cu").read(), size, [], tune_params)
'''


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, {"TILUSBUILD_CACHE_DIR": str(tmp_path / ".cache")})


def test_a_script_of_kernel_tuner_is_run(project: Project) -> None:
    project.write("tune.py", SCRIPT)
    printed = project.run("import", "tune.py").out
    assert "tune.py was run, and failed after its call 1: FileNotFoundError" in printed
    script = load(str(project.directory / "tilus.toml")).scripts["vector_add"]
    assert script.kernel == "::vector_add"
    assert dict(script.space)["block_size_x"].values == (32, 64, 96, 128)
    assert {name: arg.type for name, arg in script.args.items()} == {
        "c": "f32*[n]", "a": "f32*[n]", "b": "f32*[n]", "n": "i32",
    }  # fmt: skip
    assert script.args["c"].out
    assert not script.args["a"].out
    assert script.launch is not None
    assert script.launch.grid == ("cdiv(n, block_size_x)",)


FILLED = SCRIPT.replace(
    "__global__ void",
    "#define WIDTH 33\n__constant__ float filter[WIDTH*WIDTH]; // __constant__ int scale[2];\n"
    "__constant__ unsigned int scale = 1;\n__constant__ Odd odd;\n__global__ void",
).replace(
    "restrictions=restrict)",
    'restrictions=restrict, cmem_args={"filter": [3.0], "scale": 1, "odd": 2, "none": n})',
)


def test_the_constants_that_a_script_fills_are_arguments(project: Project) -> None:
    project.write("tune.py", FILLED)
    printed = project.run("import", "tune.py").out
    args = load(str(project.directory / "tilus.toml")).scripts["vector_add"].args
    assert [*args] == ["c", "a", "b", "n", "filter", "filter_size", "scale"]
    assert (args["filter"].type, args["filter"].constant) == ("f32*[filter_size]", True)
    assert (args["filter_size"].type, args["filter_size"].parameter) == ("i32", False)
    assert (args["scale"].type, args["scale"].constant) == ("u32", True)
    for name in ("odd", "none"):
        assert f"vector_add: no argument was found to fill {name}: declare it in args" in printed


@pytest.mark.nvcc
def test_a_script_that_fills_constants_builds(project: Project) -> None:
    project.write("tune.py", FILLED)
    project.edit("tune.py", "__constant__ Odd odd;\n", "")
    project.edit("tune.py", "a[i] + b[i]", "a[i] * filter[i % WIDTH] + b[i] * scale")
    project.run("import", "tune.py")
    assert project.compiled("--level", "0") == 1


def test_a_t1_file_is_refused_with_what_serves_instead(project: Project) -> None:
    project.write("k.json", '{"ConfigurationSpace": {}}')
    assert "space-file of a script" in project.run("import", "k.json", status=2).err


HOSTILE = {
    "deep.py": "x = " + "(" * 5000 + ")" * 5000,  # Python itself refuses it
    "deep.json": "[" * 100_000,
    "odd.json": '[1, {"directory": 3, "arguments": 4}, {"command": "nvcc \'"}]',
    "loop.ninja": "a = $a\nrule c\n  command = $a\nbuild a: c b\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_trusted_ends_as_an_error(project: Project, name: str) -> None:
    project.write(name, HOSTILE[name])
    refused = project.run("import", name, status=2)
    assert "imported" in refused.err or "was run, and failed" in refused.err


def test_nothing_to_import_is_an_error(project: Project) -> None:
    project.write("tune.py", "print(1)\n")
    assert "tune_kernel" in project.run("import", "tune.py", status=2).err
    project.write("wrong.json", "{")
    assert "cannot be imported" in project.run("import", "wrong.json", status=2).err


def test_the_manifest_of_a_script_is_beside_it(project: Project) -> None:
    project.write("tune.py", SCRIPT)
    assert "-o is for builds" in project.run("import", "tune.py", "-o", "x", status=2).err


def test_a_folder_is_refused_with_what_serves_instead(project: Project) -> None:
    printed = project.run("import", ".", status=2).err
    assert "compile_commands.json" in printed
    assert 'sources = ["**/*.cu"]' in printed
