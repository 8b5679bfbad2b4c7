"""RMSNorm from its manifest to a deployment: tuned on the cpu, and called without the builder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import command_line
from support.command_line import Ran
from tilusbuild.runtime import load
from tilusbuild.runtime.script import rounding

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, tuned over a grid of sizes."""
    directory = tmp_path_factory.mktemp("deployment") / "quickstart"
    shutil.copytree(EXAMPLE, directory, ignore=shutil.ignore_patterns(".cache"))
    grid = ("--grid", "m=1,64", "--grid", "n=1000,4096", "--cache", "warm", "--budget", "160")
    tuned = command(directory, "tune", "rms_norm", "--target", "cpu", *grid)
    assert "m=1, n=4096" in tuned.err
    return directory


def command(directory: Path, *words: str) -> Ran:
    return command_line.run(directory, *words, "--cache-dir", directory / ".cache")


def numbers(m: int, n: int) -> tuple[Any, Any, Any]:
    """Two inputs, and what comes of them."""
    random = np.random.default_rng(m * n)
    x, weight = random.standard_normal((m, n), "f4"), random.standard_normal(n, "f4")
    mean = (x.astype("f8") ** 2).mean(axis=1, keepdims=True)
    return x, weight, (x / np.sqrt(mean + 1e-6) * weight).astype("f4")


SIZES = [(m, n) for m in (1, 64) for n in (1000, 4096)]


def test_the_table_says_what_was_measured(tuned: Path) -> None:
    shown = command(tuned, "dispatch", "show", "rms_norm", "--target", "cpu").out
    rows = [line.split() for line in shown.splitlines() if " measured " in line]
    assert [tuple(map(int, row[:2])) for row in rows] == [
        (m, rounding("tilus")(n)) for m, n in SIZES
    ]
    assert all(float(row[-1]) > 0 for row in rows)


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_calls_with_numpy_are_right_and_as_measured(tuned: Path, m: int, n: int) -> None:
    rms_norm = load("rms_norm", where=tuned / ".cache", target="cpu", strict=True)
    x, weight, want = numbers(m, n)
    assert rms_norm.select(m=m, n=n).source == "measured"
    np.testing.assert_allclose(rms_norm(x, weight, eps=1e-6), want, rtol=1e-4, atol=1e-6)


def test_calls_go_through_the_dispatcher_that_tuning_made(tuned: Path) -> None:
    rms_norm = load("rms_norm", where=tuned / ".cache", target="cpu", strict=True)
    x, weight, want = numbers(1, 1000)
    for _ in range(2):
        np.testing.assert_allclose(rms_norm(x, weight, eps=1e-6), want, rtol=1e-4, atol=1e-6)
    assert rms_norm._direct is not None
    assert "no problems found" in command(tuned, "dispatch", "check", "rms_norm", "-t", "cpu").out


def test_calls_with_torch_are_right(tuned: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rms_norm = load("rms_norm", where=tuned / ".cache", target="cpu", strict=True)
    x, weight, want = (torch.from_numpy(array) for array in numbers(64, 4096))
    torch.testing.assert_close(rms_norm(x, weight, eps=1e-6), want, rtol=1e-4, atol=1e-6)


DEPLOYED = """\
import importlib.metadata, json, sys

gone = json.loads(sys.argv[2])

class Nothing:
    def find_spec(self, name, path=None, target=None):
        builder = name.startswith("tilusbuild.") and not name.startswith("tilusbuild.runtime")
        if builder or name.partition(".")[0] in gone:
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Nothing())
import numpy as np
import tilusbuild

rms_norm = tilusbuild.load("rms_norm", where=sys.argv[1], target="cpu", strict=True)
y = rms_norm(np.full((64, 4096), 3, "f4"), np.full(4096, 2, "f4"), eps=0.0)
print(rms_norm.select(m=64, n=4096).source, y.min(), y.max())
"""


def test_a_deployment_has_none_of_the_builder_s_packages(tuned: Path) -> None:
    gone = ["pydantic", "pydantic_core", "jinja2", "rich", "watchdog", "zstandard", "tomli"]
    done = subprocess.run(
        [sys.executable, "-c", DEPLOYED, str(tuned / ".cache"), json.dumps(gone)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["measured", "2.0", "2.0"]
