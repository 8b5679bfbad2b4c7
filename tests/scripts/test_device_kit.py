"""The device kit: one archive that tests itself where there is Python and nothing else."""

import json
import os
import runpy
import shutil
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT, TESTS
from support.project import needs_cxx
from tilusbuild.runtime.device import get_cpu

ALONE = ["unshare", "-n", "env", "-i", "HOME=/nonexistent", "DEVICE=cpu"]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small kit of what runs without a GPU, unpacked elsewhere."""
    needs_cxx()
    directory = tmp_path_factory.mktemp("made")
    command = [sys.executable, str(ROOT / "scripts/device_kit/make.py"), "--output", str(directory)]
    ended = subprocess.run(
        [*command, "--examples", "quickstart", "--host"],
        capture_output=True,
        text=True,
        check=False,
    )
    if "No matching distribution" in ended.stderr:
        pytest.skip("the kit's wheels come from PyPI, which pip does not reach")
    assert ended.returncode == 0, ended.stderr
    destination = tmp_path_factory.mktemp("there")
    with tarfile.open(directory / "device-kit.tar.gz") as tar:
        tar.extractall(destination)
    shutil.rmtree(directory / "device-kit")
    (directory / "device-kit-cache").rename(destination / "device-kit-cache")
    return destination / "device-kit"


def ran(kit: Path, *words: str, status: int = 0, **variables: str) -> dict[str, Any]:
    """The results of a run without network, compiler, checkout and environment but these variables,
    by a Python that is not the test's where there is one."""
    if subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode:
        pytest.skip("a namespace without network needs root")
    tools = kit.parent / "bin"
    tools.mkdir(exist_ok=True)
    if not (tools / "dirname").exists():
        (tools / "dirname").symlink_to(shutil.which("dirname") or "")
    python = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    arguments = [f"{name}={value}" for name, value in variables.items()]
    command = [
        *ALONE,
        f"PATH={tools}",
        f"PYTHON={python}",
        *arguments,
        "/bin/sh",
        str(kit / "run.sh"),
    ]
    command += words
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert ended.returncode == status, ended.stdout + ended.stderr
    shown = [line for line in ended.stdout.splitlines() if line and not line.endswith("…")]
    assert 0 < len(shown) <= 60
    report: dict[str, Any] = json.loads((kit / "results.json").read_text())
    return report["steps"]


