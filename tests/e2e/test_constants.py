"""Arguments that a kernel reads of `__constant__` variables: declared, compiled, held against the
code, and passed from Python."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilusbuild
from support.dlpack import TENSOR
from support.processes import run_python
from support.project import NewProject, Project, head

tvm_ffi = pytest.importorskip("tvm_ffi")

COMPILE = Path(__file__).parents[1] / "compile"
MANIFEST = (
    head("gpu", "sm_90a")
    + """\
[script.conv]
template = "conv.cu.j2"
kernel = "conv"
[script.conv.args]
filter = { type = "f32*[k]", constant = "d_filter" }
p = { type = "struct P { f32 scale; i32 shift }", constant = "nn::p" }
bias = { type = "f32", constant = true }
x = "f32*[n]"
y = { type = "f32*[n]", out = true }
n = "i32"
k = "i32"
[script.conv.space]
block = [64, 128]
[script.conv.dispatch]
keys = ["n"]
table = [{ when = "n > 100", use = { block = 128 } }]
[script.conv.launch]
grid = ["cdiv(n, block)"]
block = ["block"]
"""
)
SOURCE = """\
struct P { float scale; int shift; };
{% if target.kind == "cpu" %}
extern "C" void conv(const float *filter, P p, float bias, const float *x, float *y, int n, int k) {
  for (int i = 0; i < n; i++) {
    y[i] = bias;
    for (int j = 0; j < k && i + j < n; j++) y[i] += p.scale * filter[j] * x[i + j];
  }
}
{% else %}
#include <cuda_fp16.h>
// __constant__ float d_filter[1];
__constant__ float d_filter[9], unread[3];
namespace nn { __constant__ P p; }
__device__ float bias;
extern "C" __global__ void conv(const float *x, float *y, int n, int k) {
  int i = blockIdx.x * {{ block }} + threadIdx.x;
  float sum = bias;
  for (int j = 0; j < k && i + j < n; j++) sum += nn::p.scale * d_filter[j] * x[i + j];
  if (i < n) y[i] = sum;
}
{% endif %}
"""
FILES = {"conv.cu.j2": SOURCE}
ON_CPU = MANIFEST.replace('arch = "sm_90a"', 'arch = "cpu"')
P = {"scale": 2.0, "shift": 0}


def expected(filter_: Any, x: Any) -> Any:
    full = 2.0 * np.convolve(x, filter_[::-1])
    return (0.5 + full[len(filter_) - 1 :]).astype(np.float32)


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project.built(tmp_path_factory.mktemp("constants"), {"tilus.toml": ON_CPU, **FILES})


def test_a_cpu_target_takes_them_as_arguments(on_cpu: Project) -> None:
    conv = tilusbuild.load("conv", where=str(on_cpu.cache))
    x, weights = np.arange(120, dtype="f4"), np.arange(1, 4, dtype="f4")
    y = np.zeros_like(x)
    conv(weights, P, 0.5, x, y)
    np.testing.assert_allclose(y, expected(weights, x))
    np.testing.assert_allclose(conv(weights, P, 0.5, x), y)  # like x, and not like the filter
    assert "constant" in (next(on_cpu.cache.glob("scripts/*/*/script.json"))).read_text()


DRIVEN = """\
import sys
import numpy as np
import tilusbuild
from tests_arrays import Device
from tilusbuild.runtime import device
device.may_have_cuda = lambda: True  # it looks into /dev, where a made up driver leaves nothing
conv = tilusbuild.load("conv", where=sys.argv[1])
weights = np.arange(1, 4, dtype="f4")
P = {"scale": 2.0, "shift": 7}
for n in (64, 101, 200):
    x, y = Device(0x100000, n), Device(0x200000, n)
    conv(weights, P, 0.5, x, y)
    conv(Device(0x300000, 9), P, 0.5, x, y)
try:
    conv(np.zeros(10, "f4"), P, 0.5, Device(0x100000, 64), Device(0x200000, 64))
except ValueError as error:
    print(error)
"""
ARRAYS = f"""\
import ctypes
import numpy as np
{TENSOR}
pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))

class Device:
    \"\"\"An array that says it is on cuda:0.\"\"\"
    device = "cuda:0"
    def __init__(self, address, n):
        self.shape, self._address, self._host = (n,), address, np.zeros(n, "f4")
    def __dlpack_device__(self):
        return 2, 0
    def __dlpack__(self, **_):
        capsule = self._host.__dlpack__()
        tensor = Tensor.from_address(pointer_of(capsule, b"dltensor"))
        tensor.data = self._address
        tensor.device.type = 2
        return capsule
