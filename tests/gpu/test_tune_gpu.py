"""Tuning on the device."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tilusbuild.process.local import LocalRunner
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
