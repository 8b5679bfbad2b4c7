"""Folders of .cu files, Kernel Tuner scripts and T1 files: manifests that build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.project import Project
from tilusbuild.manifest import load

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


FOLDER = {
    "src/a.cu": '#include "ops/add.cuh"\n__global__ void a(float *x) { *x = add(*x, 1); }\n',
    "src/part.cu": "__device__ int part;\n",
    "src/whole.cu": '#include "part.cu"\n__global__ void w(int *x) { *x = part; }\n',
    "src/main.cu": "int main() { return 0; }\n",
    "src/lost.cu": "#include <nowhere_at_all/x.h>\n",
    "src/wrong.cu": "__global__ void f(int *x) { *x = TILE; }\n",
    "src/maybe.cu": "#ifdef OTHER\n#include <nowhere_at_all/x.h>\n#endif\n",
    "include/ops/add.cuh": "#pragma once\n#include <cuda_fp16.h>\n"
    "__device__ inline float add(float a, float b) { return a + b; }\n",
    "build/left.cu": "nonsense",
}


def test_a_folder_says_what_it_leaves_out(project: Project) -> None:
    project.write_all({**FOLDER, "include/ops/add.cuh": "#pragma once\n"})
    told = project.run("import", ".").out
    library = next(iter(load(str(project.directory / "tilus.toml")).libraries.values()))
    assert library.sources == ("src/a.cu", "src/maybe.cu", "src/whole.cu", "src/wrong.cu")
    assert [each.path for each in library.include_dirs] == ["include"]
    for name in ("src/lost.cu", "src/main.cu", "src/part.cu"):
        assert name in told


@pytest.mark.nvcc
@pytest.mark.slow
def test_what_does_not_compile_is_left_out_on_demand(project: Project) -> None:
    project.write_all(FOLDER)
    told = project.run("import", ".", "--build").out
    assert 'src/wrong.cu does not compile: src/wrong.cu(1): error: identifier "TILE"' in told
    assert project.build()["failed"] == 0


def test_a_script_of_kernel_tuner_is_read_and_not_run(project: Project) -> None:
    project.write("tune.py", SCRIPT)
    told = project.run("import", "tune.py").out
    assert "lambda" in told
    assert "tune.py:23" in told
    script = load(str(project.directory / "tilus.toml")).scripts["vector_add"]
    assert script.kernel == "::vector_add"
    assert dict(script.space)["block_size_x"].values == (32, 64, 96, 128)
    assert {name: arg.type for name, arg in script.args.items()} == {
        "c": "f32*[n]", "a": "f32*[n]", "b": "f32*[n]", "n": "i32",
    }  # fmt: skip
    assert script.args["c"].out
    assert not script.args["a"].out
    assert script.launch is not None
    assert script.launch.grid == ("cdiv(80000, block_size_x)",)


@pytest.mark.nvcc
@pytest.mark.slow
def test_a_script_of_kernel_tuner_builds(project: Project) -> None:
    project.write("tune.py", SCRIPT)
    project.run("import", "tune.py")
    assert project.compiled("--level", "0") == 1


def test_a_size_that_is_an_argument_is_that_argument(project: Project) -> None:
    project.write("tune.py", SCRIPT.replace("kernel_string, size,", "kernel_string, (n, 3),"))
    project.run("import", "tune.py")
    launch = load(str(project.directory / "tilus.toml")).scripts["vector_add"].launch
    assert launch is not None
    assert launch.grid == ("cdiv(n, block_size_x)", 3)


def test_a_t1_file_names_its_kernel(project: Project) -> None:
    project.write("k.cu", 'extern "C" __global__ void k(double *x, int n) { x[n] = BLOCK; }\n')
    space = {
        "ConfigurationSpace": {
            "TuningParameters": [{"Name": "BLOCK", "Type": "int", "Values": "[32, 64]"}],
            "Conditions": [],
        },
        "KernelSpecification": {"KernelName": "k", "KernelFile": "k.cu"},
    }
    project.write("k.json", json.dumps(space))
    project.run("import", "k.json")
    script = load(str(project.directory / "tilus.toml")).scripts["k"]
    assert (script.kernel, script.template, script.render) == ("k", "k.cu", False)
    assert script.flags == ("-DBLOCK={{ BLOCK }}",)
    assert script.args["x"].out


HOSTILE = {
    "long.py": "s = 'x'\n" + "s = s + s\n" * 60 + "tune_kernel('k', s, 1, [], {})\n",
    "many.py": "tune_kernel('k', 'k', 1, [], {'a': list(range(10**12))})\n",
    "deep.py": "x = " + "(" * 5000 + ")" * 5000,
    "deep.json": "[" * 100_000,
    "odd.json": '[1, {"directory": 3, "arguments": 4}, {"command": "nvcc \'"}]',
    "wide.ninja": "".join(f"v{n} = $v{n + 1}$v{n + 1}$v{n + 1}\n" for n in range(18))
    + "rule c\n  command = $v0\nbuild a: c b\n",
    "loop.ninja": "a = $a\nrule c\n  command = $a\nbuild a: c b\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_trusted_ends_as_an_error(project: Project, name: str) -> None:
    project.write(name, HOSTILE[name])
    refused = project.run("import", name, status=2)
    assert "imported" in refused.err


def test_nothing_to_import_is_an_error(project: Project) -> None:
    project.write("tune.py", "print(1)\n")
    assert "tune_kernel" in project.run("import", "tune.py", status=2).err
    project.write("wrong.json", "{")
    assert "cannot be imported" in project.run("import", "wrong.json", status=2).err
