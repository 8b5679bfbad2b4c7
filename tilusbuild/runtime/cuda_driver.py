"""Calls the CUDA driver (libcuda.so.1) through ctypes, and loads NVIDIA's libraries by soname.

Opening the driver touches no device; `cuInit` does, and a process that has called it can no longer
fork children that use the GPU. So no function here calls it by itself.

A library that was linked with the shared CUDA runtime, or cuBLAS, needs it by its soname. In a
process that has torch it is loaded already; else it may be in a wheel or in a toolkit, where the
loader does not look. The loader's error names one missing library at a time. So only these are
opened, never one of another release, and nothing is done for a library that opens by itself.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from tilusbuild.runtime.errors import DriverError

LIBRARY = "libcuda.so.1"

# Values of cuda.h.
NOT_READY = 600
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR, L2_CACHE_SIZE = 75, 76, 38


class CudaDriver:
    """Calls the functions of libcuda. Raises `DriverError` when it cannot be opened.

    RTLD_LOCAL, the default of ctypes, is enough: every symbol is looked up in the handle.
    """

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise DriverError(f"no CUDA driver: {error}") from None

    def call_function(self, function: str, *arguments: Any) -> None:
        """Call a function by its name in the library. Raises `DriverError` for any error code."""
        code = getattr(self.library, function)(*arguments)
        if code != 0:  # CUDA_SUCCESS
            name = ctypes.c_char_p()
            with suppress(AttributeError):  # a driver for tests need not have it
                self.library.cuGetErrorName(code, ctypes.byref(name))
            suffix = f" ({name.value.decode()})" if name.value else ""
            raise DriverError(f"{function} failed with CUDA error {code}{suffix}")

    def get_version(self) -> int:
        """Return the CUDA version that the driver supports: 13000 is 13.0. Needs no `cuInit`."""
        version = ctypes.c_int()
        self.call_function("cuDriverGetVersion", ctypes.byref(version))
        return version.value

    def count_devices(self) -> int:
        """Return the number of GPUs. `cuInit` must have been called."""
        count = ctypes.c_int()
        self.call_function("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def get_device(self, index: int) -> int:
        """Return the handle of a GPU by its number. `cuInit` must have been called. Raise
        `DriverError`."""
        count, device = self.count_devices(), ctypes.c_int()
        if not 0 <= index < count:
            raise DriverError(f"there is no cuda:{index}: the driver knows {count} devices")
        self.call_function("cuDeviceGet", ctypes.byref(device), index)
        return device.value

    def get_name(self, device: int) -> str:
        """Return the marketing name of a device by its handle."""
        name = ctypes.create_string_buffer(256)
        self.call_function("cuDeviceGetName", name, len(name), device)
        return name.value.decode(errors="replace")

    def get_attribute(self, attribute: int, device: int) -> int:
        """Return an attribute (CU_DEVICE_ATTRIBUTE_…) of a device by its handle."""
        value = ctypes.c_int()
        self.call_function("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        return value.value

    def get_arch(self, device: int) -> str:
        """Return the compute capability of a device as nvcc spells it: "sm_90"."""
        major = self.get_attribute(COMPUTE_CAPABILITY_MAJOR, device)
        return f"sm_{major * 10 + self.get_attribute(COMPUTE_CAPABILITY_MINOR, device)}"


_Library = TypeVar("_Library")

# glibc's error for a library that another one needs:
#     libcudart.so.12: cannot open shared object file: No such file or directory
_MISSING = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")


def open_with_dependencies(open_library: Callable[[], _Library]) -> _Library:
    """Return the result of `open_library`, after loading the libraries that it misses. When one of
    them is not found, raise the error of `open_library`: `OSError`, or tvm-ffi's `RuntimeError`."""
    return _retry_with_dependencies(open_library, tried=set())


def _retry_with_dependencies(open_library: Callable[[], _Library], tried: set[str]) -> _Library:
    """Call `open_library` until it succeeds, loading one missing library after each failure.
    `tried` holds the sonames that were loaded; a soname is tried once."""
    while True:
        try:
            return open_library()
        except (OSError, RuntimeError) as error:
            match = _MISSING.search(str(error))
            if match is None:
                raise
            soname = match[1]
            # A soname that is missing again was loaded, and does not satisfy the loader.
            if soname in tried:
                raise
            tried.add(soname)
            if not _load_dependency(soname, tried):
                raise


def _load_dependency(name: str, tried: set[str]) -> bool:
    """Load a library by its soname, with its own dependencies, and keep it open: the loader then
    finds it by that soname. Return whether it was found."""
    for path in find_library_files(name):
        with suppress(OSError):  # the file may be of another machine: the next one is tried
            _retry_with_dependencies(partial(ctypes.CDLL, path), tried)
            return True
    return False


def find_library_files(name: str) -> Iterator[str]:
    """Yield the files of a library name: in NVIDIA's wheels on `sys.path`, then in the toolkits of
    CUDA_HOME, CUDA_PATH and /usr/local/cuda."""
    # Not "", the working directory, where others may write, as in /tmp.
    for directory in filter(None, sys.path):
        wheels = os.path.join(glob.escape(os.path.abspath(directory)), "nvidia", "*", "lib")
        yield from sorted(glob.glob(os.path.join(wheels, glob.escape(name))))
    # After the wheels, which a project pins, while a toolkit is the machine's.
    roots = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    for root in filter(None, roots):
        path = os.path.join(root, "lib64", name)
        if os.path.isfile(path):
            yield path
