"""Devices of two kinds in one process: real libraries, and a driver that notes what it is asked.

What was chosen is seen in the launch: each schedule has a block size of its own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.dlpack import ON_GPU
from support.marks import record
from support.processes import run_python
from support.project import Project, head
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.tables import TableEntry

pytestmark = pytest.mark.nvcc

DRIVER = Path(__file__).parents[1] / "compile" / "fake_cuda.c"

MANIFEST = (
    head("h100", "sm_90a")
    + """\
[target.a100]
arch = "sm_80"
[target.cpu]
arch = "cpu"
[script.fill]
template = "fill.cu.j2"
kernel = "fill"
default = { threads = 32 }
args = { y = { type = "f32*[n]", out = true }, n = "i32" }
launch = { grid = ["cdiv(n, threads)"], block = ["threads"] }
[script.fill.space]
threads = [32, 64]
[script.fill.dispatch]
keys = ["n"]
"""
)
TEMPLATE = """\
{% if target.kind == "cpu" %}
extern "C" void fill(float *y, int n) {
  for (int i = 0; i < n; i++) y[i] = {{ threads }};
}
{% else %}
extern "C" __global__ void fill(float *y, int n) {
  int i = blockIdx.x * {{ threads }} + threadIdx.x;
  if (i < n) y[i] = i;
}
{% endif %}
"""

CALLS = (
    """\
import ctypes, json, sys

import numpy as np
import tilusbuild
from tilusbuild.runtime import device
from tilusbuild.runtime.errors import LoadError

device.may_have_cuda = lambda: True  # it looks into /dev, where a made up driver leaves nothing

"""
    + ON_GPU
    + """
fill = tilusbuild.load("fill", where=sys.argv[1])
for index, size in json.loads(sys.argv[2]):
    try:
        given = np.zeros(size, "f4") if index < 0 else OnGpu(index, 1 << 20, size)
        fill(given)
        print("chosen", "and ran" if index < 0 and given.any() else "")
    except LoadError as error:
        print(type(error).__name__, str(error).replace(chr(10), " "))
"""
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built project, measured on both devices: the H100 likes 64 threads, the A100 32."""
    files = {"tilus.toml": MANIFEST, "fill.cu.j2": TEMPLATE}
    built = Project.built(tmp_path_factory.mktemp("two"), files)
    directory = built.directory
    for script in scripts(directory).values():
        (arch,) = script.code.archs
        if arch == "cpu":
            continue
        device = {"device": f"Fake {arch.rstrip('a')}", "arch": arch.rstrip("a")}
        best = 1 if arch == "sm_90a" else 0
        measured = [
            TableEntry((128,), best, 1e-6, (128,)),
            TableEntry((1024,), 1, 1e-6, (1024,)),
        ]
        record(script, {"script": script.hash, **device}, measured)
    built.run("dispatch", "build", "fill")
    flags = ["-Wall", "-Werror", "-shared", "-fPIC", "-pthread"]
    subprocess.run(["gcc", *flags, DRIVER, "-o", directory / "libcuda.so.1"], check=True)
    return directory


def scripts(directory: Path) -> dict[str, Script]:
    script_list = (
        read_script(str(p)) for p in (directory / ".cache" / "scripts" / "fill").iterdir()
    )
    return {script.target: script for script in script_list}


Called = tuple[list[str], list[str]]


@pytest.fixture
def called(project: Path, tmp_path: Path) -> Callable[..., Called]:
    """called("90 80", (device, size), …): what the calls came to, and where which block ran."""

    def call(archs: str, *calls: tuple[int, int]) -> Called:
        journal = tmp_path / "journal"
        journal.write_text("")
        done = run_python(
            CALLS,
            project / ".cache",
            json.dumps(calls),
            environment={
                "LD_LIBRARY_PATH": str(project),
                "FAKE_CUDA_ARCHS": archs,
                "FAKE_CUDA_DEVICES": str(len(archs.split())),
                "FAKE_CUDA_JOURNAL": str(journal),
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
        )
        lines = [line.split() for line in journal.read_text().splitlines()]
        launches = [f"{line[2]} {line[4]}" for line in lines if line[0] == "launch"]
        return [line.rstrip() for line in done.stdout.splitlines()], launches

    return call


def test_each_gpu_has_its_own_code_and_its_own_table(called: Callable[..., Called]) -> None:
    calls = ((0, 100, 64), (1, 100, 32), (0, 1000, 64), (1, 1000, 64), (1, 100, 32), (0, 100, 64))
    results, launches = called("90 80", *(call[:2] for call in calls))
    assert results == ["chosen"] * 6
    assert launches == [f"primary{gpu} block={threads},1,1" for gpu, _, threads in calls]


def test_the_only_gpu_alone_and_beside_the_cpu(called: Callable[..., Called]) -> None:
    results, launches = called("80", (0, 100), (0, 1000), (0, 100))
    assert results == ["chosen"] * 3
    assert [line.split("=")[1] for line in launches] == ["32,1,1", "64,1,1", "32,1,1"]
    results, launches = called("90", (0, 100), (-1, 100), (0, 100), (-1, 100))
    assert results == ["chosen", "chosen and ran"] * 2
    assert len(launches) == 2
