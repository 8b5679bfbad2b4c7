"""`tilusbuild tune` for a GPU: real compiler, real libraries, a made up driver (fake_gpu.c)."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import tilusbuild
from support import command_line
from support.processes import run_python, run_to_end
from support.project import head
from tilusbuild.runtime.script import read_script
from tilusbuild.runtime.tables import read_dispatch_table

pytestmark = pytest.mark.nvcc

MANIFEST = (
    head("h100", "sm_90a")
    + """\
[script.fill]
template = "fill.cu.j2"
kernel = "fill"
args = { y = { type = "f32*[n]", out = true }, n = "i32" }
launch = { grid = ["cdiv(n, threads)"], block = ["threads"] }
[script.fill.space]
threads = [32, 64, 128, 256]
[script.fill.tune]
ref = "ref.py:fill"
sizes = [{ n = 100 }, { n = 5000 }]
"""
)
TEMPLATE = """\
extern "C" __global__ void fill(float *y, int n) {
  int i = blockIdx.x * {{ threads }} + threadIdx.x;
  if (i < n) y[i] = i;
}
"""
REFERENCE = """\
import numpy as np


def fill(y):
    return np.arange(y.size, dtype=np.float32)
"""
COMMAND = """\
import sys
from tilusbuild.runtime import device
device.may_have_cuda = lambda: True  # it looks into /dev, where a made up driver leaves nothing
from tilusbuild.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


