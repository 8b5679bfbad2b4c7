"""The table of element types against NumPy, ml_dtypes, struct and ctypes."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest

from tilusbuild.runtime.dtypes import DTYPES, FLOATS, WHOLE, DataType
from tilusbuild.tune.bench.devices import c_type
from tilusbuild.tune.inputs import numpy_type

KINDS = {"bool": ("b", 6), "int": ("i", 0), "uint": ("u", 1)}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
class TestEachType:
    def test_is_numpy_s(self, dtype: DataType) -> None:
        known = numpy_type(dtype.name)
        assert (known.name, known.itemsize) == (dtype.numpy, dtype.bytes)
        if dtype.kind in KINDS:
            assert (known.kind, dtype.code) == KINDS[dtype.kind]

    def test_is_struct_s(self, dtype: DataType) -> None:
        if dtype.struct:
            assert struct.calcsize(f"<{dtype.struct}") == dtype.bytes
            assert np.dtype(dtype.struct) == numpy_type(dtype.name)

    def test_is_passed_to_c_at_its_size(self, dtype: DataType) -> None:
        if dtype.c != "void":
            assert ctypes.sizeof(c_type(dtype.name, is_tensor=False)) == dtype.bytes

    def test_has_the_limits_that_numpy_knows(self, dtype: DataType) -> None:
        limits = dtype.limits
        if dtype.kind in ("int", "uint"):
            known = np.iinfo(numpy_type(dtype.name))
            assert limits == (known.min, known.max)
        else:
            assert limits is None


def test_every_type_is_whole_or_a_float() -> None:
    assert set(DTYPES) == WHOLE | FLOATS
    assert not WHOLE & FLOATS
