"""The backend `nvrtc`: device code from NVRTC alone, through a driver that writes it down."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent

CALL = """
import ctypes, json, sys

sys.path.insert(0, sys.argv[1])
from conftest import TEXT
import numpy, tilusbuild

class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]

class Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32),
                ("dtype", Type), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p)]

new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class OnDevice:
    # Host memory that says it is a GPU's: the driver only writes down where it is.
    def __init__(self, array):
        self.array, self.shape = array, array.shape
        self.sizes = (ctypes.c_int64 * 1)(*array.shape)
        self.tensor = Tensor(array.ctypes.data, Device(2, 0), 1, Type(2, 32, 1),
                             ctypes.addressof(self.sizes), None, 0, None, None)

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **more):
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


args = {"a": "f32", "x": "f32*[n]", "y": {"type": "f32*[n]", "out": True}, "n": "i64"}
launch = {"grid": ["cdiv(n, 256)"], "block": [256], "smem": "times * 1000",
          "cluster": [2], "pdl": "times > 1", "carve-out": 100}
space = {"times": [1, 60]}
source = tilusbuild.Source(TEXT, kernel="scale", args=args, launch=launch, space=space)
kernels = tilusbuild.KernelCache()
said = {}
for times in json.loads(sys.argv[2]):
    kernel = kernels.cached(source, target="sm_90a", execution_backend="nvrtc", times=times)
    x, y = (OnDevice(numpy.zeros(1000, "float32")) for _ in range(2))
    kernel(2.5, x, y)
    said[times] = [hex(x.array.ctypes.data), hex(y.array.ctypes.data)]
try:
    kernel(2.5, numpy.zeros(1000, "float32"), y)
except ValueError as error:
    said["error"] = str(error)
said["compiles"], said["disk"] = kernels.stats.compiles, kernels.stats.disk_hits
print(json.dumps(said))
"""


@pytest.fixture
def call(tmp_path: Path, cache: Path) -> Callable[..., tuple[dict[str, object], list[str]]]:
    """Ask for kernels in a process whose driver is the fake one, where no compiler can be found."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc to make the fake driver")
    driver = HERE.parent / "compile" / "fake_cuda.c"
    made = tmp_path / "driver"
    made.mkdir()
    library = str(made / "libcuda.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, driver], check=True)

    def run(*times: int) -> tuple[dict[str, object], list[str]]:
        journal = made / "journal"
        journal.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", CALL, str(HERE), json.dumps(times)],
            env={
                "PATH": str(made),  # no nvcc, no g++, no ld
                "HOME": str(tmp_path),
                "CUDA_HOME": os.environ.get("CUDA_HOME", ""),
                "LD_LIBRARY_PATH": str(made),
                "FAKE_CUDA_JOURNAL": str(journal),
                "FAKE_CUDA_PARAMETERS": "f32 ptr ptr i64",
                "TILUSBUILD_CACHE_DIR": str(cache),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines = [line for line in journal.read_text().splitlines() if line.startswith("launch")]
        return json.loads(done.stdout), lines

    return run


@pytest.mark.nvcc
def test_kernels_without_nvcc_and_host_compiler(
    call: Callable[..., tuple[dict[str, object], list[str]]],
) -> None:
    said, launches = call(1, 60)
    assert (said["compiles"], said["disk"]) == (2, 0)
    expected = [
        f"launch in primary0 grid=4,1,1 block=256,1,1 shared={times}000 stream=(nil) attributes: "
        f"{attributes} parameters: 2.5 {' '.join(said[str(times)])} 1000"  # type: ignore[arg-type]
        for times, attributes in ((1, "cluster=2,1,1"), (60, "cluster=2,1,1 6=1"))
    ]
    assert launches == expected
    assert 'argument "x" is on cpu' in str(said["error"])
    again, _ = call(1, 60)
    assert (again["compiles"], again["disk"]) == (0, 2)


@pytest.mark.nvcc
def test_device_code_that_was_damaged_is_made_again(
    call: Callable[..., tuple[dict[str, object], list[str]]], cache: Path
) -> None:
    call(1)
    (image,) = cache.glob("state/device/*.bin")
    image.write_bytes(image.read_bytes()[:-1])
    said, _ = call(1)
    assert (said["compiles"], said["disk"]) == (1, 0)
