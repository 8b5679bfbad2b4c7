"""What tensors hold before a call: the same on every machine, and numbers that a kernel can add."""

import hashlib

import numpy as np
import pytest

from tilusbuild.runtime.dtypes import DTYPES, FLOATS
from tilusbuild.tune.bench.elements import make_noise
from tilusbuild.tune.inputs import get_numpy_type

COUNT = 1 << 14
SINGLE = [name for name, dtype in DTYPES.items() if dtype.lanes == 1]


@pytest.mark.parametrize("dtype", SINGLE)
def test_numbers_are_moderate_and_differ(dtype: str) -> None:
    values = np.frombuffer(make_noise(dtype, COUNT, "0 x"), get_numpy_type(dtype)).astype(
        np.float64
    )
    limits = DTYPES[dtype].limits or (0, 1)
    low: float
    high: float
    low, high = (-1, 1) if dtype in FLOATS else (max(-8, limits[0]), min(8, limits[1]))
    if dtype == "f8e8m0":
        low, high = 0.25, 4
    assert low <= values.min() < (low + high) / 2 < values.max() <= high
    assert np.abs(values).min() >= (2**-6 if dtype in FLOATS else 0)
    assert not np.array_equal(values[:64], values[64:128])
    other = np.frombuffer(make_noise(dtype, COUNT, "1 x"), get_numpy_type(dtype)).astype(np.float64)
    assert not np.array_equal(values, other)


@pytest.mark.parametrize(("dtype", "bits"), [("f16", 10), ("bf16", 7), ("f32", 23), ("f64", 52)])
def test_every_bit_of_the_mantissa_is_drawn(dtype: str, bits: int) -> None:
    """A kernel that rounds its inputs to a narrower type is wrong on these."""
    raw = np.frombuffer(make_noise(dtype, COUNT, "0 x"), f"u{DTYPES[dtype].bytes}")
    for bit in range(bits):
        assert 0.45 < ((raw >> raw.dtype.type(bit)) & 1).mean() < 0.55


def test_the_bytes_are_a_contract() -> None:
    """A package that was made elsewhere holds what its outputs are for these inputs."""
    every = b"".join(make_noise(dtype, 100, "0 x") for dtype in SINGLE)
    assert (
        hashlib.sha256(every).hexdigest()
        == "8b8e1bf4d6bae8cc049c7d2a3a7dd917623a94772fa1250213fe8aa30dc879fd"
    )
