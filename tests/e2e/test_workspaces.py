"""Workspaces: memory that a kernel needs, and that no caller has to give."""

from pathlib import Path

import numpy as np
import pytest

import tilusbuild
from support.processes import run_to_end
from support.project import Project, head, needs_cxx

pytest.importorskip("tvm_ffi")

# Row sums in parts. The last part of a row adds up all; a lock counts them.
MANIFEST = (
    head("cpu")
    + """
[script.sums]
template = "sums.cu.j2"
kernel = "sums"
space = { splits = [1, 4] }
[script.sums.args]
x = "f32*[m, n]"
partial = { type = "void*", bytes = "4 * m * splits if splits > 1 else 0" }
locks = { type = "void*", bytes = "4 * m", init = "zeros" }
y = { type = "f32*[m]", out = true }
m = "i32"
n = "i32"
[script.sums.tune]
ref = "ref.py:sums"
sizes = [{ m = 5, n = 100 }, { m = 70, n = 100 }]
[script.sums.dispatch]
keys = ["m"]
table = [{ when = "m > 9", use = { splits = 4 } }]
"""
)
KERNEL = """\
extern "C" void sums(const float *x, float *partial, int *locks, float *y, int m, int n) {
  for (int part = 0; part < m * {{ splits }}; part++) {
    int i = part / {{ splits }}, s = part % {{ splits }};
    float sum = 0;
    for (int j = s * n / {{ splits }}; j < (s + 1) * n / {{ splits }}; j++) sum += x[i * n + j];
    if (++locks[i] < {{ splits }}) partial[part] = sum;
    else for (y[i] = sum; s > 0; s--) y[i] += partial[part - s];
  }
}
"""
REFERENCE = "def sums(x):\n    return x.astype('f8').sum(axis=1)\n"
FILES = {"tilus.toml": MANIFEST, "sums.cu.j2": KERNEL, "ref.py": REFERENCE}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    needs_cxx()
    return Project.built(tmp_path_factory.mktemp("workspaces"), FILES)


@pytest.mark.parametrize("m", [0, 7, 40])
def test_a_call_may_leave_them_out(built: Project, m: int) -> None:
    """Of 7 rows no partial sums are kept, and nothing is allocated for them."""
    sums = tilusbuild.load("sums", where=str(built.cache))
    x = np.random.default_rng(0).random((m, 50), np.float32)
    y = np.empty(m, np.float32)
    for _ in range(2):
        assert sums(x, y) is None
        np.testing.assert_allclose(y, x.sum(axis=1), rtol=1e-5)
        np.testing.assert_allclose(sums(x=x), x.sum(axis=1), rtol=1e-5)


def test_a_call_may_give_them_and_the_zeros_are_written_again(built: Project) -> None:
    sums = tilusbuild.load("sums", where=str(built.cache))
    x, partial, locks = np.ones((40, 50), "f4"), np.ones(160, "f4"), np.full(41, 9, "i4")
    for _ in range(2):
        np.testing.assert_array_equal(sums(x, partial=partial, locks=locks), np.full(40, 50))
    assert partial[:3].tolist() == [12, 13, 12]
    assert locks.tolist() == [4] * 40 + [9]


BUFFER = np.zeros(1000, "u1")


@pytest.mark.parametrize(
    ("partial", "message"),
    [
        (BUFFER[:639], "of 639 bytes, and 640 are needed"),
        (BUFFER[::2], "it must be contiguous"),
        (BUFFER[8:], "not a multiple of 16 bytes"),
        (0, 'workspace "partial" is null, and 640 bytes are needed'),
        (0.5, "pass an address as an int, or None"),
    ],
)
def test_memory_that_a_kernel_cannot_use_is_refused(
    built: Project, partial: object, message: str
) -> None:
    sums = tilusbuild.load("sums", where=str(built.cache))
    with pytest.raises((TypeError, ValueError), match=message):
        sums(np.ones((40, 50), "f4"), partial=partial)


def test_run_tune_and_a_packages_check_allocate_them(tmp_path: Path) -> None:
    project = Project(tmp_path / "project").write_all(FILES)
    assert "2 sizes agree with ref.py:sums\n" in project.run("run", "sums[splits=4]").out
    assert project.run("tune", "sums", "--cache", "warm", "--json").summary["without"] == 0
    project.run("package", "--with-tests", "-o", tmp_path / "out", "--format", "dir")
    package = next(tmp_path.rglob("tilus-package.json")).parent
    assert project.run("check", package).out.count("2 ok") == 2


def test_a_write_behind_one_is_wrong(tmp_path: Path) -> None:
    short = MANIFEST.replace("4 * m * splits if", "4 * m * splits - 8 if")
    project = Project(tmp_path / "project").write_all({**FILES, "tilus.toml": short})
    ran = project.run("tune", "sums", "--size", "m=70,n=100", "--cache", "warm", status=1)
    assert "program 1 (splits=4): incorrect: it wrote" in ran.out
    assert "partial" in ran.out


MAIN = """\
#include "k.h"
#include <stdio.h>
#include <stdlib.h>
int main(void) {
  static float x[40 * 50], y[40];
  int64_t bytes[2];
  if (k_sums_workspace(x, NULL, NULL, y, 40, 50, bytes)) return puts(k_error());
  for (int i = 0; i < 40 * 50; i++) x[i] = 1;
  if (!k_sums(x, NULL, NULL, y, 40, 50, NULL)) return 2;
  puts(k_error());
  if (k_sums(x, malloc(bytes[0]), malloc(bytes[1]), y, 40, 50, NULL)) return puts(k_error());
  return !printf("%d %d %g\\n", (int)bytes[0], (int)bytes[1], y[39]);
}
"""


def test_a_caller_in_c_asks_for_their_bytes(built: Project) -> None:
    built.run("cmake", "build", "k")
    (built.directory / "main.c").write_text(MAIN)
    command = ["gcc", "-Wall", "-Werror", "-o", "main", "main.c", "k.c", "-ldl", "-pthread"]
    run_to_end(command, cwd=built.directory)
    lines = run_to_end([built.directory / "main"]).stdout.splitlines()
    assert lines == [
        'sums: workspace "partial" is null, and 640 bytes are needed',
        "640 160 50",
    ]
