"""On a GPU: what a call, the examples' tuned kernels and the dispatch tables' choices are worth.

- a call: `Kernel(...)` beside `torch.add`, a custom operator over it, and Triton's launcher
- tuned: gemm and gemm_tma beside `torch.matmul` (cuBLAS), rms_norm beside PyTorch's, decode beside
  `scaled_dot_product_attention`, saxpy beside `torch.add`; memory-bound ones as a part of what a
  copy moves in a second. Both sides by Triton's `do_bench`, whose caches are cold
- regret: at random sizes, what the table chooses by the fastest program, less 1

Every result is compared with the peer's. The examples are built and tuned first, each with a budget
of `--budget` seconds. The clocks are used as found. It needs a GPU of compute capability 9.0,
PyTorch with Triton, and nvcc; without a GPU it ends at once: python benchmarks/device.py
"""

from __future__ import annotations

import glob
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from _bench import ROOT, TILUSBUILD, arguments, finish, workshop
from _device import (
    ELEMENTS,
    GEMM,
    LENGTHS,
    ROWS,
    calls,
    copy_speed,
    decode_rows,
    gemm_rows,
    regret,
    rms_norm_rows,
    saxpy_rows,
)


class Script(NamedTuple):
    """A script to build and tune."""

    example: str
    name: str
    target: str
    keys: str
    sizes: list[Any]
    constants: Mapping[str, Any]

    def label(self) -> str:
        words = ",".join(f"{name}={value}" for name, value in self.constants.items())
        return f"{self.name}[{words}]" if words else self.name


F16 = {"dtype": "f16"}
SCRIPTS = {
    "gemm": Script("gemm", "gemm", "hopper", "m n k", GEMM, F16),
    "gemm_tma": Script("gemm", "gemm_tma", "hopper", "m n k", GEMM, F16),
    "rms_norm": Script("quickstart", "rms_norm", "sm_90a", "m n", ROWS, {}),
    "saxpy": Script("quickstart", "saxpy", "sm_90a", "n", [(n,) for n in ELEMENTS], {}),
    "decode": Script(
        "attention", "decode", "ampere", "heads kv_heads length",
        [(32, 8, length) for length in LENGTHS], {"head_dim": 128},
    ),
}  # fmt: skip


def tuned(work: Path, script: Script, budget: int) -> Any:
    """Build and tune a script; return it, ready to be called."""
    import tilusbuild

    project = work / script.example
    if not project.exists():
        shutil.copytree(ROOT / "examples" / script.example, project)
    words = ["tune", script.label(), "-t", script.target, "--level", "2", "--budget", f"{budget}s"]
    for size in script.sizes:
        pairs = zip(script.keys.split(), size, strict=True)
        words += ["--size", ",".join(f"{name}={n}" for name, n in pairs)]
    command = [*TILUSBUILD, *words, "--quiet", "--cache-dir", str(project / ".cache")]
    subprocess.run(command, cwd=project, check=True, stdout=subprocess.DEVNULL)
    where = str(project / ".cache")
    return tilusbuild.load(script.name, where=where, target=script.target, **script.constants)


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    for row in rows:
        cells = (f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
        print("  " + "  ".join(cells))


def main() -> None:
    options = arguments(__doc__, budget=60)
    if not glob.glob("/dev/nvidia[0-9]*"):
        print("device: no GPU on this machine: nothing is measured")
        return
    import torch

    results: dict[str, Any] = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
    with workshop() as work:
        kernels = {k: tuned(work, s, options.budget) for k, s in SCRIPTS.items()}
        results["copy, TB/s"] = copied = copy_speed()
        results["a call, us"] = calls(kernels["saxpy"])
        for name in ("gemm", "gemm_tma"):
            results[name] = gemm_rows(kernels[name])
        results["rms_norm"] = rms_norm_rows(kernels["rms_norm"], copied)
        results["saxpy"] = saxpy_rows(kernels["saxpy"], copied)
        results["decode"] = decode_rows(kernels["decode"])
        cache = work / "quickstart" / ".cache"
        results["regret"] = regret(kernels["rms_norm"], cache, 10 if options.small else 200)
    for name, rows in results.items():
        if isinstance(rows, list):
            show(name, rows)
        else:
            print(f"{name}: {rows}")
    finish(options, [results])


if __name__ == "__main__":
    main()
