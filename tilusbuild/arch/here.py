"""The GPUs of this machine, as NVIDIA's management library knows them: it starts no driver, touches
no device, and takes 20 ms where there is one."""

from __future__ import annotations

import ctypes

from tilusbuild.arch.table import ARCHS

DEVICES = ("/dev/nvidiactl", "/dev/dxg", *(f"/dev/nvidia{number}" for number in range(16)))
"""Files of the system that are other files, or there or not, when the GPUs are others."""


def archs_here() -> tuple[str, ...]:
    """Return the architectures of the GPUs, each once, with the suffix `a` where it has one, since
    code for this machine may use all of it. () where there is no GPU, or none that is known."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ()
    numbers: set[int] = set()
    count, gpu, major, minor = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    if library.nvmlInit_v2():
        return ()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for number in range(count.value):
        if library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(gpu)):
            continue
        places = ctypes.byref(major), ctypes.byref(minor)
        if not library.nvmlDeviceGetCudaComputeCapability(gpu, *places):
            numbers.add(10 * major.value + minor.value)
    library.nvmlShutdown()
    names = (f"sm_{number}{'a' * (f'sm_{number}a' in ARCHS)}" for number in sorted(numbers))
    return tuple(name for name in names if name in ARCHS)
