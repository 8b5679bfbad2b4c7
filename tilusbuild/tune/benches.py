"""The devices that a tuning measures on: GPUs, or cores of the processor, of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Literal, Protocol, TypeAlias

from tilusbuild.errors import input_error
from tilusbuild.process.local import LocalRunner
from tilusbuild.runtime.device import Device, may_have_cuda
from tilusbuild.tune.bench.bench import Bench, DeviceBench, ask_gpu

Devices: TypeAlias = tuple[int, ...] | Literal["all"]
"""Numbers of GPUs or of cores; () is GPU 0, or the processor with all of its cores."""


class BenchSource(Protocol):
    """Where the benches of a tuning come from."""

    def find_gpu(self) -> Device | None:
        """Return the first GPU; None without one. Raises `WorkerUnusableError`."""
        ...

    def open_benches(self, kind: str, *, limit: float, warmup: int) -> Sequence[Bench]:
        """Return a bench for each device of a kind; the parameters are those of `DeviceBench`.
        Raises `InputError` and `WorkerUnusableError`."""
        ...


class LocalBenches:
    """The devices of this machine."""

    def __init__(self, runner: LocalRunner, devices: Devices) -> None:
        self._runner = runner
        self._devices = devices

    def find_gpu(self) -> Device | None:
        """Return the first GPU that is asked for."""
        index = self._devices[0] if isinstance(self._devices, tuple) and self._devices else 0
        return ask_gpu(self._runner, index) if may_have_cuda() else None

    def open_benches(self, kind: str, *, limit: float, warmup: int) -> Sequence[Bench]:
        """Return a bench for each device; its process starts later. To count all GPUs, a worker is
        started now, and stopped."""

        def open_bench(index: int, core: int | None = None) -> DeviceBench:
            return DeviceBench(self._runner, kind, index, limit=limit, warmup=warmup, core=core)

        if kind == "cpu":
            return [open_bench(0, core) for core in _list_cores(self._devices)]
        if self._devices != "all":
            return [open_bench(index) for index in self._devices or (0,)]
        with closing(open_bench(0)) as first:
            return [open_bench(index) for index in range(first.describe_device()["count"])]


def _list_cores(devices: Devices) -> Sequence[int | None]:
    """Return the cores to which workers are pinned; None for one that is not. Raises `InputError`
    for a core that this process may not use."""
    available = sorted(os.sched_getaffinity(0))
    if devices == "all":
        return available
    for core in devices:
        if core not in available:
            cores = ", ".join(map(str, available))
            raise input_error(f"--device {core}: the cores of this process are {cores}")
    return devices or (None,)


def parse_devices(text: str | None) -> Devices:
    """Return the devices of `--device 0,1,2` or `--device all`; () without the option. Raises
    `InputError`."""
    if text == "all":
        return "all"
    words = text.split(",") if text is not None else []
    if not all(word.isascii() and word.isdigit() for word in words) or len({*words}) < len(words):
        raise input_error(f'--device "{text}": write numbers, each once, as 0,1,2, or all')
    return tuple(map(int, words))


def select_one_model(
    benches: Sequence[Bench], on_other: Callable[[str], None]
) -> tuple[Sequence[Bench], Sequence[dict[str, Any]]]:
    """Return the benches with a device like the first one, and the facts of each. The others are
    closed, and `on_other` gets a message for each. Raises `WorkerUnusableError`."""
    selected, facts = [], list[dict[str, Any]]()
    for bench in benches:
        description = bench.describe_device()
        # The log and the tables are those of a model with a driver.
        differing = [
            name
            for name in ("name", "arch", "driver")
            if facts and description[name] != facts[0][name]
        ]
        if differing:
            bench.close()
            texts = (f"{name} {description[name]}, not {facts[0][name]}" for name in differing)
            on_other(f"{description['id']} is left out: {', '.join(texts)}")
        else:
            selected.append(bench)
            facts.append(description)
    return selected, facts
