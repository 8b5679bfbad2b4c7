"""Call a few kernels of the kit once, for compute-sanitizer; torch makes the tensors."""

from __future__ import annotations

from pathlib import Path

import torch

import tilusbuild

PACKAGES = Path(__file__).resolve().parents[1] / "packages"

saxpy = tilusbuild.load("saxpy", where=str(PACKAGES / "quickstart"))
x, y = torch.ones(10_000, device="cuda"), torch.ones(10_000, device="cuda")
saxpy(2.0, x, y)
gemm = tilusbuild.load("gemm", where=str(PACKAGES / "gemm"), dtype="f16")
a, b = (torch.ones(200, 200, device="cuda", dtype=torch.half) for _ in range(2))
c = torch.empty_like(a)
gemm(a, b, c, 1.0)
torch.cuda.synchronize()
print("called saxpy and gemm", bool((y == 3).all()), bool((c == 200).all()))
