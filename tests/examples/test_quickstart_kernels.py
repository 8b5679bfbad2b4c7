"""The quickstart's kernels compute what ref.py says: CUDA emulated, cpu for real."""

import ctypes

import numpy as np
import pytest


def saxpy_arguments(n):
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((2, n), dtype=np.float32)
    return [np.float32(1.5), x, y, np.int64(n)]


def rms_norm_arguments(m, n):
    rng = np.random.default_rng(n)
    x = rng.standard_normal((m, n), dtype=np.float32)
    weight = rng.standard_normal(n, dtype=np.float32)
    return [x, weight, np.zeros_like(x), np.int32(m), np.int32(n), np.float32(1e-5)]


@pytest.mark.parametrize("schedule", [{"vector": 1, "unroll": 4}, {"vector": 4, "unroll": 2}])
def test_saxpy(quickstart, emulate, launch, schedule):
    program = quickstart.programs("saxpy", "sm_80", threads=256, **schedule)[0]
    kernel = emulate(program)
    # Whole tiles, an edge, one element, and arrays that begin between two vectors.
    for n, shift in [(4096, 0), (5000, 0), (1, 0), (3001, 4)]:
        arguments = saxpy_arguments(n)
        result = launch(program, kernel, arguments, n=n, shift=shift).tensors[1]
        expected = quickstart.reference.saxpy(*arguments[:3])
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "schedule",
    [
        {"threads": 256, "rows": 8, "vector": 2, "keep": 0},
        {"threads": 256, "rows": 2, "vector": 4, "keep": 4},
        {"threads": 128, "rows": 1, "vector": 4, "keep": 4},
    ],
)
def test_rms_norm(quickstart, emulate, launch, schedule):
    (program,) = quickstart.programs("rms_norm", "sm_90a", **schedule)
    kernel = emulate(program)
    # Rows shorter and longer than what is kept, rows that are no whole vectors, and a slice.
    for m, n, shift in [(9, 64, 0), (3, 4096, 0), (9, 333, 0), (2, 64, 4)]:
        arguments = rms_norm_arguments(m, n)
        x, weight, y, _, _, eps = arguments
        expected = quickstart.reference.rms_norm(x, weight, y, eps)
        for order in ("forward", "backward"):
            sizes = {"m": m, "n": n, "shift": shift}
            result = launch(program, kernel, arguments, order=order, **sizes).tensors[2]
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


@pytest.mark.parametrize("n", [0, 1, 1003])
def test_saxpy_on_the_cpu(quickstart, native, n):
    for program in quickstart.programs("saxpy", "cpu"):
        a, x, y, _ = saxpy_arguments(n)
        expected = quickstart.reference.saxpy(a, x, y)
        native(program)(ctypes.c_float(a), pointer(x), pointer(y), ctypes.c_int64(n))
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_rms_norm_on_the_cpu(quickstart, native):
    for program in quickstart.programs("rms_norm", "cpu"):
        x, weight, y, m, n, eps = rms_norm_arguments(7, 1003)
        native(program)(
            pointer(x), pointer(weight), pointer(y), int(m), int(n), ctypes.c_float(eps)
        )
        expected = quickstart.reference.rms_norm(x, weight, y, eps)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-6)
