"""A GPU through the driver alone (ctypes on libcuda.so.1): buffers, and time by its own events.

Launch latency is hidden: a small kernel of ours keeps the device busy while the host queues what is
to be timed. Whether that held is seen from the first event, which must not have happened when the
last launch was queued; else the delay is doubled and the sample taken anew. Cold samples follow a
fill of twice the L2 cache, at least 64 MB.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tilusbuild.tune.bench.library import LaunchError
from tilusbuild.tune.bench.nvml import Nvml
from tilusbuild.tune.bench.timed import Timed, launches_for

_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _L2_BYTES = 75, 76, 38
"""CU_DEVICE_ATTRIBUTE_… of cuda.h."""

_SPAN = 200e-6
"""Seconds of kernel time in a sample: events tell about half a microsecond."""
_MOST_COLD, _MOST_WARM = 8, 100
_DELAY = 30_000
"""Nanoseconds of delay for each operation that is queued: several times what queueing costs."""
_LONGEST = 20_000_000
_TRIES = 4
_LEAST_FLUSH = 64 << 20

SPIN = b"""\
.version 6.4
.target sm_70
.address_size 64
.visible .entry tilusbuild_spin(.param .u64 nanoseconds)
{
  .reg .pred %again;
  .reg .b64 %limit, %start, %now, %passed;
  ld.param.u64 %limit, [nanoseconds];
  mov.u64 %start, %globaltimer;
wait:
  mov.u64 %now, %globaltimer;
  sub.u64 %passed, %now, %start;
  setp.lt.u64 %again, %passed, %limit;
  @%again bra wait;
  ret;
}
\0"""
"""PTX that any driver since CUDA 10.2 compiles for any GPU since Volta."""


class DriverError(Exception):
    """The driver refuses; the text names the function and the error."""


class Cuda:
    """A GPU, by its number among those that the process sees. Raises `DriverError`."""

    def __init__(self, index: int) -> None:
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError(f"no CUDA driver: {error}") from None
        self._index = index
        self._do("cuInit", 0)
        count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        self._do("cuDeviceGetCount", ctypes.byref(count))
        if not 0 <= index < count.value:
            raise DriverError(f"there is no cuda:{index}: the driver knows {count.value} devices")
        self._do("cuDeviceGet", ctypes.byref(device), index)
        self._device = device.value
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._do("cuCtxSetCurrent", context)
        stream = ctypes.c_void_p()
        self._do("cuStreamCreate", ctypes.byref(stream), 1)  # CU_STREAM_NON_BLOCKING
        self.stream = stream.value or 0
        self._uuid = self._read_uuid()
        self._nvml = Nvml(self._uuid)
        self._spin = self._load_spin()
        self._flush: tuple[int, int] | None = None
        self._events: list[ctypes.c_void_p] = []

    def allocate(self, size: int) -> int:
        """Device memory, never given back: a worker serves one case."""
        address = ctypes.c_uint64()
        self._do("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def write(self, address: int, data: bytes) -> None:
        self._do("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def read(self, address: int, size: int) -> bytes:
        into = ctypes.create_string_buffer(size)
        self._do("cuMemcpyDtoH_v2", into, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return into.raw

    def copy(self, to: int, source: int, size: int) -> None:
        """In the order of the stream."""
        self._do(
            "cuMemcpyDtoDAsync_v2",
            ctypes.c_uint64(to),
            ctypes.c_uint64(source),
            ctypes.c_size_t(size),
            ctypes.c_void_p(self.stream),
        )

    def finish(self) -> None:
        """Wait. Raises `LaunchError` for what went wrong since the last wait."""
        try:
            self._do("cuStreamSynchronize", ctypes.c_void_p(self.stream))
        except DriverError as error:
            raise LaunchError(str(error)) from None

    def throttled(self) -> str | None:
        """Why the device runs slower than it could; None when it does not, or nothing tells."""
        return self._nvml.throttled()

    def describe(self) -> dict[str, str | int]:
        """What a fingerprint is made of."""
        name, version = ctypes.create_string_buffer(256), ctypes.c_int()
        self._do("cuDeviceGetName", name, len(name), self._device)
        self._do("cuDriverGetVersion", ctypes.byref(version))
        major, minor = self._attribute(_CAPABILITY_MAJOR), self._attribute(_CAPABILITY_MINOR)
        return {
            "kind": "cuda",
            "name": name.value.decode(errors="replace"),
            "arch": f"sm_{major * 10 + minor}",
            "id": self._uuid,
            "driver": version.value,
        }

    def time(self, call: Callable[[], None], *, cold: bool) -> Timed:
        """Raises `LaunchError`."""
        estimate, _ = self._timed(call, 1, cold=False, delay=0)
        launches = launches_for(estimate, _SPAN, _MOST_COLD if cold else _MOST_WARM)
        delay = _DELAY * (2 + launches * (3 if cold else 1))
        for _ in range(_TRIES):
            seconds, hidden = self._timed(call, launches, cold=cold, delay=min(delay, _LONGEST))
            if hidden:
                break
            delay *= 2
        return Timed(seconds, launches, hidden)

    def _timed(
        self, call: Callable[[], None], launches: int, *, cold: bool, delay: int
    ) -> tuple[float, bool]:
        """The mean seconds of a launch, and whether the host was always ahead of the device."""
        pairs = launches if cold else 1
        events = self._some_events(2 * pairs)
        try:
            if delay and self._spin is not None:
                self._launch_spin(delay)
            for pair in range(pairs):
                if cold:
                    self._evict()
                self._record(events[2 * pair])
                for _ in range(1 if cold else launches):
                    call()
                self._record(events[2 * pair + 1])
            hidden = self._driver.cuEventQuery(events[0]) == _NOT_READY
            self.finish()
            total = sum(self._elapsed(*events[2 * i : 2 * i + 2]) for i in range(pairs))
        except DriverError as error:
            raise LaunchError(str(error)) from None
        return total / launches, hidden

    def _evict(self) -> None:
        if self._flush is None:
            size = max(2 * self._attribute(_L2_BYTES), _LEAST_FLUSH)
            self._flush = self.allocate(size), size
        address, size = self._flush
        self._do(
            "cuMemsetD8Async",
            ctypes.c_uint64(address),
            ctypes.c_ubyte(1),
            ctypes.c_size_t(size),
            ctypes.c_void_p(self.stream),
        )

    def _some_events(self, count: int) -> list[ctypes.c_void_p]:
        while len(self._events) < count:
            event = ctypes.c_void_p()
            self._do("cuEventCreate", ctypes.byref(event), 0)
            self._events.append(event)
        return self._events[:count]

    def _record(self, event: ctypes.c_void_p) -> None:
        self._do("cuEventRecord", event, ctypes.c_void_p(self.stream))

    def _elapsed(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        milliseconds = ctypes.c_float()
        self._do("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value / 1e3

    def _load_spin(self) -> ctypes.c_void_p | None:
        """None where the driver does not compile PTX; then latency is hidden by the fill alone."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        try:
            self._do("cuModuleLoadData", ctypes.byref(module), SPIN)
            self._do("cuModuleGetFunction", ctypes.byref(function), module, b"tilusbuild_spin")
        except DriverError:
            return None
        return function

    def _launch_spin(self, nanoseconds: int) -> None:
        value = ctypes.c_uint64(nanoseconds)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        one = [ctypes.c_uint(1)] * 6
        nothing = ctypes.c_uint(0)
        stream = ctypes.c_void_p(self.stream)
        self._do("cuLaunchKernel", self._spin, *one, nothing, stream, parameters, None)

    def _attribute(self, which: int) -> int:
        value = ctypes.c_int()
        self._do("cuDeviceGetAttribute", ctypes.byref(value), which, self._device)
        return value.value

    def _read_uuid(self) -> str:
        """As nvidia-smi writes it."""
        raw = ctypes.create_string_buffer(16)
        self._do("cuDeviceGetUuid_v2", raw, self._device)
        text = raw.raw.hex()
        parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
        return "GPU-" + "-".join(parts)

    def _do(self, function: str, *arguments: Any) -> None:
        status = getattr(self._driver, function)(*arguments)
        if status:
            name = ctypes.c_char_p()
            self._driver.cuGetErrorName(status, ctypes.byref(name))
            text = (name.value or str(status).encode()).decode(errors="replace")
            raise DriverError(f"{function}: {text}")
