"""Real code for sm_80 with PTX and for sm_90a, packed by the command and asked about each GPU."""

import json
import os
from pathlib import Path

import pytest

from support.project import Project

MANIFEST = """\
edition = 1

[project]
name = "two-targets"
version = "1.0.0"

[target.ampere]
arch = "sm_80"
ptx = true
[target.hopper]
arch = "sm_90a"

[script.scale]
template = "scale.cu.j2"
kernel = "scale"
[script.scale.args]
x = "f32*[n]"
y = { type = "f32*[n]", out = true }
n = "i32"
[script.scale.launch]
grid = ["cdiv(n, 128)"]
block = ["128"]

[package.two-targets]
include = ["sources"]
"""

SCALE = """\
extern "C" __global__ void scale(const float *x, float *y, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
"""


@pytest.mark.nvcc
def test_each_gpu_gets_the_right_answer(project: Project, tmp_path: Path) -> None:
    """Given a package with both targets, when each GPU is asked about, then what NVIDIA's rules
    say; and its programs are reproduced from it."""
    own = type(project)(tmp_path)
    (tmp_path / "tilus.toml").write_text(MANIFEST)
    (tmp_path / "scale.cu.j2").write_text(SCALE)
    (tmp_path / ".git").mkdir()
    own.run("build")
    forms = [word for form in ("dir", "tar.zst", "oci", "wheel") for word in ("--format", form)]
    own.run("package", *forms)
    answers = {
        "sm_80": "ampere",
        "sm_86": "ampere",
        "sm_90": "hopper",
        "sm_100": "ampere",
        "sm_120": "ampere",
    }
    devices = [word for arch in answers for word in ("--device", arch)]
    (wheel,) = (name for name in os.listdir(tmp_path / "dist") if name.endswith(".whl"))
    own.run("install", f"dist/{wheel}", "--cache-dir", "installed")
    assert own.run("diff", "installed", ".cache").out == "nothing changed\n"
    for made in ("two-targets-1.0.0", "two-targets-1.0.0.tar.zst", "two-targets-1.0.0.oci", wheel):
        path = f"dist/{made}"
        own.run("verify", path)
        lines = own.run("preflight", path, *devices, "--json").out.splitlines()
        events = [json.loads(line) for line in lines]
        assert {e["device"]: e["target"] for e in events if "target" in e} == answers
        assert events[-1]["missing"] == 0
    reasons = {e["device"]: e["why"] for e in events if "why" in e}
    assert reasons["sm_120"] == "sm_80 PTX is compiled by the driver for sm_120"
    said = own.run("verify", "--rebuild", "dist/two-targets-1.0.0.tar.zst").out
    assert said.endswith("2 programs compiled again, 0 not reproduced\n")
