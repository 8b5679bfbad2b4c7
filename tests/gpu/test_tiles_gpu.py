"""Tensor maps on the device: a kernel that reads and writes by them, in clusters."""

from pathlib import Path
from typing import Any

import pytest

from support import tiles
from support.project import Project
from tilusbuild.runtime.device import cuda

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]


def test_tiles_are_those_of_the_tensors(torch: Any, tmp_path: Path) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    device = cuda(0)
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
