"""`verify --rebuild` with every pipeline and the flags that change its steps: the same bytes."""

import pytest

from support.project import NewProject, head

MANIFEST = (
    head("gpu", "sm_80", build='include-dirs = ["it\'s, here"]')
    + """\
[script.unit]
template = "scale.cu.j2"
kernel = "ops::scale<{{ block }}>"
args = { x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i32" }
space = { block = [64, 128] }
group = []
generate = { "made.h" = "made.h.j2" }
launch = { grid = ["cdiv(n, block)"], block = ["block"] }
flags = ["-lineinfo", "-DA=b, $(c) 'd'", "-Xptxas", "-O2"]
FLAGS
[script.lib]
template = "scale.cu.j2"
kernel = "ops::scale<64>"
device-compiler = "nvrtc"
args = { x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i32" }
generate = { "made.h" = "made.h.j2" }
launch = { grid = ["cdiv(n, 64)"], block = [64] }
flags = ["-O2", "-Xptxas", "-O2"]
[script.host]
template = "host.cu"
entry = "host"
args = { n = "i32" }
[library.objects]
sources = ["part.cu", "part.cpp"]
output = "out/libobjects.so"
rdc = true
rpath = ["$ORIGIN/.."]
"""
).replace("FLAGS\n", "")
FILES = {
    "scale.cu.j2": '#include "made.h"\n#include <deep.h>\nnamespace ops {\n'
    "template <int Block> __global__ void scale(const float *x, float *y, int n) {\n"
    "  int i = blockIdx.x * Block + threadIdx.x;\n  if (i < n) y[i] = MADE * DEEP * x[i];\n}\n}\n",
    "made.h.j2": "#define MADE 2\n",
    "it's, here/deep.h": "#pragma once\n#define DEEP 3\n",
    "host.cu": '__global__ void k() {}\nextern "C" int host(int n, cudaStream_t s) '
    "{ k<<<n, 1, 0, s>>>(); return cudaGetLastError(); }\n",
    "part.cu": "__device__ int other(int);\n__global__ void kernel(int *x) { *x = other(*x); }\n",
    "part.cpp": "int part() { return 1; }\n",
}


@pytest.mark.nvcc
def test_every_pipeline_makes_the_same_bytes_again(new_project: NewProject) -> None:
    files = {**FILES, "part.cu": FILES["part.cu"].replace("(int);", "(int x) { return x; }")}
    project = new_project(MANIFEST, files)
    project.build()
    result = project.run("verify", "--rebuild", project.cache, status=None)
    assert ", 0 not reproduced" in result.out, result.out
