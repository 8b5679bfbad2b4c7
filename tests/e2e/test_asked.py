"""What a manifest asks of a source, a kernel by its C++ name and a struct's layout: what compilers
find wrong with it is shown where it is written."""

import shutil

import pytest

from support.project import NewProject, Project, head

pytestmark = pytest.mark.nvcc

MANIFEST = (
    head("gpu", "sm_80")
    + """\
[script.take]
template = "take.cu.j2"
kernel = "KERNEL"
launch = { grid = [1], block = [32] }
[script.take.args]
x = { type = "f32*[n]", out = true }
n = "i32"
p = "struct Params { f32 alpha; i32 count }"
"""
)
SOURCE = """\
struct Params { float alpha; int count; };
namespace ops {
template <class T, int N> __global__ void take(T *x, int n, Params p) { x[n] = p.alpha * N; }
__global__ void over(float *x, int n, Params p) {}
__global__ void over(double *x, int n, Params p) {}
}
"""


@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
@pytest.mark.parametrize(
    ("kernel", "nvcc", "nvrtc"),
    [
        ("ops::take<half, 3>", '"half" is undefined', '"half" is undefined'),
        ("ops::take<float>", 'take<float>" is not the name of one', "cannot determine which"),
        ("ops::over", '"ops::over" is not the name of one kernel', "cannot determine which"),
    ],
)
def test_a_name_that_is_wrong_is_shown_in_the_manifest(
    new_project: NewProject, compiler: str, kernel: str, nvcc: str, nvrtc: str
) -> None:
    project = new_project(MANIFEST.replace("KERNEL", kernel), {"take.cu.j2": SOURCE})
    ran = project.run("build", "--device-compiler", compiler, "--progress", "plain", status=1)
    (line,) = (line for line in ran.err.splitlines() if line.startswith("[1/1] take/0 gpu"))
    assert " does not compile: tilus.toml(11): error: " in line
    assert (nvcc if compiler == "nvcc" else nvrtc) in line
    assert f'   11 | kernel = "{kernel}"\n' in ran.err


def test_a_struct_that_is_another_is_shown_in_the_manifest(new_project: NewProject) -> None:
    manifest = MANIFEST.replace("KERNEL", "ops::take<float, 3>")
    project = new_project(manifest, {"take.cu.j2": SOURCE.replace("int count", "long long count")})
    error = project.run("build", status=1).err
    assert 'tilus.toml(16): error: static assertion failed with "Params is declared' in error
    assert '   16 | p = "struct Params { f32 alpha; i32 count }"\n' in error


def test_the_name_of_a_kernel_in_a_namespace_is_read(new_project: NewProject) -> None:
    source = SOURCE.replace("over(double", "other(double")
    project = new_project(MANIFEST.replace("KERNEL", "over"), {"take.cu.j2": source})
    assert project.compiled() == 1
    assert 'kernel = "ops::over"' in project.run("plan", "-v").out
    # Behind the macro of a header, only the compiled code says it.
    hidden = source.replace("__global__ void over", "KERNEL void over")
    project.write("marks.h", "#define KERNEL __global__\n")
    project.write("take.cu.j2", '#include "marks.h"\n' + hidden)
    error = project.run("build", status=1).err
    assert 'write kernel = "ops::over", or declare it extern "C"' in error


# Given sources with static variables and nothing that others could call, when they are compiled
# again, then the bytes are the same: nvcc and NVRTC would put their process id into the
# variables' names.
STATIC = (
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
    paths = (project.directory / ".cache/programs").rglob("module/*")
    return {str(path): path.read_bytes() for path in paths if path.suffix in (".so", ".o")}


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
            "tilus.toml": STATIC,
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
