"""What is carried to a GPU without a compiler: packages, and code from NVRTC."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tilusbuild
from tilusbuild.runtime import load

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

NewExample = Callable[[str], Any]
CALL = """\
import sys, torch, tilusbuild
saxpy = tilusbuild.load("saxpy", where=sys.argv[1])
x, y = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
expected = 3.0 * x + y
saxpy(3.0, x, y)
torch.testing.assert_close(y, expected)
assert not {"jinja2", "pydantic", "tilusbuild.engine"} & set(sys.modules)
"""


@pytest.mark.parametrize("form", ["dir", "tar.zst", "wheel"])
def test_a_package_is_called_where_it_lies(
    torch: Any, example: NewExample, form: str, tmp_path: Path
) -> None:
    project = example("quickstart")
    project.events("build", "--level", "0")
    event, _ = project.events("package", "--level", "0", "--format", form, "-o", tmp_path / "to")
    directory = event["path"]
    if form == "wheel":
        directory = tmp_path / "site"
        subprocess.run(
            [sys.executable, "-m", "zipfile", "-e", event["path"], directory], check=True
        )
        (directory,) = (path.parent for path in directory.rglob("tilus-package.json"))
    elif form == "tar.zst":
        project.run("install", event["path"], "--cache-dir", tmp_path / "installed")
        directory = tmp_path / "installed"
    environment = {**os.environ, "PATH": "/nowhere"}
    subprocess.run([sys.executable, "-c", CALL, str(directory)], env=environment, check=True)


def test_a_package_is_measured_with_python_alone(example: NewExample, tmp_path: Path) -> None:
    project = example("quickstart")
    project.run("build", "--level", "0")
    words = ("--with-tests", "--level", "0", "--format", "dir", "-o", tmp_path / "to")
    event, _ = project.events("package", *words)
    log = tmp_path / "log.jsonl"
    root = Path(tilusbuild.__file__).parents[1]
    start = (
        f"import sys; sys.path.insert(0, {str(root)!r}); from tilusbuild.check import __main__; "
    )
    run = [sys.executable, "-I", "-S", "-c", start + "sys.exit(__main__.main(sys.argv[1:]))"]
    run += [event["path"], "saxpy", "--measure", str(log), "--budget", "20s"]
    subprocess.run(run, cwd=tmp_path, env={"PATH": "/nowhere"}, check=True)
    *tuned, summary = project.events("tune", "--import", log, "--level", "0")
    assert (summary["tuned"], summary["without"]) == (2, 0)
    saxpy = load("saxpy", where=str(project.cache), target=project.target)
    assert saxpy.select(n=65_536).source == "measured"
    assert all(0 < line["seconds"] < 1e-3 for line in tuned)


def test_nvrtc_s_code_runs(torch: Any, example: NewExample) -> None:
    project = example("quickstart")
    words = ("rms_norm", "-t", project.target, "--device-compiler", "nvrtc")
    assert project.events("run", *words)[-1] == {"event": "summary", "calls": 3, "wrong": 0}
