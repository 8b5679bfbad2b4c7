"""`[script.NAME.kernels]`: one template, several kernels, each a script with its own arguments."""

import numpy as np
import pytest

import tilusbuild
from support.project import NewProject, Project, head, needs_cxx

MANIFEST = (
    head("TARGET", "ARCH")
    + """\
[script.poly]
template = "poly.cu.j2"
space = { block = [64, 128] }
[script.poly.kernels.forward]
args = { x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i32" }
launch = { grid = ["cdiv(n, block)"], block = ["block"] }
default = { block = 128 }
[script.poly.kernels.backward]
kernel = "poly_backward"
args = { x = "f32*[n]", dy = "f32*[n]", dx = { type = "f32*[n]", out = true }, n = "i32" }
launch = { grid = ["cdiv(n, block)"], block = ["block"], smem = "4 * block" }
prune = { max-registers = 255 }
"""
)
CPU = """\
extern "C" void forward(const float *x, float *y, int n) {
  for (int i = 0; i < n; i++) y[i] = x[i] * x[i] + {{ block }};
}
extern "C" void poly_backward(const float *x, const float *dy, float *dx, int n) {
  for (int i = 0; i < n; i++) dx[i] = 2 * x[i] * dy[i];
}
"""
GPU = """\
__device__ int place() { return blockIdx.x * {{ block }} + threadIdx.x; }
extern "C" __global__ void forward(const float *x, float *y, int n) {
  if (place() < n) y[place()] = x[place()] * x[place()];
}
extern "C" __global__ void poly_backward(const float *x, const float *dy, float *dx, int n) {
  extern __shared__ float held[];
  held[threadIdx.x] = place() < n ? x[place()] : 0;
  __syncthreads();
  if (place() < n) dx[place()] = 2 * held[{{ block }} - 1 - threadIdx.x] * dy[place()];
}
"""


def on_cpu(new_project: NewProject) -> Project:
    needs_cxx()
    text = MANIFEST.replace("TARGET", "host").replace("ARCH", "cpu")
    return new_project(text, {"poly.cu.j2": CPU})


def test_each_kernel_is_loaded_and_called_by_its_name(new_project: NewProject) -> None:
    project = on_cpu(new_project)
    assert project.compiled() == 4
    x, dy = np.arange(4, dtype=np.float32), np.full(4, 0.5, np.float32)
    y, dx = np.zeros(4, np.float32), np.zeros(4, np.float32)
    tilusbuild.load("poly.forward", where=str(project.cache))(x, y)
    tilusbuild.load("poly.backward", where=str(project.cache))(x, dy, dx)
    np.testing.assert_array_equal(y, x * x + 128)
    np.testing.assert_array_equal(dx, x)
    assert project.compiled() == 0
    project.edit("poly.cu.j2", "2 * x[i]", "3 * x[i]")
    assert project.compiled("poly.backward") == 2
    assert project.compiled("poly") == 2, "the name of the script means all of its kernels"


def test_the_name_of_the_script_means_its_kernels_to_every_verb(new_project: NewProject) -> None:
    project = on_cpu(new_project)
    project.build()
    listed = project.run("cache", "ls", "poly", "--json").events
    assert {event["script"] for event in listed} == {"poly.forward", "poly.backward"}
    for words in (("cache", "show", "poly/1"), ("run", "poly/1", "--size", "n=8")):
        refused = project.run(*words, status=2).err
        assert "poly.forward/1" in refused, words
        assert "poly.backward/1" in refused, words


@pytest.mark.nvcc
def test_all_kernels_of_a_schedule_go_through_one_front_end(new_project: NewProject) -> None:
    text = MANIFEST.replace("TARGET", "gpu").replace("ARCH", "sm_80")
    project = new_project(text, {"poly.cu.j2": GPU})
    ran = project.run("build", "--json", "-v")
    ended = [event for event in ran.events if event["event"] == "finished"]
    assert [end["status"] for end in ended] == ["built"] * 4
    assert sum(" -ptx " in word for end in ended for word in end["commands"]) == 2
    for script, kernel in (("forward", "forward"), ("backward", "poly_backward")):
        (shown,) = project.run("cache", "show", "--json", f"poly.{script}/0").events
        assert [*shown["kernels"]] == [kernel]
    project.edit("tilus.toml", "max-registers = 255", "max-registers = 2")
    ran = project.run("build", "--json", "-v", status=None)
    ended = [event for event in ran.events if event["event"] == "finished"]
    assert {end["script"]: end["status"] for end in ended} == {"poly.backward": "pruned"}


def test_a_kernel_that_the_template_has_not_is_its_own_failure(new_project, tmp_path) -> None:
    project = on_cpu(new_project)
    project.edit("poly.cu.j2", "void poly_backward(", 'void {{ "poly_backwards" }}(')
    summary = project.build(status=1)
    assert (summary["compiled"], summary["failed"]) == (2, 2)
