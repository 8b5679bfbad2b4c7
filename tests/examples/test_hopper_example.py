"""examples/hopper: its host function against NumPy; tests/gpu calls the kernel."""

import ctypes

import numpy as np
import pytest


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 1000)])
def test_the_host_function(hopper, native, rows, columns):
    function = native(hopper.default("rms_norm", "host"))
    x = np.random.default_rng(1).standard_normal((rows, columns), dtype=np.float32)
    y = np.zeros_like(x)
    function(
        x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p), rows, columns,
        ctypes.c_float(1e-5),
    )  # fmt: skip
    np.testing.assert_allclose(y, hopper.reference.rms_norm(x, y, 1e-5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("columns", [1, 1000, 16_384])
def test_shared_memory_holds_the_slices_of_all_columns(hopper, columns):
    for program in hopper.programs("rms_norm", "hopper"):
        values = program.values
        grid, block, smem = program.geometry(rows=33, columns=columns)
        row_bytes, rest = divmod(smem, values["tile_rows"] * 4)
        assert rest == 0
        assert row_bytes % values["chunk"] == 0
        assert row_bytes * values["cluster"] >= columns
        assert grid == [values["cluster"], -(-33 // values["tile_rows"])]
        assert block == [32 * values["tile_rows"]]
