"""Arguments as kernels have them: opaque pointers, tensors that may be None, strides."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

import tilusbuild
from support.project import NewProject, Project, head

tvm_ffi = pytest.importorskip("tvm_ffi")

MANIFEST = (
    head("host")
    + """\
[script.scale]
template = "scale.cpp.j2"
kernel = "scale"
[script.scale.args]
state = "void*"
bias = { type = "f32*[m]", optional = true }
x = { type = "f32*[m, n]", strides = ["row", "column"] }
y = { type = "f32*[m, n]", out = true, strides = ["to", 1] }
m = "i32"
n = "i32"
row = "i64"
column = "i32"
to = "i64"
[script.scale.dispatch]
keys = ["m"]
"""
)
SOURCE = """\
extern "C" void scale(void *state, const float *bias, const float *x, float *y, int m, int n,
                      long long row, int column, long long to) {
  if (state) ++*(int *)state;
  for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j++) y[i * to + j] = 2 * x[i * row + j * column] + (bias ? bias[i] : 0);
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    files = {"tilus.toml": MANIFEST, "scale.cpp.j2": SOURCE}
    return Project.built(tmp_path_factory.mktemp("arguments"), files)


def test_they_are_read_off_the_tensors(built: Project) -> None:
    scale = tilusbuild.load("scale", where=str(built.cache))
    x = np.arange(60, dtype=np.float32).reshape(6, 10)
    bias, calls = np.array([10, 20, 30], np.float32), ctypes.c_int(0)
    into = np.zeros((3, 8), np.float32)
    for view in (x[:3, :4], x[::2, 1:9:2], x.T[:3, :4], x[5:2:-1, :4]):
        for state in (None, ctypes.addressof(calls), ctypes.c_void_p(ctypes.addressof(calls))):
            into[:] = -1
            scale(state, None, view, into[:, :4])
            np.testing.assert_array_equal(into[:, :4], 2 * view)
            assert (into[:, 4:] == -1).all()
            scale(state, bias, view, into[:, :4])
            np.testing.assert_array_equal(into[:, :4], 2 * view + bias[:, None])
    assert calls.value == 4 * 2 * 2
    np.testing.assert_array_equal(scale(None, None, x), 2 * x)
    np.testing.assert_array_equal(scale(state=None, bias=None, x=x[:, :1]), 2 * x[:, :1])


def test_a_tensor_without_elements_has_any_strides(built: Project) -> None:
    """NumPy's has strides of 0."""
    scale = tilusbuild.load("scale", where=str(built.cache))
    for m, n in ((0, 4), (4, 0)):
        assert scale(None, None, np.zeros((m, n), "f4")).shape == (m, n)
        scale(None, None, np.zeros((m, n), "f4"), np.zeros((m, n), "f4"))


def test_what_is_wrong_is_told(built: Project) -> None:
    scale = tilusbuild.load("scale", where=str(built.cache))
    x, y = np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32)
    for arguments, words in (
        ((2.5, None, x, y), ["state", "void*", "float 2.5", "an address as an int, or None"]),
        ((None, x, x, y), ["bias", "f32*[m]", "(3, 4)"]),
        ((None, np.ones(2, np.float32), x, y), ["x", "m = 2", 'from "bias"', "(3, 4)"]),
        ((None, None, None, y), ["x", "None"]),
        ((None, None, x, np.zeros((4, 3), np.float32).T), ["y", "stride 3 of axis 1", "must be 1"]),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            scale(*arguments)
        for word in words:
            assert word in str(caught.value), (word, str(caught.value))


def test_the_plain_function_takes_strides_and_null(built: Project) -> None:
    (path,) = built.cache.glob("programs/*/module/lib.so")
    launch = ctypes.CDLL(str(path)).launch
    x, y = np.arange(6, dtype=np.float32), np.zeros(6, np.float32)
    null, long = ctypes.c_void_p(None), ctypes.c_int64
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, y)]
    assert launch(null, null, *pointers, 2, 3, long(1), 2, long(3), null) == 0
    np.testing.assert_array_equal(y, 2 * np.array([0, 2, 4, 1, 3, 5], np.float32))
    assert launch(null, null, null, pointers[1], 2, 3, long(1), 2, long(3), null) == -1


@pytest.mark.nvcc
def test_a_kernel_has_them_too(new_project: NewProject, tmp_path: Path) -> None:
    text = MANIFEST.replace('"cpu"', '"sm_80"').replace(
        "[script.scale.args]", 'launch = { grid = ["m"], block = ["n"] }\n[script.scale.args]'
    )
    kernel = SOURCE.replace('"C" void', '"C" __global__ void')
    project = new_project(text, {"scale.cpp.j2": kernel})
    project.build()
    project.edit("scale.cpp.j2", "int column", '{{ "long long" }} column')
    assert "parameter 8 of the kernel has 8 bytes" in project.run("build", status=1).err
