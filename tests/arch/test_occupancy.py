"""Occupancy against known values, against NVIDIA's own calculator, and against ptxas."""

import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import run_to_end
from tilusbuild.arch import CPU, Arch, compute_occupancy, list_known_names, parse_arch


@pytest.fixture(scope="module")
def cuda_root() -> Path:
    """The directory that holds `bin/nvcc`, found without the code under test."""
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc")
    if nvcc is None or shutil.which("g++") is None:
        pytest.skip("needs nvcc and g++")
    log = run_to_end([nvcc, "--dryrun", "-x", "cu", "-E", "/dev/null"], status=None).stderr
    match = re.search(r"^#\$ TOP=(.+)$", log, re.MULTILINE)
    if match is None:
        pytest.skip("nvcc does not say where it is installed")
    return Path(match[1]).resolve()


GPUS = [parse_arch(n) for n in list_known_names() if n != "cpu" and not parse_arch(n).suffix]


def test_the_largest_shared_memory_is_one_block_and_one_byte_more_is_none() -> None:
    for arch in GPUS:
        most = arch.smem_per_block
        fits = compute_occupancy(arch, threads=32, registers=16, static_smem=0, dynamic_smem=most)
        assert fits.blocks_per_sm >= 1
        over = compute_occupancy(arch, threads=32, registers=16, static_smem=1, dynamic_smem=most)
        assert over.blocks_per_sm == 0
        assert over.limited_by == ("shared memory",)


def test_more_barriers_than_a_block_share_limit_blocks_from_hopper_on() -> None:
    for name, barriers, limited in (("sm_120", 4, True), ("sm_80", 16, False)):
        kernel = {"threads": 32, "registers": 16, "barriers": barriers}
        limits = compute_occupancy(parse_arch(name), **kernel).limited_by
        assert ("barriers" in limits) == (limits == ("barriers",)) == limited


@pytest.mark.parametrize(
    ("arch", "wrong", "message"),
    [
        (parse_arch("sm_80"), {"threads": 0}, "positive"),
        (parse_arch("sm_80"), {"registers": -1}, "positive"),
        (parse_arch("sm_80"), {"dynamic_smem": -1}, "positive"),
        (CPU, {}, "GPU"),
    ],
)
def test_impossible_questions_are_errors(arch: Arch, wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compute_occupancy(arch, **{"threads": 32, "registers": 16, **wrong})


CALCULATOR = r"""
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "cuda_occupancy.h"
int main() {
    int n[11];
    for (;;) {
        for (int i = 0; i < 11; i++)
            if (scanf("%d", &n[i]) != 1) return 0;
        cudaOccDeviceProp device;
        memset(&device, 0, sizeof device);
        device.computeMajor = n[0] / 10;
        device.computeMinor = n[0] % 10;
        device.maxThreadsPerBlock = 1024;
        device.maxThreadsPerMultiprocessor = n[1];
        device.sharedMemPerBlock = 48 * 1024;
        device.sharedMemPerMultiprocessor = n[2];
        device.sharedMemPerBlockOptin = n[3];
        device.reservedSharedMemPerBlock = n[4];
        device.regsPerBlock = n[5];
        device.regsPerMultiprocessor = 65536;
        device.warpSize = 32;
        device.numSms = 1;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.numRegs = n[7];
        kernel.sharedSizeBytes = n[8];
        kernel.maxDynamicSharedSizeBytes = n[9];
        kernel.numBlockBarriers = n[10];
        cudaOccDeviceState state;
        cudaOccResult result;
        memset(&result, 0, sizeof result);
        cudaOccError status = cudaOccMaxActiveBlocksPerMultiprocessor(
            &result, &device, &kernel, &state, n[6], n[9]);
        printf("%d\n", status == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -1);
    }
}
"""

Question = tuple[Arch, int, int, int, int, int]
"""Architecture, threads, registers, static and dynamic shared memory, barriers."""


def questions() -> Iterator[Question]:
    draw = random.Random(7)
    for arch in GPUS:
        for threads in (1, 32, 96, 128, 256, 384, 1024, 1025):
            for registers in (0, 16, 33, 64, 168, 255, 256, 257):
                yield arch, threads, registers, 0, draw.randrange(arch.smem_per_sm + 2048), 1
        for _ in range(400):
            threads, registers, barriers = (
                draw.randint(*r) for r in ((1, 1024), (0, 255), (0, 16))
            )
            dynamic = draw.choice((0, draw.randrange(arch.smem_per_block)))
            yield arch, threads, registers, draw.randrange(48 * 1024 + 1), dynamic, barriers


def count_blocks(question: Question) -> int:
    names = ("threads", "registers", "static_smem", "dynamic_smem", "barriers")
    arch, *kernel = question
    return compute_occupancy(arch, **dict(zip(names, kernel, strict=True))).blocks_per_sm


def as_line(question: Question) -> str:
    a, *kernel = question
    device = (a.number, a.threads_per_sm, a.smem_per_sm, a.smem_per_block, a.smem_reserved)
    return " ".join(str(n) for n in (*device, a.regs_per_block, *kernel))


@pytest.mark.nvcc
def test_it_is_nvidias_calculator(cuda_root: Path, tmp_path: Path) -> None:
    source = tmp_path / "calculator.cpp"
    source.write_text(CALCULATOR)
    program = str(tmp_path / "calculator")
    subprocess.run(["g++", "-w", f"-I{cuda_root}/include", str(source), "-o", program], check=True)
    asked = list(questions())
    lines = "\n".join(as_line(question) for question in asked)
    output = run_to_end([program], input=lines).stdout
    answers = [int(line) for line in output.split()]
    wrong = [
        (as_line(question), answer)
        for question, answer in zip(asked, answers, strict=True)
        if count_blocks(question) != answer
    ]
    assert not wrong


@pytest.mark.nvcc
def test_ptxas_knows_the_same_names(cuda_root: Path) -> None:
    version = run_to_end([str(cuda_root / "bin" / "nvcc"), "--version"]).stdout
    major, minor = re.findall(r"release (\d+)\.(\d+)", version)[0]
    cuda_release = int(major), int(minor)
    output = run_to_end([str(cuda_root / "bin" / "ptxas"), "--help"]).stdout
    for arch in (parse_arch(name) for name in list_known_names() if name != "cpu"):
        known = arch.since <= cuda_release and (arch.until is None or cuda_release < arch.until)
        assert (f"'{arch.name}'" in output) is known, arch.name
