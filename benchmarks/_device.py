"""What kernels are worth on a GPU, beside what people use: the measuring part of `device.py`.

It needs PyTorch with Triton, and the runtime. The device kit carries it to machines that have no
compiler and none of tilusbuild's builder.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SQUARES = (512, 1024, 2048, 4096, 8192)
GEMM = [*((m, 4096, 4096) for m in (16, 64, 128, 256)), *((n, n, n) for n in SQUARES)]
ROWS = list(itertools.product((1, 64, 1024, 8192), (256, 1000, 4096)))
ELEMENTS = [1 << power for power in (20, 24, 28)]
LENGTHS = [300, 4096, 32_768]
TOLERANCE = 1e-2


def milliseconds(call: Callable[[], Any]) -> float:
    """Return the median of a call's times on the device, with cold caches."""
    from triton.testing import do_bench

    return float(do_bench(call, warmup=15, rep=60, return_mode="median"))


def beside(name: str, size: Any, kernel_call: Any, peer_call: Any, got: Any) -> dict[str, Any]:
    """Call both, compare what ours leaves in `got` with what the peer returns, time both."""
    kernel_call()
    expected = peer_call().reshape(got.shape).double()
    error = float((got.double() - expected).norm() / expected.norm())
    if not error < TOLERANCE:
        raise AssertionError(f"{name} at {size}: error {error}")
    mine, other = milliseconds(kernel_call), milliseconds(peer_call)
    return {"size": size, "us": mine * 1e3, "peer us": other * 1e3, "by peer": mine / other}


def normal(*shape: int, dtype: str = "float32") -> Any:
    import torch

    return torch.randn(*shape, device="cuda").to(getattr(torch, dtype))


def gemm_rows(gemm: Any) -> list[dict[str, Any]]:
    import torch

    rows = []
    for m, n, k in GEMM:
        a, b = normal(m, k, dtype="half"), normal(k, n, dtype="half")
        c, d = a.new_empty(m, n), a.new_empty(m, n)
        row = beside(
            "gemm", (m, n, k), lambda a=a, b=b, c=c: gemm(a, b, c, 1.0),
            lambda a=a, b=b, d=d: torch.matmul(a, b, out=d), c,
        )  # fmt: skip
        rows.append({**row, "TFLOP/s": 2 * m * n * k / row["us"] / 1e6})
    return rows


def rms_norm_rows(rms_norm: Any, copied: float) -> list[dict[str, Any]]:
    import torch

    rows = []
    for m, n in ROWS:
        x, w = normal(m, n), normal(n)
        y = torch.empty_like(x)
        row = beside(
            "rms_norm", (m, n), lambda x=x, w=w, y=y: rms_norm(x, w, y, 1e-6),
            lambda x=x, w=w, n=n: torch.nn.functional.rms_norm(x, (n,), w, 1e-6), y,
        )  # fmt: skip
        rows.append({**row, "of a copy": 8 * m * n / row["us"] / 1e6 / copied})
    return rows


def saxpy_rows(saxpy: Any, copied: float) -> list[dict[str, Any]]:
    import torch

    rows = []
    for n in ELEMENTS:
        x, y = normal(n), normal(n)
        z = y.clone()
        row = beside(
            "saxpy", n, lambda x=x, y=y: saxpy(2.0, x, y),
            lambda x=x, z=z: torch.add(z, x, alpha=2.0, out=z), y,
        )  # fmt: skip
        rows.append({**row, "of a copy": 12 * n / row["us"] / 1e6 / copied})
    return rows


def decode_rows(decode: Any) -> list[dict[str, Any]]:
    import torch

    attend = torch.nn.functional.scaled_dot_product_attention
    rows = []
    for length in LENGTHS:
        q, k, v = normal(32, 128), normal(length, 8, 128), normal(length, 8, 128)
        o, heads = torch.empty_like(q), [t.transpose(0, 1).unsqueeze(0) for t in (k, v)]
        asked = q.view(1, 32, 1, 128)
        row = beside(
            "decode", length, lambda q=q, k=k, v=v, o=o: decode(q, k, v, o, 0.088),
            lambda asked=asked, heads=heads: attend(asked, *heads, scale=0.088, enable_gqa=True), o,
        )  # fmt: skip
        rows.append(row)
    return rows


def copy_speed() -> float:
    """Return terabytes a second, read and written, of a copy of 1 GiB."""
    import torch

    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / milliseconds(lambda: target.copy_(source)) / 1e9


def calls(saxpy: Any) -> dict[str, list[float]]:
    """Return microseconds of the host for a call, none of which waits: median, least, greatest."""
    import torch
    from _triton_saxpy import kernel

    x, y = normal(1024), normal(1024)
    torch.library.define("tilusbuild_bench::saxpy", "(float a, Tensor x, Tensor(a!) y) -> ()")
    torch.library.impl("tilusbuild_bench::saxpy", "CUDA")(saxpy)
    ways: dict[str, Callable[[], Any]] = {
        "Kernel": lambda: saxpy(2.0, x, y),
        "torch.add(out=)": lambda: torch.add(x, y, out=y),
        "torch.ops over Kernel": lambda: torch.ops.tilusbuild_bench.saxpy(2.0, x, y),
        "Triton": lambda: kernel[(4,)](x, y, 2.0, 1024, BLOCK=256),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(16):
        for name, way in ways.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(300):
                way()
            if number:  # the first round loads and compiles
                times[name].append((time.perf_counter() - start) / 300 * 1e6)
    return {name: [statistics.median(t), min(t), max(t)] for name, t in times.items()}


def regret(kernel: Any, work: Path, count: int) -> dict[str, Any]:
    """Measure all programs of rms_norm at random sizes, warm."""
    import torch
    import tvm_ffi

    programs = {
        p.number: tvm_ffi.load_module(str(work / "programs" / p.hash / "module" / "lib.so"))
        for p in kernel.programs
    }
    drawn, regrets = random.Random(1), []
    for _ in range(count):
        m, n = int(2 ** drawn.uniform(0, 14)), int(2 ** drawn.uniform(7, 13))
        x, w = normal(m, n), normal(n)
        arguments = (x, w, torch.empty_like(x), 1e-6)
        times = {number: warm(p["launch"], arguments) for number, p in programs.items()}
        regrets.append(times[kernel.select(m=m, n=n).program] / min(times.values()) - 1)
    regrets.sort()
    return {"sizes": count, "mean": statistics.mean(regrets), "median": regrets[count // 2],
            "95 %": regrets[count * 95 // 100], "worst": regrets[-1]}  # fmt: skip


def warm(launch: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    """Return the least of three groups of five launches, in milliseconds a launch."""
    import torch

    launch(*arguments)
    best = float("inf")
    for _ in range(3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(60_000)
        start.record()
        for _ in range(5):
            launch(*arguments)
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 5)
    return best
