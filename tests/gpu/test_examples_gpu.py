"""The examples on the device, called through `load` with PyTorch's tensors."""

import json
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from tilusbuild.process.local import LocalRunner
from tilusbuild.runtime.errors import LoadError
from tilusbuild.tune.bench.bench import DeviceBench
from tilusbuild.tune.bench.devices import CudaDevice

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

NewExample = Callable[[str], Any]


@pytest.mark.parametrize("n", [1, 1000, 65_537, 1 << 22])
def test_saxpy(torch: Any, example: NewExample, n: int) -> None:
    saxpy = example("quickstart").load("saxpy")
    x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
    expected = 2.0 * x + y
    saxpy(2.0, x, y)
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize(("m", "n"), [(1, 1000), (7, 33), (128, 4096), (1000, 1024)])
def test_rms_norm(torch: Any, example: NewExample, m: int, n: int) -> None:
    rms_norm = example("quickstart").load("rms_norm")
    x, weight = torch.randn(m, n, device="cuda"), torch.randn(n, device="cuda")
    y = torch.empty_like(x)
    rms_norm(x, weight, y, 1e-6)
    expected = x * torch.rsqrt((x * x).mean(dim=1, keepdim=True) + 1e-6) * weight
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("script", ["gemm", "gemm_tma"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("m", "n", "k"), [(16, 1024, 1024), (130, 72, 200), (512, 512, 512)])
def test_gemm(
    torch: Any, example: NewExample, script: str, dtype: str, m: int, n: int, k: int
) -> None:
    project = example("gemm")
    if script == "gemm_tma" and project.target != "hopper":
        pytest.skip("needs a device of sm_90")
    gemm = project.load(script, dtype=dtype)
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    a = torch.randn(m, k, device="cuda").to(kind)
    b = torch.randn(k, n, device="cuda").to(kind)
    c = torch.empty(m, n, device="cuda", dtype=kind)
    gemm(a, b, c, 0.5)
    expected = (0.5 * (a.float() @ b.float())).to(kind)
    torch.testing.assert_close(c, expected, rtol=2e-2, atol=2e-2 * k**0.5)


@pytest.mark.parametrize(("rows", "columns"), [(1, 4), (33, 1000), (512, 16_384)])
def test_hopper(torch: Any, example: NewExample, rows: int, columns: int) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a device of sm_90")
    rms_norm = example("hopper").load("rms_norm")
    x = torch.randn(rows, columns, device="cuda")
    y, z = torch.empty_like(x), torch.empty_like(x)
    rms_norm(x, y, 1e-6)
    rms_norm(y, z, 1e-6)  # which depends on the call before
    once = x * torch.rsqrt((x * x).mean(dim=1, keepdim=True) + 1e-6)
    twice = once * torch.rsqrt((once * once).mean(dim=1, keepdim=True) + 1e-6)
    torch.testing.assert_close(z, twice, rtol=1e-4, atol=1e-4)


def test_run_and_tensors_on_the_wrong_device(torch: Any, example: NewExample) -> None:
    project = example("quickstart")
    *calls, summary = project.events("run", "rms_norm", "--target", project.target)
    assert summary["wrong"] == 0
    assert all(call["max_error"] < 1e-4 and 0 < call["seconds"] < 1 for call in calls)
    rms_norm = project.load("rms_norm")
    x, weight = torch.randn(4, 64), torch.randn(64)
    with pytest.raises(LoadError, match="the call's tensors are on the cpu"):
        rms_norm(x, weight, eps=1e-6)


def test_decode_runs_by_its_ptx(torch: Any, example: NewExample) -> None:
    project = example("attention")
    events = project.events("run", "decode[head_dim=128]", "--target", project.target)
    assert events[-1] == {"event": "summary", "calls": 2, "wrong": 0}


# Tuning on the device.


def test_the_worker_and_torch_see_the_same_device(torch: Any) -> None:
    with LocalRunner() as runner, closing(DeviceBench(runner, "cuda", 0, limit=60.0)) as bench:
        description = bench.describe_device()
    major, minor = torch.cuda.get_device_capability(0)
    assert description["name"] == torch.cuda.get_device_name(0)
    assert description["arch"] == f"sm_{10 * major + minor}"


def test_nvml_answers_and_a_graph_is_launched(torch: Any) -> None:
    pytest.importorskip("pynvml")
    device = CudaDevice(0)
    assert device.describe_device()["unwatched"] == ""
    address = device.allocate_memory(8)
    device.write_memory(address, b"abcd1234")
    graph = device._capture_launches(partial(device.copy_memory, address, address + 4, 4), 2)
    assert graph is not None
    assert device.read_memory(address, 8) == b"abcd1234", "it is only captured"
    device._launch_graph(graph)
    device.wait_for_calls()
    assert device.read_memory(address, 8) == b"12341234"


def test_a_stream_and_a_graph_of_torch_are_those_of_the_call(
    torch: Any, example: NewExample
) -> None:
    saxpy = example("quickstart").load("saxpy")
    x, y = torch.randn(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        saxpy(3.0, x, y)  # the first call takes its time on the host
        torch.cuda.synchronize()
        torch.cuda._sleep(50_000_000)
        y.fill_(1.0)
        saxpy(3.0, x, y)
    torch.cuda.synchronize()
    torch.testing.assert_close(y, 3.0 * x + 1.0, rtol=1e-5, atol=1e-5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        saxpy(2.0, x, y)
    y.zero_()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(y, 6.0 * x, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_tuning_saxpy(example: NewExample, cache: str) -> None:
    project = example("quickstart")
    *events, summary = project.events("tune", "saxpy", "-t", project.target, "--cache", cache)
    assert summary["without"] == 0
    for tuned in events:
        assert tuned["refused"] == {}
        assert 0 < tuned["seconds"] < 0.1
    logs = list((project.cache / "state" / "tune" / "saxpy").iterdir())
    samples = [json.loads(line) for line in logs[0].read_text().splitlines()]
    visible = [s for s in samples if s.get("note") == "launch latency shows"]
    assert len(visible) < len(samples) / 20, "the host keeps ahead of the device"
