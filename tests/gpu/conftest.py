"""Tests on a real CUDA device. They need a GPU, nvcc, and PyTorch built for CUDA."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch with a device; skips where it is missing."""
    found = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not found.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA device")
    return found


@dataclass(frozen=True)
class Example:
    """An example in a folder of its own, built into a cache of its own."""

    folder: Path
    target: str

    @property
    def cache(self) -> Path:
        return self.folder / ".cache"

    def run(self, *words: str) -> list[dict[str, Any]]:
        """The JSON lines that a command prints."""
        command = [sys.executable, "-m", "tilusbuild", *words, "--json"]
        ran = subprocess.run(
            [*command, "--cache-dir", str(self.cache)],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=3000,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.fixture
def example(torch: Any, tmp_path: Path) -> Callable[[str], Example]:
    """example(name) copies an example; skips where none of its targets is for this device."""
    from tilusbuild.runtime import compat
    from tilusbuild.runtime.device import cuda

    device = cuda(0)

    def make(name: str) -> Example:
        from tilusbuild.manifest import load

        folder = tmp_path / name
        shutil.copytree(EXAMPLES / name, folder)
        targets = load(os.path.join(folder, "tilus.toml")).targets
        fitting = [
            (compat.rank(arch, device.arch), target_name)
            for target_name, target in targets.items()
            for arch in target.arch
            if arch != "cpu" and compat.can_run(arch, device.arch)
        ]
        if not fitting:
            pytest.skip(f"the example {name} has no target for {device}")
        return Example(folder, min(fitting)[1])

    return make
