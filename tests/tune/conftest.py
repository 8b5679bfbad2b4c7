"""Projects that are tuned by the command line, and libraries to time."""

import hashlib
import json
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.project import Project, head
from tilusbuild.tune.bench.elements import make_noise
from tilusbuild.tune.bench.work import Case, CaseArgument, write_case

MANIFEST = (
    head()
    + """\

[target.gpu]
arch = "sm_80"

[script.scale]
template = "scale.cu.j2"
kernel = "scale"
targets = {targets}
args = {{ a = "f32", x = "f32*[n]", y = {{ type = "f32*[n]", out = true }}, n = "i32" }}
launch = {{ grid = ["cdiv(n, 256)"], block = [256] }}

[script.scale.space]
mode = {modes}

[script.scale.tune]
ref = "ref.py:scale"
sizes = [{sizes}]
"""
)

TEMPLATE = """\
{% if target.kind == "cpu" %}
#include <unistd.h>
extern "C" void scale(float a, const float *x, float *y, int n) {
{% if mode == "crash" %}
  *(volatile int *)0 = 1;
{% elif mode == "hang" %}
  for (;;) pause();
{% elif mode == "exit" %}
  _exit(3);
{% elif mode == "beside" %}
  y[n] = 1;
{% elif mode == "far" %}
  y[n + 2000] = 1;
{% elif mode == "crash1000" %}
  if (n == 1000) *(volatile int *)0 = 1;
{% elif mode == "late" %}
  static int calls;
  a += ++calls > 20;
{% elif mode == "input" %}
  const_cast<float *>(x)[0] += 1;
{% endif %}
  for (int repeat = 0; repeat < {{ 40 if mode in ("slow", "wrong") else 1 }}; ++repeat)
    for (int i = 0; i < n; ++i) {
      y[i] = a * x[i] {{ "+ 1" if mode == "wrong" }};
      asm volatile("" ::: "memory");
    }
{% if mode == "wrong1000" %}
  if (n == 1000) y[3] += 1;
{% endif %}
}
{% else %}
extern "C" __global__ void scale(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = a * x[i];
}
{% endif %}
"""

REFERENCE = """\
import numpy as np


def scale(a, x):
    return np.float32(a) * x
"""


class TuneProject(Project):
    """A script `scale` whose schedules are ways to behave; what it starts works in its
    directory."""

    def events(self, *words: str, status: int = 0) -> list[dict[str, Any]]:
        return self.run(*words, "--json", status=status).events

    @property
    def script(self) -> Path:
        """The script's directory in the cache."""
        (directory,) = (self.directory / ".cache" / "scripts" / "scale").iterdir()
        return directory

    @property
    def log(self) -> Path:
        (path,) = (self.directory / ".cache/state/tune/scale").glob("*-*.jsonl")
        return path

    @property
    def rows(self) -> Path:
        """The measurements of the script."""
        return self.directory / ".cache/state/tune/scale/measured.jsonl"

    def log_exists(self) -> bool:
        """Whether anything was measured yet."""
        return any(self.directory.glob(".cache/state/tune/scale/*-*.jsonl"))

    @property
    def table(self) -> Mapping[str, Any]:
        (table,) = json.loads((self.script / "dispatch_table.json").read_text())["tables"]
        return dict(table)


@pytest.fixture
def tune_project(tmp_path: Path) -> Callable[..., TuneProject]:
    """tune_project(modes, sizes=(…)) writes a project below the test's directory."""

    def make(
        *modes: str, sizes: Sequence[int] = (1000,), targets: Sequence[str] = ("cpu",)
    ) -> TuneProject:
        directory = tmp_path / "project"
        project = TuneProject(directory, {"TMPDIR": str(directory)})
        text = MANIFEST.format(
            modes=json.dumps(list(modes)),
            sizes=", ".join(f"{{ n = {n} }}" for n in sizes),
            targets=json.dumps(list(targets)),
        )
        return project.write_all({"tilus.toml": text, "scale.cu.j2": TEMPLATE, "ref.py": REFERENCE})

    return make


LIBRARY = """\
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static const char *text = "";
const char *launch_error(void) { return text; }
int launch(float a, const float *x, float *y, int32_t n, void *stream) {
  (void)stream;
  BEFORE;
  for (int i = 0; i < n; i++) y[i] = a * x[i];
  AFTER;
  return 0;
}
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """libraries(before="…", after="…"): the path of a library whose `launch` does that around the
    work of y = a * x."""
    directory = tmp_path_factory.mktemp("libraries")
    source = directory / "library.c"
    source.write_text(LIBRARY)

    def build(*, before: str = "", after: str = "", flags: Sequence[str] = ()) -> str:
        name = hashlib.sha256(repr((before, after, flags)).encode()).hexdigest()[:16]
        path = directory / f"{name}.so"
        if not path.exists():
            subprocess.run(
                [
                    *("cc", "-O1", "-shared", "-fPIC", "-o", str(path), str(source)),
                    *(f"-DBEFORE={before}", f"-DAFTER={after}", *flags),
                ],
                check=True,
            )
        return str(path)

    return build


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """The case of y = 2 * x for five elements."""
    directory = tmp_path / "case"
    directory.mkdir()
    x = struct.unpack("<5f", make_noise("f32", 5, "x"))
    (directory / "y.want").write_bytes(struct.pack("<5f", *(2 * value for value in x)))
    arguments = (
        CaseArgument("a", "f32", None, value=2.0),
        CaseArgument("x", "f32", (5,), "x"),
        CaseArgument("y", "f32", (5,), "y", out=True, want="f32", rtol=1e-6),
        CaseArgument("n", "i32", None, value=5),
    )
    return write_case(str(directory), {"n": 5}, arguments, cold=False)


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with libcuda.so.1, which is libnvidia-ml.so.1, too."""
    directory = tmp_path_factory.mktemp("driver")
    source, library = Path(__file__).with_name("fake_gpu.c"), directory / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    (directory / "libnvidia-ml.so.1").symlink_to(library.name)
    return directory
