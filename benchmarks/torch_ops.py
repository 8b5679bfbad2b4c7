"""What an op of `tilusbuild.torch.register` costs over `torch.library.custom_op` around the kernel.

Each arm calls the same kernel with the same tensors: an op of `register`, `custom_op` around a
function that calls the kernel, and that function by itself. With and without gradients being
recorded, for an output that is returned, for one that is mutated, and compiled by `torch.compile`
(`inductor`). Needs torch and a C++ compiler: python benchmarks/torch_ops.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _bench import TILUSBUILD, Arm, Ran, alternate, arguments, finish, process, report, workshop

MANIFEST = """\
edition = 1
[project]
name = "ops"
version = "0.1.0"
[build]
cache-dir = "cache"
[target.cpu]
arch = "cpu"
[script.scale]
template = "ops.cu.j2"
kernel = "scale"
args = { a = "f32", x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i32" }
[script.add]
template = "ops.cu.j2"
kernel = "add"
args = { a = "f32", x = "f32*[n]", y = { type = "f32*[n]", inout = true }, n = "i32" }
"""
TEMPLATE = """\
extern "C" void scale(float a, const float *x, float *y, int n) {
  for (int i = 0; i < n; i++) y[i] = a * x[i];
}
extern "C" void add(float a, const float *x, float *y, int n) {
  for (int i = 0; i < n; i++) y[i] += a * x[i];
}
"""


def repeated(name: str, call: Callable[[], Any], count: int, expected: Any) -> Arm:
    """An arm of `count` calls in a loop of this process."""

    def run() -> Ran:
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(count):
            call()
        return Ran(time.perf_counter() - began, time.process_time() - cpu, 0)

    return Arm(name, run, lambda: expected is None or bool((call() == expected).all()))


def main() -> None:
    """Build, and compare."""
    asked = arguments(__doc__, rounds=11, calls=5000)
    rounds, count = (1, 20) if asked.small else (asked.rounds, asked.calls)
    with workshop() as directory:
        (directory / "tilus.toml").write_text(MANIFEST)
        (directory / "ops.cu.j2").write_text(TEMPLATE)
        process([*TILUSBUILD, "build"], directory)
        finish(asked, measured(directory, rounds, count))


def measured(directory: Path, rounds: int, count: int) -> list[dict[str, object]]:
    """The tables."""
    import torch

    import tilusbuild.torch

    ops = tilusbuild.torch.register("bench", directory / "cache")
    scale_kernel = tilusbuild.load("scale", where=directory / "cache")
    add_kernel = tilusbuild.load("add", where=directory / "cache")

    def scale(a: float, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = scale_kernel(a, x)
        return output

    def add(a: float, x: torch.Tensor, y: torch.Tensor) -> None:
        add_kernel(a, x, y)

    names = {"a": float, "x": torch.Tensor, "y": torch.Tensor}
    scale.__annotations__ = {"a": float, "x": torch.Tensor, "return": torch.Tensor}
    add.__annotations__ = {**names, "return": None}
    custom_scale = torch.library.custom_op("peer::scale", scale, mutates_args=())
    custom_scale.register_fake(lambda a, x: torch.empty_like(x))
    custom_add = torch.library.custom_op("peer::add", add, mutates_args=("y",))
    custom_add.register_fake(lambda a, x, y: None)
    x, y = torch.ones(1000), torch.zeros(1000)

    backend = "aot_eager" if rounds == 1 else "inductor"  # which takes seconds to compile

    def compiled(op: Callable[..., Any]) -> Callable[[], Any]:
        compiled_function = torch.compile(
            lambda x: op(2.0, op(2.0, x + 1)) * 2, fullgraph=True, backend=backend
        )
        return lambda: compiled_function(x)

    def table(title: str, calls: dict[str, Callable[[], Any]], expected: Any) -> dict[str, object]:
        arms = [repeated(name, call, count, expected) for name, call in calls.items()]
        alternate(arms, rounds)
        return report(f"{title}: {count:,} calls", arms)

    returned: dict[str, Callable[[], Any]] = {
        "register": lambda: ops.scale(2.0, x),
        "custom_op": lambda: custom_scale(2.0, x),
        "the kernel": lambda: scale(2.0, x),
    }
    mutated: dict[str, Callable[[], Any]] = {
        "register": lambda: ops.add(2.0, x, y),
        "custom_op": lambda: custom_add(2.0, x, y),
        "the kernel": lambda: add(2.0, x, y),
    }
    inside = {"register": compiled(ops.scale), "custom_op": compiled(custom_scale)}
    tables = [
        table("an output returned", returned, x * 2),
        table("an argument mutated", mutated, None),
        table("two ops in a compiled function", inside, (x + 1) * 8),
    ]
    with torch.inference_mode():
        tables.append(table("an output returned, inference mode", returned, x * 2))
    return tables


if __name__ == "__main__":
    main()
