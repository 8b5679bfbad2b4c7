"""Tests on a real CUDA device. They need a GPU, nvcc, and PyTorch built for CUDA."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import command_line
from support.paths import ROOT
from support.project import Project
from tilusbuild.runtime import load


@pytest.fixture(autouse=True)
def _with_torch(with_torch: None) -> None:
    """Processes call kernels on tensors of torch."""


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch with a device; skips where it is missing."""
    module = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not module.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA device")
    return module


@dataclass
class Example(Project):
    """An example in a directory of its own, built into a cache of its own."""

    target: str = ""

    def events(self, *words: str | Path) -> list[dict[str, Any]]:
        """The JSON lines that a command prints."""
        words = (*words, "--json", "--cache-dir", str(self.cache))
        return command_line.run(self.directory, *words, timeout=3000).events

    def load(self, script: str, **constants: Any) -> Any:
        """Build the default schedules of a script for the device, and load it."""
        self.events("build", script, "--target", self.target, "--level", "0")
        return load(script, where=self.cache, target=self.target, **constants)


@pytest.fixture
def example(torch: Any, tmp_path: Path) -> Callable[[str], Example]:
    """example(name) copies an example; skips where none of its targets is for this device."""
    from tilusbuild.runtime.choose import rank_code
    from tilusbuild.runtime.device import get_gpu

    device = get_gpu(0)

    def make(name: str) -> Example:
        from tilusbuild.manifest.loading import load_manifest

        directory = tmp_path / name
        shutil.copytree(ROOT / "examples" / name, directory)
        targets = load_manifest(os.path.join(directory, "tilus.toml")).targets
        fitting = [
            (rank, target_name)
            for target_name, target in targets.items()
            if (rank := rank_code(target.arch, target.ptx, device)[0])
        ]
        if not fitting:
            pytest.skip(f"the example {name} has no target for {device}")
        return Example(directory, target=min(fitting)[1])

    return make
