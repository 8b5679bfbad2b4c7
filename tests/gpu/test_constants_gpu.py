"""Constants on the device: what a launch copies is what its kernel reads, also in a graph."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilusbuild
from support.project import Project, head
from tilusbuild.runtime.device import get_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

MANIFEST = (
    head("gpu", "ARCH")
    + """\
[script.add]
template = "add.cu.j2"
kernel = "add"
launch = { grid = ["cdiv(n, 128)"], block = [128] }
[script.add.args]
w = { type = "f32*[k]", constant = "d_w" }
y = { type = "f32*[n]", out = true }
n = "i32"
k = { type = "i32", constant = true }
p = { type = "struct P { f32 by; i32 n }", constant = "nn::p" }
"""
)
SOURCE = """\
struct P { float by; int n; };
namespace nn { __constant__ P p; }
__constant__ float d_w[1024];
__constant__ int k;
extern "C" __global__ void add(float *y, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n && nn::p.n == n) y[i] = d_w[i % k] * nn::p.by;
}
"""
N = 1 << 16


def loaded(directory: Path, *changes: tuple[str, str]) -> Any:
    """The kernel, with these texts of its project replaced."""
    manifest, source = MANIFEST.replace("ARCH", get_gpu(0).arch), SOURCE
    for old, new in changes:
        manifest, source = manifest.replace(old, new), source.replace(old, new)
    project = Project(directory).write_all({"tilus.toml": manifest, "add.cu.j2": source})
    project.build()
    return tilusbuild.load("add", where=str(project.cache))


@pytest.fixture
def add(torch: Any, tmp_path: Path) -> Any:
    return loaded(tmp_path)


def wanted(torch: Any, weights: Any, by: float) -> Any:
    return (weights * by).repeat(N // len(weights) + 1)[:N]


def test_of_the_device_of_the_host_and_pinned(torch: Any, add: Any) -> None:
    y = torch.zeros(N, device="cuda")
    for size in (1, 7, 1024):
        weights = torch.randn(size)
        for tensor in (weights.cuda(), weights.numpy(), weights.pin_memory(), weights):
            y.zero_()
            add(tensor, y, {"by": 0.5, "n": N})
            torch.testing.assert_close(y, wanted(torch, weights, 0.5).cuda())
    with pytest.raises(ValueError, match='argument "w" has 4100 bytes; the variable "d_w" has'):
        add(np.zeros(1025, "f4"), y, {"by": 0.5, "n": N})


def test_what_the_host_changes_after_the_call_is_not_read(torch: Any, add: Any) -> None:
    y, weights = torch.zeros(N, device="cuda"), np.full(1024, 1.0, "f4")
    torch.cuda._sleep(100_000_000)
    add(weights, y, {"by": 1.0, "n": N})
    weights[:] = -1.0
    assert bool((y == 1.0).all())


def test_threads_of_one_stream_have_their_own(torch: Any, add: Any) -> None:
    results = [torch.zeros(N, device="cuda") for _ in range(8)]

    def call(number: int) -> None:
        for _ in range(50):
            add(np.full(3, number, "f4"), results[number], {"by": 1.0, "n": N})

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [float(y.mean()) for y in results] == [*range(8)]


WITHOUT_NUMBERS = (
    ('k = { type = "i32", constant = true }', 'k = "i32"'),
    ('p = { type = "struct P { f32 by; i32 n }", constant = "nn::p" }\n', ""),
    ("__constant__ int k;\n", ""),
    ("int n) {", "int n, int k) {"),
    (" && nn::p.n == n", ""),
    (" * nn::p.by", ""),
)


def test_a_graph_reads_the_device_and_takes_nothing_of_the_host(torch: Any, tmp_path: Path) -> None:
    add = loaded(tmp_path, *WITHOUT_NUMBERS)
    weights, y = torch.ones(4, device="cuda"), torch.zeros(N, device="cuda")
    add(weights, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add(weights, y)
        with pytest.raises(ValueError, match="which the graph that is captured would read later"):
            add(np.ones(4, "f4"), y)
    weights.fill_(3.0)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((y == 3.0).all())
