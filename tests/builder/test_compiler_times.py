"""What the other device compiler would save: from pairs of compiles of the same text only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.fake_engine import FakeJob
from support.project import Project
from tilusbuild.builder.compiler_times import CompilersLine, CompilerTimes
from tilusbuild.toolchain import nvrtc_places

JOBS = [FakeJob(f"job {number}", index=number) for number in range(4)]


@pytest.fixture
def times(tmp_path: Path) -> CompilerTimes:
    """Two programs by both compilers, one by one of them, one whose template changed between."""
    found = CompilerTimes(str(tmp_path))
    for number, (nvcc, nvrtc) in enumerate([(4.0, 1.0), (6.0, 1.5), (5.0, 0.0), (7.0, 2.0)]):
        found.record(JOBS[number], f"text {number}", "nvcc", nvcc)
        if nvrtc:
            changed = " edited" if number == 3 else ""
            found.record(JOBS[number], f"text {number}{changed}", "NVRTC", nvrtc)
    found.save()
    return CompilerTimes(str(tmp_path))


def test_pairs_of_the_same_text_count(times: CompilerTimes) -> None:
    assert times.compared() == CompilersLine(2, 10.0, 2.5)
    assert times.compared([JOBS[1], JOBS[3], JOBS[1]]) == CompilersLine(1, 6.0, 1.5)
    assert times.compared(JOBS[2:]) is None


def test_an_edit_takes_a_pair_away_until_both_have_compiled_it(times: CompilerTimes) -> None:
    times.record(JOBS[0], "text 0, edited", "nvcc", 3.0)
    assert times.compared(JOBS[:1]) is None
    times.record(JOBS[0], "text 0, edited", "NVRTC", 0.5)
    assert times.compared(JOBS[:1]) == CompilersLine(1, 3.0, 0.5)


def test_a_host_compiler_is_not_one_of_them(times: CompilerTimes) -> None:
    times.record(JOBS[2], "text 2", "g++", 1.0)
    assert times.compared(JOBS[2:3]) is None


def test_the_sentence_is_about_the_one_that_is_not_chosen() -> None:
    line = CompilersLine(16, 15.34, 4.1)
    assert line.text("nvcc").startswith(
        'device-compiler = "nvrtc" saves 11.2 s: 4.1 s instead of 15.3 s for 16 programs that both'
    )
    assert line.text("nvrtc").startswith(
        'device-compiler = "nvcc" costs 11.2 s: 15.3 s instead of 4.1 s for 16 programs that both'
    )


@pytest.mark.parametrize("damage", [b"", b"\0" * 40, b'{"nvcc": []}'])
def test_a_damaged_file_compares_nothing(
    times: CompilerTimes, tmp_path: Path, damage: bytes
) -> None:
    path = tmp_path / "compilers"
    path.write_bytes(path.read_bytes()[: 60 if damage else 10] + damage)
    assert CompilerTimes(str(tmp_path)).compared() is None


MANIFEST = """\
edition = 1
[project]
name = "small"
version = "1"
[target.gpu]
arch = "sm_90a"
[script.scale]
template = "scale.cu.j2"
kernel = "scale"
args = { x = { type = "f32*[n]", out = true }, n = "i32" }
space = { unroll = [1, 2] }
launch = { grid = [1], block = [256] }
"""
TEMPLATE = """\
extern "C" __global__ void scale(float *x, int n) { x[threadIdx.x] = {{ unroll }}; }
"""


@pytest.mark.nvcc
@pytest.mark.skipif(not os.path.isabs(nvrtc_places.find()), reason="needs NVRTC")
def test_plan_and_doctor_say_it_after_a_build_by_each(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write_all({"tilus.toml": MANIFEST, "scale.cu.j2": TEMPLATE})
    project.run("build", "--device-compiler", "nvrtc")
    assert "both have compiled" not in project.run("plan").out
    project.run("build", "--device-compiler", "nvcc")
    said = [each for each in project.run("plan", "--json").events if each["event"] == "compilers"]
    assert [each["programs"] for each in said] == [2]
    assert 'device-compiler = "nvrtc" saves' in project.run("plan").out
    assert "both have compiled here" in project.run("doctor", status=None).out
