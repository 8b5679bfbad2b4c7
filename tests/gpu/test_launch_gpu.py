"""What a launch asks for beside a grid and a block, as a kernel on the device sees it."""

from pathlib import Path
from typing import Any

import pytest

from support import tiles
from support.project import Project, head
from tilusbuild.runtime import load
from tilusbuild.runtime.device import can_run, get_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

MANIFEST = (
    head("gpu", "sm_90")
    + """\
[script.seen]
template = "seen.cu.j2"
kernel = "seen"
[script.seen.args]
ranks = { type = "i32*[n]", out = true }
valid = { type = "i32*[n]", out = true }
n = "i32"
[script.seen.params]
blocks = [1, 2, 16]
[script.seen.launch]
grid = ["n"]
block = [32]
cluster = ["blocks"]
cooperative = "blocks == 1"
pdl = "blocks == 2"
carve-out = 50
"""
)

TEMPLATE = """\
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void seen(int *ranks, int *valid, int n) {
#if {{ blocks }} == 2
  cudaGridDependencySynchronize();
#endif
  if (threadIdx.x == 0) {
    ranks[blockIdx.x] = (int)cg::this_cluster().block_rank();
    valid[blockIdx.x] = cg::this_grid().is_valid();
  }
}
"""


@pytest.fixture
def project(torch: Any, tmp_path: Path) -> Project:
    device = get_gpu(0)
    if not can_run("sm_90", device.arch):
        pytest.skip(f"clusters need compute capability 9.0; this is {device}")
    kernel_project = Project(tmp_path).write_all({"tilus.toml": MANIFEST, "seen.cu.j2": TEMPLATE})
    kernel_project.build()
    return kernel_project


@pytest.mark.parametrize("blocks", [1, 2, 16])
def test_clusters_and_cooperative_launches(torch: Any, project: Project, blocks: int) -> None:
    seen = load("seen", where=project.cache, blocks=blocks)
    ranks, valid = (torch.full((64,), -1, dtype=torch.int32, device="cuda") for _ in range(2))
    for _ in range(2):  # with pdl, the second may start before the first has ended
        seen(ranks, valid)
    assert ranks.tolist() == [index % blocks for index in range(64)]
    assert valid.tolist() == [blocks == 1] * 64


# Tensor maps on the device: a kernel that reads and writes by them, in clusters.
def test_tiles_are_those_of_the_tensors(torch: Any, tmp_path: Path) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    device = get_gpu(0)
    if device.arch != "sm_90":
        pytest.skip(f"the kernel is for compute capability 9.0; this is {device}")
    project = Project(tmp_path).write_all({"tilus.toml": tiles.MANIFEST, **tiles.FILES})
    project.build()
    for program in project.programs.values():
        scale = tvm_ffi.load_module(str(program / "module" / "lib.so"))["launch"]
        for m, n in ((100, 200), (1, 8), (4096, 512)):
            x = torch.randn(m, n, device="cuda").to(torch.bfloat16)
            y = torch.zeros_like(x)
            for _ in range(3):  # one after the other overlap
                scale(x, y, 0.5)
            torch.testing.assert_close(y, x * 0.5)
