"""Benchmarks run to their end on tiny sizes, with their checks that the work was done; `nvrtc`,
`sandbox`, `library` and `watch` by `make bench` alone."""

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from support.casd import needs_casd
from support.nvcc_journal import UNHELD, make_toolkit
from support.processes import run_to_end
from support.project import needs_cxx

DIRECTORY = Path(__file__).resolve().parents[2] / "benchmarks"


def missing(*modules: str) -> bool:
    return any(importlib.util.find_spec(name) is None for name in modules)


def small(name: str, **environment: str) -> list[dict[str, Any]]:
    """The results of a benchmark."""
    results: list[dict[str, Any]] = said_by(name, **environment)["results"]
    return results


def said_by(name: str, **environment: str) -> dict[str, Any]:
    """The line of JSON that a benchmark ends with."""
    command = [sys.executable, str(DIRECTORY / name), "--small", "--json"]
    ran = run_to_end(command, timeout=300, environment=environment)
    report: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    assert report["machine"]["cores"] == len(os.sched_getaffinity(0))
    return report


def test_search_replays_a_space_of_the_t4_format(tmp_path: Path) -> None:
    """Given a space in which x = 3 is best, and x = 4 fails, then ten looks of ten find it."""
    rows = [
        {
            "configuration": {"x": x},
            "invalidity": "runtime" if x == 4 else "correct",
            "measurements": [{"name": "time", "value": 1.0 + abs(x - 3), "unit": "ms"}],
            "objectives": ["time"],
        }
        for x in range(10)
    ]
    (tmp_path / "space.json").write_text(json.dumps({"results": rows}))
    command = [sys.executable, str(DIRECTORY / "search.py"), str(tmp_path), "--budgets", "10"]
    ran = run_to_end(command, timeout=300)
    assert ran.stdout.startswith("space.json: 10 configurations, 1 fail\n")
    assert ran.stdout.split()[-2:] == ["1.000", "1.000"]


needs_ninja = pytest.mark.skipif(missing("ninja"), reason="needs ninja, of the extra `dev`")


@pytest.mark.slow
@needs_ninja
def test_noop() -> None:
    example, many = small("noop.py")
    assert list(example["arms"]) == ["tilusbuild", "python -c pass", "python -I -S -c pass"]
    assert list(many["arms"])[:3] == ["python -m tilusbuild", "ninja", "make"]


@pytest.mark.slow
@pytest.mark.nvcc
@needs_ninja
@pytest.mark.skipif(missing("nvidia") or missing("nvidia.cu13"), reason="needs the extra `nvrtc`")
@pytest.mark.parametrize("name", ["headers", "shared_front_end"])
def test_what_compiles_for_gpus(name: str) -> None:
    for result in small(f"{name}.py"):
        assert len(result.get("arms") or result["ways"]) >= 2


@pytest.mark.slow
@pytest.mark.skipif(missing("triton"), reason="needs the extra `triton`")
def test_a_language_compiles_ahead_of_time() -> None:
    needs_cxx()
    (result,) = small("languages.py")
    assert list(result["arms"]) == ["triton.compile in a loop", "tilusbuild build"]


@pytest.mark.slow
def test_a_search_compiles_within_its_budget() -> None:
    needs_cxx()
    searched, compared = small("search_compiles.py")
    assert (searched["before"], searched["compiles"] <= 30 + 2 * 2) == (1, True)
    assert list(compared["arms"]) == ["build, then tune", "tune"]


@pytest.mark.slow
def test_a_remote_has_several_users_and_trouble() -> None:
    needs_cxx()
    needs_casd()
    if shutil.which("nginx") is None:
        pytest.skip("needs nginx")
    (result,) = small("remote_users.py")
    assert result["compiled"][1] == 0
    assert result["compiled"][0] == result["compiled"][2] == result["programs"]
    assert {row["verdict"] for row in small("remote_trouble.py")} == {"ok"}


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_cores() -> None:
    (result,) = small("cores.py")
    assert list(result["arms"]) == ["2 of the cores", "1 of the cores"]


@pytest.mark.slow
@needs_ninja
def test_edit() -> None:
    one, many = small("edit.py")
    assert list(one["arms"]) == ["tilusbuild", "ninja, rendering with Jinja2"]
    assert len(many["arms"]) == 5


@pytest.mark.slow
def test_plan() -> None:
    (row,) = small("plan.py")
    assert row["programs"] == 40


@pytest.mark.slow
@pytest.mark.skipif(missing("kernel_tuner", "constraint"), reason="needs the extra `bench`")
def test_space() -> None:
    (result,) = small("space.py")
    assert next(iter(result["arms"])) == "tilusbuild"


@pytest.mark.slow
@needs_ninja
def test_cold(tmp_path: Path) -> None:
    needs_cxx()
    nvcc = make_toolkit(str(tmp_path))
    compared, places, overhead = small(
        "cold.py", NVCC=nvcc, TILUSBUILD_BENCH_NVCC=nvcc, CUDA_HOME=str(tmp_path), **UNHELD
    )
    assert len(compared["arms"]) == 2
    assert 0 < places["tilusbuild"]["used"] <= 1
    assert overhead["programs"] == 40


@pytest.mark.slow
def test_load() -> None:
    needs_cxx()
    report = said_by("load.py")
    forms = [list(call["arms"]) for call in report["calls"] if "by form" in call["title"]]
    assert ["outputs allocated by the caller", "outputs left out", "all by keyword"] in forms
    assert [(row["kernels"], row["right"]) for row in report["many"]] == [(1, 1), (3, 2)]


@pytest.mark.slow
@pytest.mark.usefixtures("with_torch")
def test_torch_ops() -> None:
    needs_cxx()
    pytest.importorskip("torch", reason="torch is not installed")
    assert [next(iter(row["arms"])) for row in small("torch_ops.py")] == ["register"] * 4


@pytest.mark.slow
def test_remote() -> None:
    needs_cxx()
    needs_casd()
    casd, *nginx = small("remote.py")
    assert next(iter(casd["arms"])) == "tilusbuild build, from casd"
    assert len(nginx) == (shutil.which("nginx") is not None)