"""


@pytest.mark.nvcc
@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
def test_a_kernel_reads_what_python_gives(new_project, tmp_path, compiler) -> None:
    """The driver is one that writes down what it is asked: the filter of the host is copied, that
    of the device too, and the program is chosen by `x`, in C or in Python."""
    project = new_project(MANIFEST, FILES)
    assert project.compiled("--device-compiler", compiler) == 2
    (text, *_) = ((p / "program.txt").read_text() for p in project.programs.values())
    assert "filter: f32*[k] constant d_filter\n" in text
    directory = tmp_path / "driver"
    directory.mkdir()
    fake = str(COMPILE / "fake_cuda.c")
    library = str(directory / "libcuda.so.1")
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", fake, "-o", library], check=True)
    (directory / "tests_arrays.py").write_text(ARRAYS)
    journal = tmp_path / "journal"
    done = run_python(
        DRIVEN,
        project.cache,
        compiler,
        environment={
            "PYTHONPATH": os.pathsep.join([str(directory), *sys.path]),
            "LD_LIBRARY_PATH": str(directory),
            "FAKE_CUDA_JOURNAL": str(journal),
            "FAKE_CUDA_PARAMETERS": "ptr ptr i32 i32",
            "FAKE_CUDA_ARCHS": "90",
            "FAKE_CUDA_VARIABLES": "d_filter:36 _ZN2nn1pE:8 bias:4",
        },
    )
    assert done.stdout.splitlines() == [
        'conv: argument "filter" has 40 bytes; the variable "d_filter" has 36',
    ]
    lines = [line for line in journal.read_text().splitlines() if line[:4] in ("copy", "laun")]
    rest = ["copy 8 bytes 0000004007000000 to 0xc100", "copy 4 bytes 0000003f to 0xc200"]
    wanted = []
    for grid, block, n in ((1, 64, 64), (1, 128, 101), (2, 128, 200)):
        launch = f"launch in primary0 grid={grid},1,1 block={block},1,1 shared=0"
        for copy_line, k in (
            ("copy 12 bytes 0000803f0000004000004040", 3),
            ("copy 36 bytes 0x300000", 9),
        ):
            wanted += [f"{copy_line} to 0xc000", *rest]
            wanted += [f"{launch} parameters: 0x100000 0x200000 {n} {k}"]
    assert [line.replace(" stream=(nil)", "") for line in lines] == wanted


@pytest.mark.nvcc
def test_what_the_code_has_is_held_against_what_is_declared(new_project: NewProject) -> None:
    project = new_project(MANIFEST, FILES)
    project.edit("tilus.toml", "block = [64, 128]", "block = [64]")
    project.edit("tilus.toml", ", use = { block = 128 }", ", use = { block = 64 }")
    project.edit("tilus.toml", '"f32*[k]"', '"f32*[2, 4]"')
    project.edit("tilus.toml", 'k = "i32"', 'k = { type = "i32", range = [1, 9] }')
    error = project.run("build", status=1).err
    assert (
        'conv.cu.j2:12: error: "d_filter" has 36 bytes; the argument "filter" is declared '
        "f32*[2, 4], which has 32"
    ) in error
    project.edit("tilus.toml", '"f32*[2, 4]"', '"f32*[3, 3]"')
    assert project.compiled() == 1
    project.edit("tilus.toml", '"d_filter"', '"missing"')
    error = project.run("build", "--device-compiler", "nvrtc", status=1).err
    assert 'conv.cu.j2:15: error: the code has no variable "missing" for the argument' in error
    assert '"filter" (it has: _ZN2nn1pE, bias, d_filter, unread)' in error
    project.edit("tilus.toml", '"missing"', '"unread"')
    project.edit("tilus.toml", '"f32*[3, 3]"', '"f32*[3]"')
    assert project.compiled("--device-compiler", "nvrtc") == 1
    project.edit("tilus.toml", "i32 shift", "i32 shift; i32 more")
    assert "P is declared with 12 bytes" in project.run("build", status=1).err


@pytest.mark.nvcc
def test_units_and_cpp_names_have_them(new_project: NewProject) -> None:
    manifest = MANIFEST.replace('kernel = "conv"', 'kernel = "conv<{{ block }}>"\ngroup = []')
    project = new_project(manifest, FILES)
    project.edit("conv.cu.j2", 'extern "C" __global__', "template <int B> __global__")
    project.edit("conv.cu.j2", "{{ block }}", "B")
    assert project.compiled() == 2
    assert project.compiled("--device-compiler", "nvrtc") == 2
