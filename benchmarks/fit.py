"""How much a table of few programs loses at sizes that were not measured: gemm and rms_norm.

    python benchmarks/fit.py [--most 8] [--seeds 2] [--seconds 60] [--disturbed 0]

The times of gemm are those of a model of two GPUs, of 104 programs: blocks run in waves over the
SMs ("Matrix Multiplication Background", NVIDIA: tile and wave quantization); a step along k takes
the longer of the tensor cores and the loads from L2, and a split of k adds a reduction (as in
Triton's `matmul_perf_model.py`; the terms of a block are those of Stream-K, Osama et al., 2023).

Those of rms_norm are measured on this CPU, of 30 programs, each size in several rounds by turns.
The shortest time counts: nothing makes a call shorter than it is. The line before the losses says
how much the best program of every second round loses by the times of the others.

For measured grids and 200 other sizes, some of them in measured buckets, the loss is the time by
that of the best of all programs: mean and worst, of the fit's choice, of the best choice among its
programs, of the nearest measured size's best program, and of the one program that is best in the
mean. With `--disturbed PERCENT`, that part of the measured sizes has half of its times threefold.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import _bench
import numpy as np
from numpy.typing import NDArray

from tilusbuild.builder.project import Project
from tilusbuild.dispatch.describe import describe_planned
from tilusbuild.dispatch.fit import fit_script
from tilusbuild.dispatch.measurements import CommittedRows, derive_tables, group_measurements
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.measured import MeasuredRow
from tilusbuild.plan.model import PlanSelection
from tilusbuild.runtime.choose import Chooser, find_nearest_bucket
from tilusbuild.runtime.script import Script, read_script

Size = tuple[int, ...]
HELD_OUT = 200


class Gpu(NamedTuple):
    """The rates of a GPU, by the clock of an SM."""

    sms: int
    ghz: float
    mma: int
    """Operations of the tensor cores of an SM, f16 (NVIDIA's white papers of GA100 and GH100)."""
    dram: float
    """Bytes."""
    smem: int


GPUS = {
    "h100": Gpu(132, 1.7, 4096, 3.35e12 / 1.7e9, 227 << 10),
    "a100": Gpu(108, 1.41, 2048, 1.55e12 / 1.41e9, 163 << 10),
}
L2 = 64 * 0.65
"""Bytes of L2 for each SM and clock, of which two thirds are reached."""

GEMM = """\
edition = 1
[build]
cache-dir = "cache"
[target.gpu]
arch = "sm_80"
facts = {{ sms = {sms} }}
[script.gemm]
template = "gemm.cu.j2"
kernel = "gemm"
targets = ["gpu"]
args = {{ a = "f16*[m, k]", b = "f16*[k, n]", c = {{ type = "f16*[m, n]", out = true }}, \
m = "i32", n = "i32", k = "i32" }}
space = {{ bm = [16, 32, 64, 128, 256], bn = [32, 64, 128, 256], bk = [32, 64], split = [1, 4, 8] }}
derived.area = "bm * bn"
derived.smem = "(bm + bn) * bk * 6"
restrict.fits = "smem <= {smem} and area <= 32768"
restrict.rest = "(split == 1 or area <= 16384) and (area < 32768 or bk == 64)"
launch = {{ grid = ["cdiv(m, bm) * cdiv(n, bn)", "split"], block = ["128"] }}
dispatch = {{ keys = ["m", "n", "k"]{bucket} }}
"""

# No program is compiled: the plan has the space and the grid.
GEMM_SOURCE = """\
#include <cuda_fp16.h>
extern "C" __global__ void gemm(const __half *a, const __half *b, __half *c, int m, int n, int k) {}
"""

RMS_NORM = """\
edition = 1
[build]
cache-dir = "cache"
[target.cpu]
arch = "cpu"
[script.rms_norm]
template = "rms_norm.cu.j2"
kernel = "rms_norm"
targets = ["cpu"]
args = { x = "f32*[m, n]", weight = "f32*[n]", y = { type = "f32*[m, n]", out = true }, \
m = "i32", n = "i32", eps = "f32" }
space = { vector = [4, 8, 16, 32, 64], rows = [1, 2, 4], joined = [0, 1] }
dispatch = { keys = ["m", "n"] }
"""

RMS_NORM_SOURCE = """\
#include <math.h>
template <int R>
static inline void normalize(const float *__restrict__ x, const float *__restrict__ weight,
                             float *__restrict__ y, long n, float eps) {
  constexpr int V = {{ vector }};
  float partial[R][V] = {}, scale[R];
  long i = 0;
  for (; i + V <= n; i += V)
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < V; ++j) partial[r][j] += x[r * n + i + j] * x[r * n + i + j];
  for (int r = 0; r < R; ++r) {
    float sum = 0;
    for (long k = i; k < n; ++k) sum += x[r * n + k] * x[r * n + k];
    for (int j = 0; j < V; ++j) sum += partial[r][j];
    scale[r] = 1 / sqrtf(sum / n + eps);
  }
{% if joined %}
  for (i = 0; i < n; ++i)
    for (int r = 0; r < R; ++r) y[r * n + i] = x[r * n + i] * scale[r] * weight[i];
{% else %}
  for (int r = 0; r < R; ++r)
    for (i = 0; i < n; ++i) y[r * n + i] = x[r * n + i] * scale[r] * weight[i];
{% endif %}
}
extern "C" void rms_norm(const float *x, const float *weight, float *y, int m, int n, float eps) {
  long row = 0;
  for (; row + {{ rows }} <= m; row += {{ rows }})
    normalize<{{ rows }}>(x + row * n, weight, y + row * n, n, eps);
  for (; row < m; ++row) normalize<1>(x + row * n, weight, y + row * n, n, eps);
}
"""


def compute_gemm_seconds(gpu: Gpu, schedule: Mapping[str, Any], size: Size) -> float:
    """Return the time of a gemm of three stages in f16."""
    (m, n, k), stages = size, 3
    bm, bn, bk, split = (schedule[name] for name in ("bm", "bn", "bk", "split"))
    blocks = math.ceil(m / bm) * math.ceil(n / bn) * split
    steps = math.ceil(math.ceil(k / split) / bk)
    warps = max(1, min(8, bm * bn // 2048))
    registers = bm * bn + warps * 32 * 40
    resident = max(
        1, min(gpu.smem // ((bm + bn) * bk * 2 * stages), 16, 64 // warps, 65536 // registers)
    )
    # Large tiles of a warp read each operand from shared memory for more products.
    share = min(1, 0.45 + 0.55 * bm * bn / warps / 4096)
    step = max(2 * bm * bn * bk / (gpu.mma * share), (bm + bn) * bk * 2 / L2)
    latency = 700 / (stages - 1)  # of DRAM, in clocks, of which all but one stage are hidden
    full, rest = divmod(math.ceil(blocks / gpu.sms), resident)
    clocks = full * max(resident * step, latency) * steps
    clocks += max(rest * step, latency) * steps if rest else 0
    clocks = max(clocks, (m * k + k * n + m * n) * 2 / gpu.dram)
    stored = min(resident, full * resident + rest) * bm * bn * 2 * (2 if split > 1 else 1) / L2
    clocks += 1500 + (full + (rest > 0)) * (2 * latency + stored)
    if split > 1:
        clocks += 1500 + m * n * 4 * split / (gpu.dram * 2)
    return clocks / gpu.ghz * 1e-9 + 2e-6


WEIGHTS = (
    (4096, 4096),
    (6144, 4096),
    (4096, 14336),
    (28672, 4096),
    (11008, 4096),
    (4096, 11008),
    (1024, 8192),
    (8192, 8192),
    (2560, 2560),
    (5120, 13824),
)
"""(n, k) of layers of Llama and Qwen models."""


def draw_gemm_size(chance: random.Random, kind: str) -> Size:
    """Return a size of a kind: powers of two, any, or a batch of tokens for a layer's weights."""
    if kind == "powers":
        return 2 ** chance.randint(0, 13), 2 ** chance.randint(8, 14), 2 ** chance.randint(8, 14)
    if kind == "any":
        n, k = (int(2 ** chance.uniform(8, 14)) for _ in range(2))
        return int(2 ** chance.uniform(0, 13)), n, k
    decode = chance.random() < 0.5
    return chance.randint(*((1, 256) if decode else (256, 8192))), *chance.choice(WEIGHTS)


def list_gemm_grids(chance: random.Random) -> Iterator[tuple[str, list[Size]]]:
    """Yield names of grids, and the sizes that are measured."""
    powers = [2**i for i in range(15)]
    yield "m n k by 4", [(m, n, k) for m in powers[::2] for n in powers[8::2] for k in powers[8::2]]
    yield "m n by 2", [(m, n, k) for m in powers[:14] for n in powers[8:] for k in powers[8::2]]
    yield "200 any", [draw_gemm_size(chance, "any") for _ in range(200)]


Times = NDArray[np.float64]


def make_rows(
    script: Script, sizes: Sequence[Size], times: Times, device: str
) -> list[MeasuredRow]:
    """Return the rows of a tuning of all programs."""
    return [
        MeasuredRow(
            target=script.target,
            device=device,
            arch="bench",
            params={},
            sizes=dict(zip(script.keys, size, strict=True)),
            schedule=script.get_schedule(program),
            seconds=float(seconds),
            program=script.programs[program],
            time="2026-01-01T00:00:00Z",
        )
        for size, row in zip(sizes, times, strict=True)
        for program, seconds in zip(script.programs, row, strict=True)
    ]


def measure_loss(ratios: Times, columns: Sequence[int]) -> str:
    losses = ratios[np.arange(len(ratios)), columns] - 1
    return f"{losses.mean():7.1%}{losses.max():6.0%}"


def disturb(times: Times, percent: float) -> Times:
    """Return the times by size and program, of some sizes half of them threefold."""
    chance = np.random.default_rng(0)
    is_busy = chance.random((len(times), 1)) < percent / 100
    return np.where(is_busy & (chance.random(times.shape) < 0.5), 3 * times, times)


def compare(
    instance: PlannedInstance,
    script: Script,
    measured: tuple[Sequence[Size], Times],
    other: tuple[Sequence[Size], Times],
    asked: argparse.Namespace,
) -> str:
    """Fit a grid, and return the losses at other sizes."""
    sizes, times = measured[0], disturb(measured[1], asked.disturbed)
    rows = make_rows(script, sizes, times, "gpu")
    committed, ((_, fit),) = fit_script(script, instance, rows, [], 1.05, asked.most)
    measurements = group_measurements(script, rows, {})
    (table,) = derive_tables(script, rows, measurements, {}, CommittedRows("", committed)).tables
    chooser = Chooser(script, table, frozenset(script.programs))
    column_of = {program: column for column, program in enumerate(script.programs)}
    calls = [dict(zip(script.keys, size, strict=True)) for size in other[0]]
    chosen = [column_of[chooser.choose_program(call).program] for call in calls]
    ratios = other[1] / other[1].min(axis=1, keepdims=True)
    own = [column_of[program] for program in fit.programs]
    best = {
        script.find_bucket(dict(zip(script.keys, size, strict=True))): int(row.argmin())
        for size, row in zip(sizes, times, strict=True)
    }
    nearest = [best[find_nearest_bucket(script.find_bucket(call), best)] for call in calls]
    single = int((times / times.min(axis=1, keepdims=True)).mean(axis=0).argmin())
    left_out = [case.left_out_regret for case in fit.cases]
    losses = (chosen, np.array(own)[ratios[:, own].argmin(axis=1)].tolist(), nearest)
    cells = [measure_loss(ratios, columns) for columns in (*losses, [single] * len(calls))]
    return (
        f"{len(sizes):6}{len(own):6}{statistics.mean(left_out):9.1%}{max(left_out):6.0%}"
        + "".join(f"{cell:>15}" for cell in cells)
    )  # fmt: skip


HEAD = (
    f"{'':32}{'sizes':>6}{'progs':>6}{'left out':>15}{'fit':>15}{'best of them':>15}"
    f"{'nearest':>15}{'one program':>15}"
)


def compare_gemm(directory: Path, asked: argparse.Namespace, kinds: Sequence[str]) -> None:
    """Print the losses for gemm on each GPU, grid and kind of other sizes."""
    for name, gpu in GPUS.items():
        for bucket in ("exact", "tilus"):
            buckets = ", ".join(f'{key} = "{bucket}"' for key in "mnk")
            text = GEMM.format(sms=gpu.sms, smem=gpu.smem, bucket=f", bucket = {{ {buckets} }}")
            (directory / "tilus.toml").write_text(text)
            (directory / "gemm.cu.j2").write_text(GEMM_SOURCE)
            with Project.open(str(directory), {}, os.environ) as project:
                (instance,) = project.make_plan(PlanSelection()).instances
                script = describe_planned(project.manifest, instance)
            schedules = [script.get_schedule(program) for program in script.programs]

            def time_all(
                sizes: Sequence[Size], gpu: Gpu = gpu, schedules: Any = schedules
            ) -> Times:
                return np.array(
                    [[compute_gemm_seconds(gpu, s, size) for s in schedules] for size in sizes]
                )

            for grid_name, grid in list_gemm_grids(random.Random(0)):
                for kind in kinds:
                    for seed in range(asked.seeds):
                        chance = random.Random(seed)
                        others = draw_others(partial(draw_gemm_size, chance, kind), grid)
                        pair = (grid, time_all(grid)), (others, time_all(others))
                        cells = compare(instance, script, *pair, asked)
                        label = f"{name} {bucket} {grid_name}, {kind}"
                        print(f"{label:32}{cells}", flush=True)


def draw_others(draw: Callable[[], Size], grid: Sequence[Size]) -> list[Size]:
    """Return sizes that are not in the grid."""
    others: dict[Size, None] = {}
    while len(others) < HELD_OUT:
        size = draw()
        if size not in grid:
            others[size] = None
    return [*others]


def measure_rms_norm(script: Script, sizes: Sequence[Size], seconds: float) -> Times:
    """Return the times of all programs at some sizes."""
    functions = []
    for program in script.programs:
        launch = ctypes.CDLL(script.get_library_path(program)).launch
        launch.argtypes = (
            [ctypes.c_void_p] * 3 + [ctypes.c_int] * 2 + [ctypes.c_float, ctypes.c_void_p]
        )
        functions.append(launch)
    samples: list[list[list[float]]] = [[[] for _ in functions] for _ in sizes]
    chance, deadline = random.Random(0), time.monotonic() + seconds
    while time.monotonic() < deadline or len(samples[0][0]) < 3:
        for index in chance.sample(range(len(sizes)), len(sizes)):
            m, n = sizes[index]
            x, weight = np.ones((m, n), np.float32), np.ones(n, np.float32)
            y = np.empty_like(x)
            words = (x.ctypes.data, weight.ctypes.data, y.ctypes.data, m, n, 1e-5, None)
            repeats = max(1, min(400, 200_000 // (m * n)))
            for number in chance.sample(range(len(functions)), len(functions)):
                shortest = float("inf")
                for _ in range(3):
                    started = time.perf_counter()
                    for _ in range(repeats):
                        functions[number](*words)
                    shortest = min(shortest, (time.perf_counter() - started) / repeats)
                samples[index][number].append(shortest)
    by_round = np.array(samples)
    halves = [by_round[:, :, start::2].min(axis=2) for start in (0, 1)]
    ratios = halves[1] / halves[1].min(axis=1, keepdims=True)
    loss = measure_loss(ratios, halves[0].argmin(axis=1).tolist())
    print(f"rms_norm: {len(sizes)} sizes in {by_round.shape[2]} rounds, which differ by{loss}")
    times: Times = by_round.min(axis=2)
    return times


def compare_rms_norm(directory: Path, asked: argparse.Namespace) -> None:
    """Measure rms_norm at many sizes, and print the losses of fits to parts of them."""
    (directory / "tilus.toml").write_text(RMS_NORM)
    (directory / "rms_norm.cu.j2").write_text(RMS_NORM_SOURCE)
    _bench.process((*_bench.TILUSBUILD, "build"), directory)
    with Project.open(str(directory), {}, os.environ) as project:
        (instance,) = project.make_plan(PlanSelection()).instances
        script = read_script(project.cache.script_path(instance.directory, instance.hash))
    rows = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 100, 128, 192, 256, 333, 512)
    short = (16, 24, 32, 40, 48, 64, 80, 96, 100, 128, 192, 200, 256, 300, 384, 500, 512, 768)
    lengths = (*short, 1000, 1024, 1536, 2048, 2500, 3072, 4096, 5000, 6144, 8192)
    sizes = [(m, n) for m in rows for n in lengths if m * n <= 1 << 20]
    times = dict(zip(sizes, measure_rms_norm(script, sizes, asked.seconds), strict=True))
    for seed in range(asked.seeds):
        chance = random.Random(seed)
        powers = [size for size in sizes if all(number & (number - 1) == 0 for number in size)]
        for name, grid in (("powers", powers), ("150 any", chance.sample(sizes, 150))):
            rest = [size for size in sizes if size not in grid]
            others = chance.sample(rest, min(HELD_OUT, len(rest)))
            measured, other = (
                (part, np.array([times[size] for size in part])) for part in (grid, others)
            )
            cells = compare(instance, script, measured, other, asked)
            print(f"{f'rms_norm cpu {name}':32}{cells}", flush=True)


def main() -> None:
    asked = _bench.arguments(__doc__, most=8, seeds=2, seconds=60, disturbed=0)
    if asked.small:
        asked.seeds, asked.seconds = 1, 0
    print(HEAD)
    with _bench.workshop() as directory:
        kinds = ("serving",) if asked.small else ("powers", "any", "serving")
        for name in ("gemm", "rms_norm"):
            (directory / name).mkdir()
        compare_gemm(directory / "gemm", asked, kinds)
        compare_rms_norm(directory / "rms_norm", asked)


if __name__ == "__main__":
    main()
