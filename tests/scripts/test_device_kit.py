"""The device kit: one archive that tests itself where there is Python and nothing else."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT
from support.project import needs_cxx

ALONE = ["unshare", "-n", "env", "-i", "HOME=/nonexistent", "DEVICE=cpu"]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small kit of what runs without a GPU, unpacked elsewhere."""
    needs_cxx()
    made = tmp_path_factory.mktemp("made")
    command = [sys.executable, str(ROOT / "scripts/device_kit/make.py"), "--output", str(made)]
    ended = subprocess.run(
        [*command, "--examples", "quickstart", "--host"],
        capture_output=True,
        text=True,
        check=False,
    )
    if "No matching distribution" in ended.stderr:
        pytest.skip("the kit's wheels come from PyPI, which pip does not reach")
    assert ended.returncode == 0, ended.stderr
    there = tmp_path_factory.mktemp("there")
    with tarfile.open(made / "device-kit.tar.gz") as tar:
        tar.extractall(there)
    shutil.rmtree(made)
    return there / "device-kit"


def ran(kit: Path, *words: str, status: int = 0) -> dict[str, Any]:
    """The results of a run without network, compiler, checkout and environment, by a Python that
    is not the test's where there is one."""
    if subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode:
        pytest.skip("a namespace without network needs root")
    tools = kit.parent / "bin"
    tools.mkdir(exist_ok=True)
    if not (tools / "dirname").exists():
        (tools / "dirname").symlink_to(shutil.which("dirname") or "")
    python = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    command = [*ALONE, f"PATH={tools}", f"PYTHON={python}", "/bin/sh", str(kit / "run.sh"), *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert ended.returncode == status, ended.stdout + ended.stderr
    shown = [line for line in ended.stdout.splitlines() if line and not line.endswith("…")]
    assert 0 < len(shown) <= 60
    found: dict[str, Any] = json.loads((kit / "results.json").read_text())
    return found["steps"]


def test_everything_that_needs_no_gpu_runs(kit: Path) -> None:
    steps = ran(kit, "--minutes", "1")
    checked = steps["check"]["result"]["quickstart"]
    assert checked["right"] == checked["calls"] == 12
    assert steps["machine"]["result"]["tools"] == {}
    (bundle,) = steps["tune"]["result"].values()
    assert bundle["ended"] == 0
    assert any(json.loads(line)["what"] == "sample" for line in bundle["log"])
    assert steps["kernels"]["result"] == {"left out": "no GPU"}
    assert steps["tests/gpu"]["result"]["left out"].startswith("needs torch")


def test_a_wrong_program_fails_the_run_and_is_named(kit: Path) -> None:
    """A library that was damaged on the way; a step without time says so."""
    library = min((kit / "packages/quickstart").glob("programs/*/module/lib.so"))
    library.write_bytes(library.read_bytes() + b"x")
    steps = ran(kit, "--only", "check", status=1)
    wrong = steps["check"]["result"]["quickstart"]["wrong"]
    assert {row["status"] for row in wrong} == {"corrupt"}
    assert ran(kit, "--minutes", "0")["check"] == {"left out": "no time was left"}
