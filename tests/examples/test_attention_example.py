"""examples/attention: the kernel emulated, against NumPy."""

import numpy as np
import pytest


def arguments(heads, kv_heads, length, d):
    rng = np.random.default_rng(length)
    q = rng.standard_normal((heads, d), dtype=np.float32)
    k, v = rng.standard_normal((2, length, kv_heads, d), dtype=np.float32)
    sizes = [np.int32(heads), np.int32(kv_heads), np.int32(length), np.float32(d**-0.5)]
    return [q, k, v, np.zeros_like(q), *sizes]


@pytest.mark.parametrize(("head_dim", "warps", "rows"), [(64, 2, 4), (128, 8, 1)])
def test_decode(attention, emulate, launch, head_dim, warps, rows):
    values = {"head_dim": head_dim, "warps": warps, "rows": rows}
    (program,) = attention.programs("decode", "ampere", **values)
    kernel = emulate(program)
    # Positions that are no whole rounds of the warps, and fewer than there are warps.
    for heads, kv_heads, length in [(4, 2, 37), (2, 2, 1)]:
        given = arguments(heads, kv_heads, length, head_dim)
        result = launch(program, kernel, given, heads=heads).tensors[3]
        expected = attention.reference.decode(*given[:4], given[7])
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)
