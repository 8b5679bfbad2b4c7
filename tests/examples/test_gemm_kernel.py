"""The GEMM computes what NumPy computes, on every way through it: emulated, since a GPU is rare."""

import ctypes

import numpy as np
import pytest

from support.cuda_on_cpu.halves import narrow, widen

ALPHA = np.float32(0.5)
SCHEDULES = {
    "default": {
        "dtype": "f16",
        "block_m": 128,
        "block_n": 128,
        "block_k": 32,
        "warps_m": 2,
        "stages": 4,
        "stage_output": True,
    },
    "one warp high": {"dtype": "bf16", "block_m": 32, "stages": 5, "stage_output": False},
    "one warp wide": {"dtype": "bf16", "block_n": 32, "block_k": 64, "stage_output": True},
    "large": {"dtype": "f16", "block_m": 256, "block_k": 64, "stage_output": False},
}


def matrices(m, n, k, dtype):
    rng = np.random.default_rng(m + n + k)
    a = narrow(rng.standard_normal((m, k)), dtype)
    b = narrow(rng.standard_normal((k, n)), dtype)
    return a, b, np.zeros((m, n), a.dtype)


def check(gemm, c, a, b, dtype):
    expected = gemm.reference.gemm(widen(a), widen(b), None, ALPHA)
    # Half a unit in the last place of the result's type, and the sums' own rounding.
    tolerance = {"f16": 2**-11, "bf16": 2**-8}[dtype]
    np.testing.assert_allclose(widen(c), expected, rtol=tolerance, atol=1e-4)


def check_launch(gemm, launch, program, kernel, m, n, k, **options):
    dtype = program.values["dtype"]
    a, b, c = matrices(m, n, k, dtype)
    arguments = [a, b, c, np.int32(m), np.int32(n), np.int32(k), ALPHA]
    done = launch(program, kernel, arguments, m=m, n=n, k=k, **options)
    check(gemm, done.tensors[2], a, b, dtype)
    assert done.ldmatrix_conflicts == 0
    assert done.copy_conflicts == 0


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_every_way_through_the_kernel(gemm, emulate, launch, schedule):
    program = gemm.programs("gemm", "hopper", **schedule)[0]
    kernel = emulate(program)
    block_m, block_n, block_k = (program.values[f"block_{d}"] for d in "mnk")

    def check_sizes(m, n, k, **options):
        check_launch(gemm, launch, program, kernel, m, n, k, **options)

    # Several tiles, with an edge each way; more steps along k than stages.
    check_sizes(block_m + 16, block_n + 8, block_k * 6 + 8)
    # Copies land at once, warps run in another order: the barriers hold.
    check_sizes(block_m, block_n, block_k * 6, late_copies=False, order="backward")
    check_sizes(block_m, block_n, block_k * 6, order="random", seed=7)
    # Fewer steps than stages; no step at all.
    check_sizes(24, 40, 8)
    check_sizes(24, 40, 0)
    # Rows that are not whole 16-byte chunks, an odd n, and tensors that are slices.
    check_sizes(37, 45, 51)
    check_sizes(40, 46, 40)
    check_sizes(40, 40, 40, shift=2)


def test_tiles_cover_the_matrix_in_groups(gemm, emulate, launch):
    """More rows of tiles than one group has, and a last group that is not full."""
    program = gemm.programs("gemm", "ampere", dtype="f16", block_m=32, stage_output=False)[0]
    assert program.values["group_m"] == 8
    check_launch(
        gemm, launch, program, emulate(program), 32 * 10, program.values["block_n"] * 3, 16
    )


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("sizes", [(16, 64, 128), (37, 45, 51), (65, 33, 130)])
def test_on_the_cpu(gemm, native, dtype, sizes):
    m, n, k = sizes
    a, b, c = matrices(m, n, k, dtype)
    program = gemm.default("gemm", "host", dtype=dtype)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (a, b, c)]
    native(program)(*pointers, *sizes, ctypes.c_float(float(ALPHA)))
    check(gemm, c, a, b, dtype)
