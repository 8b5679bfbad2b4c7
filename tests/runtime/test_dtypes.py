"""The table of element types against NumPy, ml_dtypes, struct and ctypes."""

import ctypes
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tilusbuild.errors import InputError
from tilusbuild.runtime.dtypes import DTYPES, DataType
from tilusbuild.tune.bench.devices import c_type
from tilusbuild.tune.inputs import numpy_type

KINDS = {"bool": ("b", 6), "int": ("i", 0), "uint": ("u", 1)}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
class TestEachType:
    def test_is_numpy_s(self, dtype: DataType) -> None:
        if dtype.lanes != 1:
            with pytest.raises(InputError, match=f"no NumPy arrays of {dtype.name}"):
                numpy_type(dtype.name)
            return
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


@pytest.mark.nvcc
def test_cuda_has_each_type_in_its_size(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc was found")
    headers = "".join(f"#include <cuda_{name}.h>\n" for name in ("fp16", "bf16", "fp8", "fp4"))
    sizes = (f"static_assert(sizeof({d.cuda}) == {d.bytes});\n" for d in DTYPES.values())
    (tmp_path / "sizes.cu").write_text(headers + "".join(sizes))
    command = [nvcc, "-cubin", "-arch=sm_90a", "sizes.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
