"""Given sources with static variables and nothing that others could call, when they are compiled
again, then the bytes are the same: nvcc and NVRTC would put their process id into the variables'
names."""

import shutil

import pytest

from support.project import Project, head

pytestmark = pytest.mark.nvcc

MANIFEST = (
    head("gpu", "sm_80")
    + """\
[library.device]
sources = ["object.cu", "other.cu"]
rdc = true
output = "device.so"
[script.named]
template = "kernel.cuh"
render = false
kernel = "n::k<{{ each }}>"
space = { each = [1] }
args = { x = "f32*[n]", n = { type = "i32", parameter = false } }
launch = { grid = ["1"], block = ["n"] }
[script.together]
template = "kernel.cuh"
render = false
kernel = "n::k<{{ each }}>"
group = ["each"]
space = { each = [3, 4] }
args = { x = "f32*[n]", n = { type = "i32", parameter = false } }
launch = { grid = ["1"], block = ["n"] }
"""
)
KERNEL = """\
namespace n {
static __device__ float table[2] = {1, 2};
template <int K> __global__ void k(float *x) { *x *= table[threadIdx.x % 2] + K; table[1] = *x; }
}
"""


def products(project: Project) -> dict[str, bytes]:
    found = (project.directory / ".cache/programs").rglob("module/*")
    return {str(path): path.read_bytes() for path in found if path.suffix in (".so", ".o")}


@pytest.mark.parametrize(
    ("words", "count"),
    [
        pytest.param((), 3 + 2 + 1, marks=pytest.mark.slow),  # kernels, objects, links
        (("named", "together", "--device-compiler", "nvrtc", "-j1"), 3),
    ],
    ids=["nvcc", "nvrtc"],
)
def test_their_names_do_not_depend_on_the_process(project, words, count) -> None:
    project.write_all(
        {
            "tilus.toml": MANIFEST,
            "kernel.cuh": KERNEL,
            "object.cu": KERNEL + "template __global__ void n::k<5>(float *);\n",
            "other.cu": KERNEL + "template __global__ void n::k<6>(float *);\n",
        }
    )
    assert project.build(*words)["failed"] == 0
    first = products(project)
    assert len(first) == count
    shutil.rmtree(project.directory / ".cache")
    project.build(*words)
    assert products(project) == first
