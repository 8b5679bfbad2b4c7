"""Devices: what a library runs on, and what a dispatch table was measured on.

The CUDA driver is asked only when something must be known of a GPU, because a process that has
called it can no longer fork workers that use it. Answers are kept for one process, not for its
children.
"""

from __future__ import annotations

import os
import threading
from functools import lru_cache
from typing import NamedTuple

CPU_KIND, CUDA_KINDS = 1, (2, 13)
"""DLPack's device types: the host, and memory of CUDA, managed or not."""
_HOST_KINDS = (CPU_KIND, 3)
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR (cuda.h)."""


class NoDriverError(Exception):
    """There is no usable CUDA driver; the text says why."""


class Device(NamedTuple):
    """Something that kernels run on."""

    kind: str
    """ "cpu" or "cuda"."""
    ordinal: int
    name: str
    arch: str
    """ "cpu", or the compute capability as nvcc spells it: "sm_90"."""
    driver: int = 0
    """The CUDA version that the driver supports, as it says it: 13000 is 13.0."""

    def __str__(self) -> str:
        return (
            self.name if self.kind == "cpu" else f"cuda:{self.ordinal} ({self.name}, {self.arch})"
        )

    def fingerprint(self, script: str) -> dict[str, str]:
        """What a dispatch table must have been measured with, field by field."""
        return {"script": script, "device": self.name, "arch": self.arch}


@lru_cache(maxsize=1)
def cpu() -> Device:
    """The host."""
    return Device("cpu", 0, _cpu_name(), "cpu")


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, colon, value = line.partition(":")
                if colon and name.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return f"{os.uname().machine} cpu"


def kind_of(dlpack: tuple[int, int]) -> str | None:
    """ "cpu" or "cuda" for what `__dlpack_device__` says; None for anything else."""
    kind = int(dlpack[0])
    return "cpu" if kind in _HOST_KINDS else "cuda" if kind in CUDA_KINDS else None


def may_have_cuda() -> bool:
    """Whether there could be a CUDA device, found out without the driver."""
    try:
        names = os.listdir("/dev")
    except OSError:
        return False
    return any(n == "dxg" or (n.startswith("nvidia") and n[6:].isdigit()) for n in names)


_known: dict[tuple[int, int], Device] = {}
_lock = threading.Lock()


def cuda(index: int) -> Device:
    """A GPU by its number. Raises `NoDriverError`."""
    key = (os.getpid(), index)
    with _lock:
        if key not in _known:
            _known[key] = _ask(index)
        return _known[key]


def is_only() -> bool:
    """Whether cuda:0 is the only GPU."""
    try:
        cuda(1)
    except NoDriverError:
        return True
    return False


def _ask(index: int) -> Device:
    import ctypes

    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NoDriverError(f"no CUDA driver: {error}") from None
    version, device, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    major, minor, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    _check(driver, "cuInit", 0)
    _check(driver, "cuDriverGetVersion", ctypes.byref(version))
    _check(driver, "cuDeviceGetCount", ctypes.byref(count))
    if not 0 <= index < count.value:
        raise NoDriverError(f"there is no cuda:{index}: the driver knows {count.value} devices")
    _check(driver, "cuDeviceGet", ctypes.byref(device), index)
    _check(driver, "cuDeviceGetName", name, len(name), device)
    for number, attribute in ((major, _CAPABILITY_MAJOR), (minor, _CAPABILITY_MINOR)):
        _check(driver, "cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
    arch = f"sm_{major.value * 10 + minor.value}"
    return Device("cuda", index, name.value.decode(errors="replace"), arch, version.value)


def _check(driver: object, function: str, *arguments: object) -> None:
    status = getattr(driver, function)(*arguments)
    if status:
        raise NoDriverError(f"{function} failed with CUDA error {status}")


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _known.clear()


os.register_at_fork(after_in_child=_after_fork)
