"""The cpu target: buffers in this process, time by the system's monotonic clock."""

from __future__ import annotations

import ctypes
import glob
import mmap
import time
from collections.abc import Callable
from contextlib import suppress

from tilusbuild.tune.bench.launch import TimedLaunches, launches_for

_SPAN = 50e-6
"""Seconds that a warm sample lasts at least: a hundred times what the clock and the call cost."""
_MAX_LAUNCHES = 1000
_MIN_FLUSH, _MAX_FLUSH = 64 << 20, 512 << 20


class HostDevice:
    """The processor as a device."""

    stream = 0

    def __init__(self) -> None:
        self._kept: list[mmap.mmap] = []
        self._flush: mmap.mmap | None = None

    def allocate(self, size: int) -> int:
        """Whole pages, zeroed, never given back: a worker serves one case."""
        made = mmap.mmap(-1, size)
        self._kept.append(made)
        return ctypes.addressof(ctypes.c_char.from_buffer(made))

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def read(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    def copy(self, to: int, source: int, size: int) -> None:
        ctypes.memmove(to, source, size)

    def finish(self) -> None:
        """A call on the cpu has ended when it returns."""

    def throttled(self) -> str | None:
        """Nothing tells."""
        return None

    def describe(self) -> dict[str, str | int]:
        """Return what a fingerprint is made of."""
        from tilusbuild.runtime.device import cpu

        return {"kind": "cpu", "name": cpu().name, "arch": "cpu", "id": "cpu", "driver": 0}

    def time(self, call: Callable[[], None], *, cold: bool) -> TimedLaunches:
        """Return a cold sample is one call, a warm one as many as the clock needs."""
        start = time.perf_counter()
        call()
        estimate = time.perf_counter() - start
        if cold:
            self._evict()
            start = time.perf_counter()
            call()
            return TimedLaunches(time.perf_counter() - start, 1)
        launches = launches_for(estimate, _SPAN, _MAX_LAUNCHES)
        start = time.perf_counter()
        for _ in range(launches):
            call()
        return TimedLaunches((time.perf_counter() - start) / launches, launches)

    def _evict(self) -> None:
        """Write as much memory as the largest cache holds."""
        if self._flush is None:
            size = min(max(_last_cache(), _MIN_FLUSH), _MAX_FLUSH)
            self._flush = mmap.mmap(-1, size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._flush))
        ctypes.memset(address, 1, len(self._flush))


def _last_cache() -> int:
    """Return bytes of the largest cache of the first processor; 0 where Linux does not say."""
    sizes = [0]
    for path in glob.glob("/sys/devices/system/cpu/cpu0/cache/index*/size"):
        with suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            sizes.append(int(file.read().strip().removesuffix("K")) << 10)
    return max(sizes)
