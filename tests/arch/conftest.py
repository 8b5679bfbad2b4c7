"""A CUDA toolkit of this machine, for tests that take its own word as the oracle."""

import os
import re
import shutil
from pathlib import Path

import pytest

from support.processes import run_to_end


@pytest.fixture(scope="session")
def cuda_root() -> Path:
    """The directory that holds `bin/nvcc`, found without the code under test."""
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc")
    if nvcc is None or shutil.which("g++") is None:
        pytest.skip("needs nvcc and g++")
    asked = [nvcc, "--dryrun", "-x", "cu", "-E", "/dev/null"]
    log = run_to_end(asked, status=None).stderr
    tops = [line[7:] for line in log.splitlines() if line.startswith("#$ TOP=")]
    if not tops:
        pytest.skip("nvcc does not say where it is installed")
    return Path(tops[0]).resolve()


@pytest.fixture(scope="session")
def cuda_release(cuda_root: Path) -> tuple[int, int]:
    """(13, 0) for CUDA 13.0."""
    asked = [str(cuda_root / "bin" / "nvcc"), "--version"]
    said = run_to_end(asked).stdout
    found = re.search(r"release (\d+)\.(\d+)", said)
    assert found
    return int(found[1]), int(found[2])
