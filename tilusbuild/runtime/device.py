"""Devices: what a library runs on, and what a dispatch table was measured on.

The CUDA driver is asked only when something must be known of a GPU, because a process that has
called it can no longer fork workers that use it. Answers are kept for one process, not for its
children.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import NamedTuple

from tilusbuild.runtime.errors import DriverError
from tilusbuild.runtime.process import process

CPU_KIND, CUDA_KINDS = 1, (2, 13)
"""DLPack's device types: the host, and memory of CUDA, managed or not."""
_HOST_KINDS = (CPU_KIND, 3)


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
        """Return what a dispatch table must have been measured with, field by field."""
        return {"script": script, "device": self.name, "arch": self.arch}


@lru_cache(maxsize=1)
def cpu() -> Device:
    """Return the host."""
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
    """Return whether there could be a CUDA device, found out without the driver."""
    try:
        names = os.listdir("/dev")
    except OSError:
        return False
    return any(n == "dxg" or (n.startswith("nvidia") and n[6:].isdigit()) for n in names)


def cuda(index: int) -> Device:
    """Return a GPU by its number. Raises `DriverError`."""
    # The process id is part of the key: what the driver said before a fork does not hold after it.
    key = (os.getpid(), index)
    with process.device_lock:
        if key not in process.devices:
            process.devices[key] = _ask(index)
        return process.devices[key]


def is_only() -> bool:
    """Return whether cuda:0 is the only GPU."""
    try:
        cuda(1)
    except DriverError:
        return True
    return False


def _ask(index: int) -> Device:
    # Imported here: ctypes costs milliseconds, and most loads never ask the driver.
    from tilusbuild.runtime.cuda_driver import CudaDriver

    driver = CudaDriver()
    driver.call("cuInit", 0)
    device = driver.device(index)
    return Device("cuda", index, driver.name(device), driver.arch(device), driver.version())
