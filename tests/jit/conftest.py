"""A kernel for the host and for GPUs, as a source and as a project, and a cache of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.project import Project
from tilusbuild import Source, option

TEXT = """\
{% if target.kind == "cpu" %}
extern "C" void scale(float a, const float *x, float *y, long long n) {
  for (long long i = 0; i < n; ++i) y[i] = a * x[i] * {{ times }};
}
{% else %}
extern "C" __global__ void scale(float a, const float *x, float *y, long long n) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) y[i] = a * x[i] * {{ times }};
}
{% endif %}
"""

MANIFEST = """\
edition = 1
[project]
name = "p"
version = "0.1.0"
[target.host]
arch = "cpu"
[target.h100]
arch = "sm_90a"
[script.scale]
template = "scale.cu.j2"
kernel = "scale"
args = { a = "f32", x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i64" }
params = { kind = ["one", "two"] }
space = { times = [1, 2, 3] }
launch = { grid = ["cdiv(n, 256)"], block = [256] }
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache tree's directory."""
    for name in ("TARGET", "EXECUTION_BACKEND", "VERBOSE", "CACHE_DIR"):
        monkeypatch.delenv(f"TILUSBUILD_{name}", raising=False)
    with option.context():
        option.cache_dir(tmp_path / "cache")
        yield tmp_path / "cache"


@pytest.fixture
def source() -> Source:
    return Source(
        TEXT,
        kernel="scale",
        args={"a": "f32", "x": "f32*[n]", "y": {"type": "f32*[n]", "out": True}, "n": "i64"},
        launch={"grid": ["cdiv(n, 256)"], "block": [256]},
        space={"times": [1, 2, 3]},
    )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's directory, where the process is now."""
    kernel_project = Project(tmp_path / "project").write_all(
        {"tilus.toml": MANIFEST, "scale.cu.j2": TEXT}
    )
    monkeypatch.chdir(kernel_project.directory)
    return kernel_project.directory
