"""What the tests of tuning share: a bench that plays recorded answers, work made of nothing, and
projects that are tuned by the command line in a process of its own."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tilusbuild.tune.bench.bench import Answer
from tilusbuild.tune.bench.work import Candidate, Case, CaseArgument, Scalar, Work, write_case

Seconds = Callable[[Candidate], "float | str"]
"""The true time of a program, or the status that it ends with."""


class Killed(Exception):  # noqa: N818 - an event
    """The recorded bench was told to stop here."""


@dataclass
class Recorded:
    """A bench whose answers follow from case, program and number alone, as recorded ones do.

    `noise` is the greatest share by which a sample is off. `lives` is how many answers it gives.
    """

    seconds: Seconds
    noise: float = 0.03
    lives: int | None = None
    asked: list[tuple[str, int, str, int]] = field(default_factory=list)

    def check(self, case: Case, program: Candidate, number: int) -> Answer:
        self._live(case, program, "check", number)
        true = self.seconds(program)
        if isinstance(true, str) and not (true == "flaky" and number == 0):
            return Answer("incorrect" if true == "flaky" else true, 0.01, why="as recorded")
        return Answer("ok", 0.01)

    def sample(self, case: Case, program: Candidate, number: int, expected: float) -> Answer:
        self._live(case, program, "sample", number)
        true = self.seconds(program)
        if isinstance(true, str):
            true = 1e-6  # a flaky program is quick
        name = f"{case.digest} {program.hash} {number}".encode()
        off = random.Random(hashlib.sha256(name).digest()).uniform(-1, 1) * self.noise
        return Answer("ok", 0.001 + true, true * (1 + off))

    def _live(self, case: Case, program: Candidate, what: str, number: int) -> None:
        if self.lives is not None and len(self.asked) >= self.lives:
            raise Killed
        self.asked.append((case.digest, program.index, what, number))


def make_work(**parameters: Sequence[Scalar]) -> Work:
    """Every combination of the parameters' values, the first slowest."""
    names = list(parameters)
    programs = tuple(
        Candidate(
            index,
            hashlib.sha256(repr(values).encode()).hexdigest(),
            f"/none/{index}.so",
            dict(zip(names, values, strict=True)),
        )
        for index, values in enumerate(itertools.product(*parameters.values()))
    )
    groups = tuple((name,) for name in names)
    return Work("w cpu", "w", "0" * 64, "cpu", None, groups, programs, ())


def make_case(name: str = "case", **sizes: int) -> Case:
    return Case(name, sizes, (), cold=True)


class Made:
    """Reached by tests as a fixture: helpers of a test file cannot be imported."""

    Recorded = Recorded
    Killed = Killed
    work = staticmethod(make_work)
    case = staticmethod(make_case)


@pytest.fixture(scope="session")
def made() -> type[Made]:
    return Made


MANIFEST = """\
edition = 1

[project]
name = "p"
version = "0.1.0"

[build]
cache-dir = ".cache"

[target.cpu]
arch = "cpu"

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
{% elif mode == "input" %}
  const_cast<float *>(x)[0] += 1;
{% endif %}
  for (int repeat = 0; repeat < {{ 1 if mode == "fast" else 40 }}; ++repeat)
    for (int i = 0; i < n; ++i) {
      y[i] = a * x[i] {{ "+ 1" if mode == "wrong" }};
      asm volatile("" ::: "memory");
    }
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


@dataclass
class TuneProject:
    """A script `scale` whose schedules are ways to behave."""

    folder: Path

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tilusbuild", *words],
            cwd=self.folder,
            env={**os.environ, "TMPDIR": str(self.folder), **environment},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, *words: str, status: int = 0, **environment: str) -> str:
        """What the command prints, ended with this exit status."""
        with self.start(*words, **environment) as process:
            out, err = process.communicate(timeout=300)
        assert "Traceback" not in err, err
        assert process.returncode == status, f"{process.returncode}:\n{out}\n{err}"
        return out

    def events(self, *words: str, status: int = 0) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*words, "--json", status=status).splitlines()]

    @property
    def script(self) -> Path:
        """The script's folder in the cache."""
        (found,) = (self.folder / ".cache" / "scripts" / "scale").iterdir()
        return found

    @property
    def log(self) -> Path:
        (found,) = (self.folder / ".cache" / "state" / "tune" / "scale").iterdir()
        return found

    def log_exists(self) -> bool:
        """Whether anything was measured yet."""
        return any(self.folder.glob(".cache/state/tune/scale/*.jsonl"))

    @property
    def table(self) -> Mapping[str, Any]:
        (table,) = json.loads((self.script / "dispatch_table.json").read_text())["tables"]
        return dict(table)


@pytest.fixture
def tune_project(tmp_path: Path) -> Callable[..., TuneProject]:
    """tune_project(modes, sizes=(…)) writes a project below the test's folder."""

    def make(
        *modes: str, sizes: Sequence[int] = (1000,), targets: Sequence[str] = ("cpu",)
    ) -> TuneProject:
        folder = tmp_path / "project"
        folder.mkdir()
        text = MANIFEST.format(
            modes=json.dumps(list(modes)),
            sizes=", ".join(f"{{ n = {n} }}" for n in sizes),
            targets=json.dumps(list(targets)),
        )
        (folder / "tilus.toml").write_text(text)
        (folder / "scale.cu.j2").write_text(TEMPLATE)
        (folder / "ref.py").write_text(REFERENCE)
        return TuneProject(folder)

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
    folder = tmp_path_factory.mktemp("libraries")
    source = folder / "library.c"
    source.write_text(LIBRARY)

    def build(*, before: str = "", after: str = "", flags: Sequence[str] = ()) -> str:
        name = hashlib.sha256(repr((before, after, flags)).encode()).hexdigest()[:16]
        path = folder / f"{name}.so"
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
def scale_case(tmp_path: Path) -> tuple[Case, str]:
    """The case of y = 2 * x for five elements, and its folder."""
    folder = tmp_path / "case"
    folder.mkdir()
    (folder / "x.in").write_bytes(struct.pack("<5f", 1, 2, 3, 4, 5))
    (folder / "y.in").write_bytes(struct.pack("<5f", 9, 9, 9, 9, 9))
    (folder / "y.want").write_bytes(struct.pack("<5f", 2, 4, 6, 8, 10))
    arguments = (
        CaseArgument("a", "f32", None, value=2.0),
        CaseArgument("x", "f32", (5,)),
        CaseArgument("y", "f32", (5,), out=True, want="f32", rtol=1e-6),
        CaseArgument("n", "i32", None, value=5),
    )
    return write_case(str(folder), {"n": 5}, arguments, cold=False), str(folder)