def test_everything_that_needs_no_gpu_runs_and_its_results_come_back(
    kit: Path, tmp_path: Path
) -> None:
    """Given a run, when it is taken back to a copy of the repository, then the page has it, and the
    example's file has one row a size, which the next build chooses by."""
    steps = ran(kit, "--minutes", "1")
    checked = steps["check"]["result"]["quickstart"]
    assert checked["right"] == checked["calls"] == 12
    assert steps["machine"]["result"]["tools"] == {}
    (tuned,) = steps["tune"]["result"].values()
    assert tuned["ended"] == 0
    assert any(json.loads(line)["what"] == "sample" for line in tuned["log"])
    assert steps["kernels"]["result"] == {"left out": "no GPU"}
    assert steps["tests/gpu"]["result"]["left out"].startswith("needs torch")

    for name in ("docs/performance.md", "examples/quickstart"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    messages = taken_back(kit, tmp_path)
    assert messages[0] == "docs/performance.md: On a device"
    assert messages[1].startswith("quickstart-rms_norm.cpu: tuned/rms_norm.jsonl: ")
    assert messages[1].endswith(" rows, 2 new, 0 changed")
    page = (tmp_path / "docs/performance.md").read_text()
    section = page.partition("## On a device\n")[2].partition("\n## ")[0]
    assert get_cpu().name in section
    assert "No failures." in section
    assert "| check | quickstart: 12 of 12 calls right |" in section
    assert "| kernels | left out: no GPU |" in section
    added = {*lines(tmp_path)} - {*lines(ROOT)}
    rows = [json.loads(line) for line in added]
    assert sorted(row["sizes"]["n"] for row in rows) == [1000, 4096]
    assert {(row["target"], row["device"]) for row in rows} == {("cpu", get_cpu().name)}
    assert taken_back(kit, tmp_path)[1].endswith(" rows, 0 new, 0 changed")


def taken_back(kit: Path, repository: Path) -> list[str]:
    """What `make device-results` says of the kit's run."""
    command = [sys.executable, str(ROOT / "scripts/device_kit/results.py")]
    command += [str(kit / "results.json"), "--root", str(repository)]
    command += ["--caches", str(kit.parent / "device-kit-cache")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def lines(repository: Path) -> list[str]:
    return (repository / "examples/quickstart/tuned/rms_norm.jsonl").read_text().splitlines()


def test_failures_come_first_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "docs/performance.md"
    page.parent.mkdir()
    shutil.copy(ROOT / "docs/performance.md", page)
    wrong = {"again": "check packages/gemm --only 3", "status": "incorrect"}
    alone = {"script": "gemm_tma[dtype=f16]", "target": None, "why": ["it has no program for T4"]}
    checked = {"ended": 1, "calls": 9, "right": 2, "wrong": [wrong] * 3, "error": ""}
    checked["served"] = [alone] * 3
    rows = [{"way": "CuPy", "error": "no driver"}, {"call": "f", "us": 5.03}]
    steps = {
        "machine": {"result": {"gpu": {"name": "H100"}, "packages": {"torch": "2.11"}}},
        "check": {"result": {"gemm": checked}},
        "calls": {"result": {"rows": rows, "ended": 0}},
        "tune": {"left out": "no time was left"},
    }
    report = {"schema": 1, "steps": steps}
    (tmp_path / "device-kit").mkdir()
    (tmp_path / "device-kit/results.json").write_text(json.dumps(report))
    taken_back(tmp_path / "device-kit", tmp_path)
    section = page.read_text().partition("device-results -->\n\n")[2].partition("\n<!--")[0]
    failures = ["- check: `check packages/gemm --only 3`: incorrect"] * 3
    failures += ["- check: gemm_tma[dtype=f16]: it has no program for T4"] * 2
    assert section.splitlines() == [
        *("H100, torch 2.11.", "", "Failures:", "", *failures, "- check: and 1 more"),
        *("- calls: way CuPy, error no driver", "", "| step | result |", "|---|---|"),
        *("| check | gemm: 2 of 9 calls right |", "| calls | call f, us 5.03 |"),
        "| tune | left out: no time was left |",
    ]


def test_a_wrong_program_fails_the_run_and_is_named(kit: Path) -> None:
    """A library that was damaged on the way; a step without time says so."""
    library = min((kit / "packages/quickstart").glob("programs/*/module/lib.so"))
    library.write_bytes(library.read_bytes() + b"x")
    steps = ran(kit, "--only", "check", status=1)
    wrong = steps["check"]["result"]["quickstart"]["wrong"]
    assert {row["status"] for row in wrong} == {"corrupt"}
    assert ran(kit, "--minutes", "0")["check"] == {"left out": "no time was left"}


@pytest.fixture(scope="module")
def kit_with_gpu(kit: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kit of the default schedules, for GPUs too, beside a driver that writes down what it is
    asked."""
    directory = tmp_path_factory.mktemp("gpu")
    others = shutil.ignore_patterns("packages", "cache", "site", "results.json")
    shutil.copytree(kit, directory / "device-kit", ignore=others)
    (directory / "device-kit" / "packages").mkdir()
    make = runpy.run_path(str(ROOT / "scripts/device_kit/make.py"))
    work = directory / "device-kit-work"
    make["package"]("quickstart", work, directory / "device-kit", level=0, host=False)
    source, library = TESTS / "tune/fake_gpu.c", directory / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    (directory / "sitecustomize.py").write_text(DEV)
    return directory / "device-kit"


DEV = """\
import os

listed = os.listdir
os.listdir = lambda path=".": listed(path) + (["nvidia0"] if path == "/dev" else [])
"""
"""What a machine with a GPU has besides a driver."""


def ran_on_gpu(kit: Path, log: Path, **variables: str) -> tuple[dict[str, Any], list[list[str]]]:
    """The results of a run on the driver, whose kernels do nothing, and the launches that it was
    asked for."""
    log.touch()
    path_variables = dict.fromkeys(("LD_LIBRARY_PATH", "PYTHONPATH"), str(kit.parent))
    fake = {"FAKE_GPU_LOG": str(log), "FAKE_GPU_IDLE": "1", **variables}
    only = ("--only", "check,calls,tune,tests/gpu")
    steps = ran(kit, *only, status=1, DEVICE="", **path_variables, **fake)
    lines = map(str.split, log.read_text().splitlines())
    return steps, [words[1:] for words in lines if words[0] == "launch"]


@pytest.mark.nvcc
def test_a_gpu_is_called_as_the_manifest_says(
    kit_with_gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a driver that executes nothing can show: the device, who serves it and why, and each
    launch. Every output is wrong then, and the run says so and goes on."""
    steps, launches = ran_on_gpu(kit_with_gpu, tmp_path / "log")
    assert steps["machine"]["result"]["gpu"]["name"] == "Fake GPU"
    checked = steps["check"]["result"]["quickstart"]
    for served in checked["served"]:
        name = served["script"]
        assert served["target"] == "sm_90a"
        assert f"{name} sm_90a (sm_90a): suits: " in "\n".join(served["why"])
        assert f"{name} sm_80 (sm_80+ptx): suits: " in "\n".join(served["why"])
        assert f"{name} cpu (cpu): refused: " in "\n".join(served["why"])
    assert (checked["calls"], checked["right"]) == (4, 0)
    assert {row["status"] for row in checked["wrong"]} == {"incorrect"}
    assert all("quickstart" in row["again"] for row in checked["wrong"])

    shapes = {(name, int(last), *map(int, rest)) for name, *rest, _, _, _, last in launches}
    # The name, n or m, then grid, block and shared memory: tiles of 1024 elements, and of 2 rows.
    saxpy = {("saxpy", n, -(-n // 1024), 1, 1, 256, 1, 1, 0) for n in (1000, 65_536)}
    rms_norm = {("rms_norm", m, -(-m // 2), 1, 1, 256, 1, 1, 0) for m in (1, 128)}
    assert shapes == saxpy | rms_norm
    bits = [int(words[8]) for words in launches if words[0] == "saxpy"]
    scales = struct.unpack(f"{len(bits)}f", struct.pack(f"{len(bits)}I", *bits))
    assert all(0.5 <= scale <= 1.5 for scale in scales)

    assert steps["calls"]["result"]["ended"] == ["ModuleNotFoundError: No module named 'torch'"]
    tuned = steps["tune"]["result"]["quickstart-rms_norm.cuda"]
    answers = [json.loads(line) for line in tuned["log"]]
    statuses = {answer["status"] for answer in answers if answer["what"] == "check"}
    assert (tuned["ended"], statuses) == (1, {"incorrect"})
    monkeypatch.syspath_prepend(ROOT / "scripts/device_kit")
    failures = runpy.run_path(str(ROOT / "scripts/device_kit/results.py"))["failures"]
    unusable = "quickstart-rms_norm.cuda: m=1, n=1000: no program is usable"
    assert next(failures("tune", steps["tune"]["result"])) == unusable
    assert steps["tests/gpu"]["result"]["left out"].startswith("needs torch")


@pytest.mark.nvcc
def test_a_kernel_that_faults_costs_no_other_its_check(kit_with_gpu: Path, tmp_path: Path) -> None:
    steps, _ = ran_on_gpu(kit_with_gpu, tmp_path / "log", FAKE_GPU_FAULT="saxpy")
    wrong = steps["check"]["result"]["quickstart"]["wrong"]
    status = {(row["script"].split("[")[0], row["status"]) for row in wrong}
    assert len(wrong) == 4
    assert status == {("saxpy", "launch error"), ("rms_norm", "incorrect")}
    assert all("CUDA_ERROR_ILLEGAL_ADDRESS" in r["why"] for r in wrong if r["script"] == "saxpy")
    assert "quickstart-rms_norm.cuda" in steps["tune"]["result"]
