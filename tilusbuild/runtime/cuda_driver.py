"""The CUDA driver (libcuda.so.1) through ctypes: opened in one place, its errors as one exception.

Opening the library touches no device; `cuInit` does, and a process that has called it can no longer
fork children that use the GPU. So nothing here calls it by itself. A bundle carries this module: it
needs the standard library alone.
"""

from __future__ import annotations

import ctypes
from typing import Any

from tilusbuild.runtime.errors import DriverError

LIBRARY = "libcuda.so.1"

# Values of cuda.h.
NOT_READY = 600
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR, L2_CACHE_SIZE = 75, 76, 38
MAX_DYNAMIC_SHARED_SIZE_BYTES, PREFERRED_SHARED_MEMORY_CARVEOUT = 8, 9
NON_PORTABLE_CLUSTER_SIZE_ALLOWED, PORTABLE_CLUSTER_SIZE = 14, 8
COOPERATIVE, CLUSTER_DIMENSION, PROGRAMMATIC_SERIALIZATION = 2, 4, 6


class CudaDriver:
    """The driver's functions. Raises `DriverError` when the library cannot be opened.

    dlopen's RTLD_LOCAL (the default of ctypes) is enough: every symbol is looked up in the handle.
    """

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise DriverError(f"no CUDA driver: {error}") from None

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function by its name in the library. Raises `DriverError` for any error code."""
        status = getattr(self.library, function)(*arguments)
        if status:
            raise DriverError(f"{function} failed with CUDA error {status}{self._named(status)}")

    def _named(self, status: int) -> str:
        name = ctypes.c_char_p()
        try:
            self.library.cuGetErrorName(status, ctypes.byref(name))
        except AttributeError:  # a driver for tests need not have it
            return ""
        return f" ({name.value.decode()})" if name.value else ""

    def version(self) -> int:
        """Return the CUDA version that the driver supports: 13000 is 13.0. Needs no `cuInit`."""
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return version.value

    def device(self, index: int) -> int:
        """Return the handle of a GPU by its number; `cuInit` was called. Raises `DriverError`."""
        count, device = ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        if not 0 <= index < count.value:
            raise DriverError(f"there is no cuda:{index}: the driver knows {count.value} devices")
        self.call("cuDeviceGet", ctypes.byref(device), index)
        return device.value

    def name(self, device: int) -> str:
        """Return the marketing name of a device by its handle."""
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, len(name), device)
        return name.value.decode(errors="replace")

    def attribute(self, which: int, device: int) -> int:
        """Return an attribute (CU_DEVICE_ATTRIBUTE_…) of a device by its handle."""
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), which, device)
        return value.value

    def arch(self, device: int) -> str:
        """Return the compute capability of a device as nvcc spells it: "sm_90"."""
        major = self.attribute(COMPUTE_CAPABILITY_MAJOR, device)
        return f"sm_{major * 10 + self.attribute(COMPUTE_CAPABILITY_MINOR, device)}"
