"""Outputs compared element by element, with NumPy and without: the same answers."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.runtime.dtypes import DTYPES, WHOLE
from tilusbuild.tune import inputs
from tilusbuild.tune.bench import elements

FLOATS = ("f16", "bf16", "f32", "f64", "f8e4m3", "f8e5m2", "f8e8m0")
INTEGERS = tuple(name for name in DTYPES if name in WHOLE and name != "bool")


@given(
    dtype=st.sampled_from((*FLOATS, *INTEGERS)),
    data=st.data(),
    rtol=st.sampled_from((0.0, 1e-3, 0.5)),
)
def test_numpy_and_plain_python_agree(dtype: str, data: st.DataObject, rtol: float) -> None:
    size = data.draw(st.integers(1, 8)) * DTYPES[dtype].bytes
    got = data.draw(st.binary(min_size=size, max_size=size))
    want = data.draw(st.one_of(st.just(got), st.binary(min_size=size, max_size=size)))
    if dtype not in FLOATS:
        rtol = 0.0
    arguments = (got, dtype, want, dtype, rtol, 0.0)
    one, other = elements._plain(*arguments), elements._with_numpy(np, *arguments)
    assert repr(one) == repr(other)


@pytest.mark.parametrize("dtype", FLOATS)
def test_values_are_those_of_the_inputs(dtype: str) -> None:
    codes = np.arange(256 if DTYPES[dtype].bytes == 1 else 4096)
    bits = codes.astype(
        {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[DTYPES[dtype].bytes]
    )
    typed = bits.view(inputs.numpy_type(dtype))
    expected = np.asarray(inputs.widen(typed), np.float64)
    found = np.array(list(elements.values(bits.tobytes(), dtype)), np.float64)
    np.testing.assert_array_equal(found, expected)


def test_the_worst_element_is_named() -> None:
    got, want = struct.pack("<6f", *range(6)), struct.pack("<6f", 0, 1, 2, 3, 9, 6)
    error, mismatch = elements.compare("y", (2, 3), got, "f32", want, "f32", 1e-6, 0.0)
    assert error == 5.0
    assert str(mismatch) == "y[1, 1] is 4, expected 9; 2 of 6 elements are wrong"


@pytest.mark.parametrize(
    ("got", "want", "right"),
    [
        (math.nan, math.nan, True),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
        (1.0, math.inf, False),
    ],
)
def test_what_is_not_finite_must_be_the_same(got: float, want: float, right: bool) -> None:
    one, other = struct.pack("<f", got), struct.pack("<f", want)
    error, mismatch = elements.compare("y", (1,), one, "f32", other, "f32", 0.5, 0.5)
    assert (mismatch is None) == right
    assert error == (0.0 if right else math.inf)


def test_integers_are_compared_as_whole_numbers() -> None:
    got, want = struct.pack("<q", 2**62 + 1), struct.pack("<q", 2**62)
    _, mismatch = elements.compare("y", (1,), got, "i64", want, "i64", 0.5, 0.5)
    assert mismatch is not None
