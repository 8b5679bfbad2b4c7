"""A project built once for the cpu target, and copies of its tree for tests that change it.

`mark` writes `10 * x + variant`, so a result says which program ran. Its variants 0 to 3 are
programs 0 to 3; rules and default are in the manifest below.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilusbuild.runtime.script import Script, read_script

MANIFEST = """\
edition = 1

[project]
name = "marks"
version = "0.1.0"

[target.cpu]
arch = "cpu"
facts = { dram_gbs = 10, tflops = 0.5 }

[script.mark]
template = "mark.cu.j2"
kernel = "mark"
default = { variant = 1 }

[script.mark.args]
x = "f32*[n]"
y = { type = "f32*[n]", out = true }
n = "i64"

[script.mark.space]
variant = { range = [0, 3] }

[script.mark.dispatch]
keys = ["n"]
table = [{ when = "n <= 4", use = { variant = 2 } }]

[script.modelled]
template = "modelled.cu.j2"
kernel = "modelled"

[script.modelled.args]
x = "real*[m, n]"
y = { type = "real*[m, n * 2]", out = true }
m = "i32"
n = "i32"
k = "i32"

[script.modelled.params]
real = ["f32", "f64"]

[script.modelled.space]
tile = { pow2 = [8, 64] }

[script.modelled.dispatch]
keys = ["m", "n", "k"]
bucket = { m = "pow2", n = [16, 256], k = { every = 100 } }
model = "abs(tile - m) + cdiv(n, tile) * 0.5"

[script.roofed]
template = "mark.cu.j2"
kernel = "mark"
default = { variant = 0 }
args = { x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i64" }

[script.roofed.space]
variant = { range = [0, 2] }

[script.roofed.dispatch]
keys = ["n"]
bytes = "align(n, pow2(6 * variant)) * 8"
flops = "n * 1000 * (3 - variant)"
"""

MARK = """\
extern "C" void mark(const float *x, float *y, long long n) {
  for (long long i = 0; i < n; i++) y[i] = 10 * x[i] + {{ variant }};
}
"""

MODELLED = """\
{% set type = "float" if real == "f32" else "double" %}
extern "C" void modelled(const {{ type }} *x, {{ type }} *y, int m, int n, int k) {
  for (int i = 0; i < m; i++)
    for (int j = 0; j < 2 * n; j++) y[i * 2 * n + j] = x[i * n + j / 2] + k;
}
"""


@dataclass(frozen=True)
class Built:
    """A project's folder with a built cache in `.cache`."""

    folder: Path

    @property
    def cache(self) -> Path:
        return self.folder / ".cache"

    def paths(self, name: str) -> list[Path]:
        return sorted((self.cache / "scripts" / name).iterdir())

    def script(self, name: str = "mark", **params: object) -> Script:
        found = [read_script(str(path)) for path in self.paths(name)]
        (only,) = [s for s in found if all(s.params[k] == v for k, v in params.items())]
        return only

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tilusbuild", *words]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("marks")
    for name, text in (
        ("tilus.toml", MANIFEST),
        ("mark.cu.j2", MARK),
        ("modelled.cu.j2", MODELLED),
        (".git", ""),
    ):
        (folder / name).write_text(text)
    built = Built(folder)
    done = built.run("build")
    assert done.returncode == 0, done.stderr
    return built


@pytest.fixture(scope="session")
def built(_built: Built) -> Built:
    """Not to be changed."""
    return _built


@pytest.fixture
def copied(_built: Built, tmp_path: Path) -> Built:
    """The same, one's own."""
    shutil.copytree(_built.folder, tmp_path / "copy", symlinks=True)
    return Built(tmp_path / "copy")


@pytest.fixture
def in_folder() -> Iterator[Callable[[Path], None]]:
    """Change the working directory until the end of the test."""
    before = os.getcwd()
    yield os.chdir
    os.chdir(before)