PACKAGE = Path(tilusbuild.__file__).parent
CHECK = """\
from tilusbuild.runtime import device
device.may_have_cuda = lambda: True
from tilusbuild.check.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, fake_driver: Path) -> Path:
    """A project, and a driver in `driver`."""
    project = tmp_path_factory.mktemp("fill")
    for name, text in (("tilus.toml", MANIFEST), ("fill.cu.j2", TEMPLATE), ("ref.py", REFERENCE)):
        (project / name).write_text(text)
    (project / "driver").symlink_to(fake_driver)
    return project


def on_gpu(directory: Path) -> dict[str, str]:
    """The environment of a machine with the made up driver."""
    library = str(directory / "driver")
    return {**os.environ, "LD_LIBRARY_PATH": library, "TMPDIR": str(directory)}


def run(directory: Path, *words: str, status: int = 0) -> list[dict[str, Any]]:
    """The JSON lines that a command prints."""
    environment = {**on_gpu(directory), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python(COMMAND, *words, "--json", cwd=directory, env=environment, status=status)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_the_fast_and_right_one_is_chosen(directory: Path, cache: str) -> None:
    *sizes, summary = run(directory, "tune", "fill", "--cache", cache, "--fresh")
    assert summary == {"event": "summary", "tuned": 2, "without": 0}
    for tuned in sizes:
        assert tuned["schedule"] == {"threads": 64}
        assert tuned["seconds"] == pytest.approx(3e-6, rel=0.01)
        wrong, fault = tuned["refused"]["2"], tuned["refused"]["3"]
        assert wrong.startswith("incorrect: ")
        assert "y[7] is 0, expected 7" in wrong
        assert fault.startswith("launch error: ")
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in fault
    (path,) = (directory / ".cache" / "scripts" / "fill").iterdir()
    (table,) = read_dispatch_table(read_script(str(path))).tables
    assert (table.fingerprint["device"], table.fingerprint["arch"]) == ("Fake GPU", "sm_90")
    assert [(e.key, e.program) for e in table.entries] == [((128,), 1), ((6144,), 1)]
    assert (path / "dispatch" / "libfill.so").exists()


def test_gpus_of_one_model_measure_together(directory: Path, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_GPU_COUNT", "3")
    monkeypatch.setenv("FAKE_GPU_OTHER", "1")
    environment = {**on_gpu(directory), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python(
        *(COMMAND, "tune", "fill", "--device", "all", "--fresh"), cwd=directory, env=environment
    )
    assert "left out: name Other GPU, not Fake GPU" in done.stderr
    assert "2 sizes, 2 devices" in done.stderr


def test_disturbed_samples_are_told_at_the_end(directory: Path, monkeypatch) -> None:
    """Given clocks that are throttled when a worker begins, when a tuning is run again, which
    measures nothing, then it says the same."""
    pytest.importorskip("pynvml")
    monkeypatch.setenv("FAKE_GPU_THROTTLED", "2")
    environment = {**on_gpu(directory), "PYTHONPATH": os.pathsep.join(sys.path)}
    words = ("tune", "fill", "--size", "n=100", "--repeat", "4", "--cache", "warm")
    first, again = (
        run_python(COMMAND, *words, *more, cwd=directory, env=environment).stderr.splitlines()[-1]
        for more in (["--fresh"], [])
    )
    assert re.fullmatch(
        r"note: [0-9]+ samples? dropped: the GPU's clocks were throttled \(power cap\)", first
    )
    assert again == first


@pytest.mark.parametrize("words", [("run", "fill/0"), ("tune", "fill", "--size", "n=100")])
def test_a_gpu_that_nothing_watches_is_told_once(
    directory: Path, monkeypatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("FAKE_GPU_NVML", "9")
    environment = {**on_gpu(directory), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python(COMMAND, *words, "--json", cwd=directory, env=environment)
    assert done.stderr.count("note: throttled clocks and other processes are not seen: ") == 1


def test_run_calls_one_on_the_device(directory: Path) -> None:
    slow = run(directory, "run", "fill/0")
    assert [call["seconds"] for call in slow[:2]] == pytest.approx([5e-6, 5e-6], rel=0.01)
    assert [call["bytes"] for call in slow[:2]] == [400, 20_000]
    assert (slow[0]["max_error"], slow[-1]["wrong"]) == (0.0, 0)
    wrong, *_ = run(directory, "run", "fill/2", status=1)
    assert "y[7] is 0, expected 7" in wrong["mismatch"]
    assert wrong["seconds"] > 0
    (error,) = run(directory, "run", "fill/3", status=1)
    assert "program 3: launch error: " in error["message"]


def test_a_package_is_measured_where_the_gpu_is(directory: Path, tmp_path: Path) -> None:
    """Given programs of which two are bad, packed without the driver and measured with it and the
    standard library alone, when the log is imported, then the next package is all right."""

    def check(status: int, *words: str) -> None:
        package = command_line.run(
            directory, "package", "--with-tests", "--format", "dir"
        ).out.strip()
        start = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n{CHECK}"
        command = [sys.executable, "-I", "-S", "-c", start, str(directory / package), *words]
        run_to_end(command, cwd=tmp_path, env=on_gpu(directory), status=status)

    command_line.run(directory, "build")
    (path,) = (directory / ".cache" / "scripts" / "fill").iterdir()
    # The measurements of earlier tests would go with the package.
    shutil.rmtree(directory / ".cache/state/tune", ignore_errors=True)
    command_line.run(directory, "dispatch", "build", "fill")
    (path / "dispatch_table.json").unlink(missing_ok=True)
    check(1, "--measure", "log")
    back = command_line.run(directory, "tune", "--import", tmp_path / "log", "--json")
    *sizes, _ = back.events
    assert [tuned["schedule"] for tuned in sizes] == [{"threads": 64}] * 2
    (read,) = read_dispatch_table(read_script(str(path))).tables
    assert read.fingerprint["device"] == "Fake GPU"
    check(0)


MORE = """\
args = { y = { type = "f32*[n]", out = true }, n = "i32", p = "struct P { i32 n; f32 times }", \
m = { tensor-map = "y", box = [64] }, start = { type = "f32*[1]", constant = true } }
"""


def test_structs_tensor_maps_and_constants_go_to_the_device(directory, monkeypatch) -> None:
    """The worker's memory is the made up device's, and the struct is the host's."""
    own = directory / "more"
    own.mkdir()
    (own / "driver").symlink_to(directory / "driver")
    (line,) = (line for line in MANIFEST.splitlines() if line.startswith("args"))
    (own / "tilus.toml").write_text(MANIFEST.replace(line + "\n", MORE))
    template = TEMPLATE.replace("int n)", "int n, P p, const __grid_constant__ CUtensorMap m)")
    head = "#include <cuda.h>\nstruct P { int n; float times; };\n__constant__ float start;\n"
    (own / "fill.cu.j2").write_text(head + template.replace("= i;", "= i * p.times + start;"))
    (own / "ref.py").write_text(REFERENCE_OF_MORE)
    monkeypatch.setenv("FAKE_GPU_MORE", "1")
    called, summary = run(own, "run", "fill/0", "--size", "n=100,p.times=0.5")
    assert (called["max_error"], called["mismatch"], summary["wrong"]) == (0.0, None, 0)
    *sizes, summary = run(own, "tune", "fill", "--cache", "warm")
    assert [tuned["schedule"] for tuned in sizes] == [{"threads": 64}] * 2


REFERENCE_OF_MORE = """\
import numpy as np


def fill(y, p, start):
    assert p["n"] == y.size
    return np.arange(y.size, dtype=np.float32) * np.float32(p["times"]) + start
"""
