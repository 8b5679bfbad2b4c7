"""Tuning on the device, and the tuned GEMM beside cuBLAS (`torch.matmul`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import pytest

from tilusbuild.process.local import LocalRunner
from tilusbuild.runtime import load
from tilusbuild.tune.bench.bench import DeviceBench

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

NewExample = Callable[[str], Any]


def test_the_worker_and_torch_see_the_same_device(torch: Any) -> None:
    with LocalRunner() as runner:
        bench = DeviceBench(runner, "cuda", 0, {}, limit=60.0)
        try:
            said = bench.describe()
        finally:
            bench.close()
    major, minor = torch.cuda.get_device_capability(0)
    assert said["name"] == torch.cuda.get_device_name(0)
    assert said["arch"] == f"sm_{10 * major + minor}"


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


@pytest.mark.slow
def test_a_gemm_tuned_and_cublas(
    torch: Any, example: NewExample, record_property: Callable[[str, object], None]
) -> None:
    """Right at every size; how the times compare is recorded, and printed with -s."""
    project = example("gemm")
    sizes = [(16, 4096, 4096), (512, 512, 512), (4096, 4096, 4096)]
    words = [w for m, n, k in sizes for w in ("--size", f"m={m},n={n},k={k}")]
    *_, summary = project.events(
        "tune", "gemm", "-t", project.target, "--param", "dtype=f16", "--budget", "300s", *words
    )
    assert summary["without"] == 0
    gemm = load("gemm", where=project.cache, target=project.target, dtype="f16")
    for m, n, k in sizes:
        assert gemm.select(m=m, n=n, k=k).source == "measured"
        a = torch.randn(m, k, device="cuda", dtype=torch.float16)
        b = torch.randn(k, n, device="cuda", dtype=torch.float16)
        c = torch.empty(m, n, device="cuda", dtype=torch.float16)
        gemm(a, b, c, 1.0)
        expected = a.float() @ b.float()
        torch.testing.assert_close(c.float(), expected, rtol=2e-2, atol=2e-2 * k**0.5)
        ours = milliseconds(torch, partial(gemm, a, b, c, 1.0))
        theirs = milliseconds(torch, partial(torch.matmul, a, b, out=c))
        line = f"{torch.cuda.get_device_name(0)}: gemm {m} {n} {k}: {ours:.4f} ms, {theirs:.4f} ms"
        record_property(f"gemm {m} {n} {k}", line)
        print(f"{line} for torch.matmul, {theirs / ours:.2f} of its speed")


def milliseconds(torch: Any, call: Callable[[], Any]) -> float:
    """The median of 20 times 10 calls between two events, after a warm-up."""
    for _ in range(10):
        call()
    found = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(10):
            call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / 10)
    return median(found)
