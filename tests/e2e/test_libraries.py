"""A `lib.so` loads with tvm-ffi alone and computes on arrays; a wrong argument is told by name."""

from __future__ import annotations

import ctypes
import re
import subprocess

import numpy as np
import pytest

from support.project import NewProject, Project
from support.scale import manifest, script

tvm_ffi = pytest.importorskip("tvm_ffi")


@pytest.fixture
def load():
    """load(project) gives the function of its first program."""

    def first(project):
        path = next(iter(project.programs.values())) / "module/lib.so"
        return tvm_ffi.load_module(str(path))["launch"]

    return first


def given(*arrays):
    """NumPy's arrays as tvm-ffi takes them."""
    return [tvm_ffi.from_dlpack(a) if isinstance(a, np.ndarray) else a for a in arrays]


@pytest.fixture
def scale(project: Project, load):
    project.edit("tilus.toml", "[1, 2]", "[1, 1]")
    project.build()
    launch = load(project)
    return lambda *arguments: launch(*given(*arguments))


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_it_computes(scale, n):
    x, y = np.arange(n, dtype=np.float32), np.full(n, -1, np.float32)
    scale(2.5, x, y)
    np.testing.assert_array_equal(y, np.float32(2.5) * x)


def test_wrong_arguments_are_told_by_name(scale):
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    for arguments, said in (
        ((2.0, x.astype(np.float64), y), ["x", "f32", "f64"]),
        ((2.0, x.astype(np.int32), y), ["x", "f32", "i32"]),
        ((2.0, x.reshape(2, 4), y), ['"x"', "f32*[n]", "(2, 4)"]),
        ((2.0, x, np.zeros(9, np.float32)), ["y", "n", "9", "8"]),
        ((2.0, x, np.zeros(16, np.float32)[::2]), ["y", "contiguous"]),
        ((2.0, x), ["3", "2", "y"]),
        ((2.0, x, y, x), ["3", "4"]),
        ((x, x, y), ["a"]),
        ((2.0, 1.0, y), ["x"]),
        ((2.0, None, y), ["x"]),
        (("2", x, y), ["a"]),
    ):
        with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
            scale(*arguments)
        message = str(caught.value)
        assert "scale" in message, message
        for word in said:
            assert word in message, (message, word)
    assert not y.any(), "nothing was launched"


def test_the_plain_function_takes_plain_pointers(project: Project, scale):
    (program,) = project.programs.values()
    launch = ctypes.CDLL(str(program / "module/lib.so")).launch
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, y)]
    assert launch(ctypes.c_float(3), *pointers, ctypes.c_int64(4), None) == 0
    np.testing.assert_array_equal(y, 3 * x)


def test_nothing_but_the_c_library_is_needed(project: Project, scale):
    (program,) = project.programs.values()
    listed = subprocess.run(
        ["readelf", "-d", program / "module/lib.so"], capture_output=True, text=True, check=True
    )
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", listed.stdout)
    assert {name.split(".")[0] for name in needed} <= {
        *("libc", "libm", "libdl", "libgcc_s", "ld-linux-x86-64", "ld-linux-aarch64"),
    }


@pytest.mark.nvcc
def test_a_cuda_library_without_a_driver(new_project: NewProject, load):
    """It loads; what is wrong with arguments is said; the first launch says what is missing."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has a driver")
    text = manifest(script(target="gpu", schedules=1)).replace(
        'args = { a = "f32", x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i64" }',
        'args = { a = "f32" }',
    )
    template = 'extern "C" __global__ void scale(float a) { if (a > {{ unroll }}) __trap(); }\n'
    project = new_project(
        text.replace('["cdiv(n, 256)"]', "[1]"), {"kernels/scale.cu.j2": template}
    )
    project.build()
    launch = load(project)
    with pytest.raises((TypeError, ValueError), match="a"):
        launch("two")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="driver"):
            launch(0.5)
