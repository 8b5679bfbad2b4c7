"""A step of the device kit with torch: `calls`, `kernels` or `dispatch`; a line of JSON a result.

Kernels come from the kit's packages. Beside cuBLAS and SDPA stands the fastest program of a
package at each size, which is what tuning there would choose.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _device
import torch
import tvm_ffi

import tilusbuild

HERE = Path(__file__).resolve().parents[1]


def tell(**row: Any) -> None:
    print(json.dumps(row), flush=True)


def kernel(package: str, script: str, **constants: Any) -> Any:
    return tilusbuild.load(script, where=str(HERE / "packages" / package), **constants)


def programs(package: str, loaded: Any) -> dict[int, Callable[..., Any]]:
    """The launch functions of a kernel's programs, by number."""
    launch_by_number: dict[int, Callable[..., Any]] = {}
    for program in loaded.programs:
        path = HERE / "packages" / package / "programs" / program.hash / "module" / "lib.so"
        if path.exists():
            launch_by_number[program.number] = tvm_ffi.load_module(str(path))["launch"]
    return launch_by_number


class Fastest:
    """A kernel that calls, at each size, the program that is fastest there."""

    def __init__(self, package: str, loaded: Any) -> None:
        self._programs = programs(package, loaded)
        self._known: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        key = tuple(
            argument.shape if hasattr(argument, "shape") else None for argument in arguments
        )
        if key not in self._known:
            times = {}
            for number, launch in self._programs.items():
                try:
                    times[number] = _device.warm(launch, arguments)
                except RuntimeError:
                    torch.cuda.synchronize()  # it refuses these sizes
            self._known[key] = self._programs[min(times, key=lambda number: times[number])]
        return self._known[key](*arguments)


def calls() -> None:
    """Streams, a graph, two threads, another device, other frameworks; then what a call costs."""
    saxpy = kernel("quickstart", "saxpy")
    for name, way in WAYS.items():
        try:
            tell(way=name, right=bool(way(saxpy)))
        except ModuleNotFoundError as missing:
            tell(way=name, left_out=f"no {missing.name}")
        except Exception as error:
            tell(way=name, error=f"{type(error).__name__}: {error}"[:300])
    for name, (middle, least, most) in _device.calls(saxpy).items():
        tell(call=name, us=middle, least=least, most=most)


def _tensors(device: str = "cuda") -> tuple[Any, Any, Any]:
    x, y = torch.randn(10_000, device=device), torch.randn(10_000, device=device)
    return x, y, 2 * x + y


def on_a_stream(saxpy: Any) -> bool:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x, y, want = _tensors()
        torch.cuda._sleep(10_000_000)
        x.mul_(1.0)
        saxpy(2.0, x, y)
    stream.synchronize()
    return torch.allclose(y, want)


def in_a_graph(saxpy: Any) -> bool:
    x, y, want = _tensors()
    first = y.clone()
    saxpy(2.0, x, y)
    y.copy_(first)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        saxpy(2.0, x, y)
    y.copy_(first)
    graph.replay()
    torch.cuda.synchronize()
    return torch.allclose(y, want)


def in_two_threads(saxpy: Any) -> bool:
    right: list[bool] = []

    def work() -> None:
        for _ in range(50):
            x, y, want = _tensors()
            saxpy(2.0, x, y)
            right.append(torch.allclose(y, want))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(right) == 100 and all(right)


def on_a_second_device(saxpy: Any) -> bool:
    if torch.cuda.device_count() < 2:
        raise ModuleNotFoundError(name="second device")
    x, y, want = _tensors("cuda:1")
    saxpy(2.0, x, y)
    return torch.allclose(y, want)


def from_cupy(saxpy: Any) -> bool:
    import cupy  # type: ignore[import-not-found]

    x, y = cupy.arange(1000, dtype="f4"), cupy.ones(1000, dtype="f4")
    saxpy(2.0, x, y)
    cupy.cuda.Device().synchronize()
    return bool((y == 2 * x + 1).all())


def from_jax(saxpy: Any) -> bool:
    import jax  # type: ignore[import-not-found]

    x = jax.numpy.arange(1000, dtype="f4").block_until_ready()
    y = torch.ones(1000, device="cuda")
    saxpy(2.0, x, y)
    torch.cuda.synchronize()
    return bool((y.cpu().numpy() == 2 * jax.device_get(x) + 1).all())


WAYS: dict[str, Callable[[Any], bool]] = {
    "torch, a stream of its own": on_a_stream,
    "torch, a CUDA graph": in_a_graph,
    "torch, two threads": in_two_threads,
    "torch, a second device": on_a_second_device,
    "CuPy": from_cupy,
    "JAX": from_jax,
}


def kernels() -> None:
    """Tuned kernels beside what people use."""
    copied = _device.copy_speed()
    tell(copy_tb_s=copied)
    for name, rows in _rows(copied):
        for row in rows:
            tell(kernel=name, **row)


def _rows(copied: float) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for name in ("gemm", "gemm_tma"):
        try:
            loaded = kernel("gemm", name, dtype="f16")
        except tilusbuild.LoadError as error:
            tell(kernel=name, left_out=str(error).splitlines()[0])
            continue
        yield name, _device.gemm_rows(Fastest("gemm", loaded))
    decode = kernel("attention", "decode", head_dim=128)
    yield "decode", _device.decode_rows(Fastest("attention", decode))
    for name, rows in (("rms_norm", _device.rms_norm_rows), ("saxpy", _device.saxpy_rows)):
        yield name, rows(Fastest("quickstart", kernel("quickstart", name)), copied)


def dispatch() -> None:
    """What the package's choice costs over the fastest program, at random sizes."""
    tell(**_device.regret(kernel("quickstart", "rms_norm"), HERE / "packages" / "quickstart", 200))


if __name__ == "__main__":
    {"calls": calls, "kernels": kernels, "dispatch": dispatch}[sys.argv[1]]()
