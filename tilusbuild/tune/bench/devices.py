"""The devices that a worker measures on, processor and GPU, and launches bound to their arguments.

`launch`, the plain C function of a library, takes the arguments of the kernel in their order,
dimensions included, and a stream; it returns 0, or anything else and then `launch_error()` has the
reason (docs/abi.md). The processor's time is the monotonic clock's around calls. A GPU's is that of
its own events, through the driver alone (ctypes on libcuda.so.1), with launch latency hidden: a
small kernel of ours keeps the device busy while the host queues what is to be timed. Whether that
held is seen from the first event, which must not have happened when the last launch was queued;
else the delay is doubled and the sample repeated. The launches of a warm sample are one CUDA graph:
one by one, each would begin later than the short kernel before it ends. Cold samples follow a write
of as much memory as the caches hold: on a GPU twice the L2 cache, at least 64 MB. Price: a GPU that
heat slows down is measured as it is if waiting does not help (`bench.py`); all programs are alike
slow then, as rounds go through them there and back.
"""

from __future__ import annotations

import ctypes
import glob
import math
import mmap
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from tilusbuild.runtime.cuda_driver import L2_CACHE_SIZE, NOT_READY, CudaDriver
from tilusbuild.runtime.dtypes import DTYPES
from tilusbuild.runtime.errors import DriverError
from tilusbuild.runtime.regular import try_read_text
from tilusbuild.tune.bench.monitor import GpuMonitor
from tilusbuild.tune.bench.work import WORKSPACE, CaseArgument

_C_TYPES = {"bool": ctypes.c_bool, "f32": ctypes.c_float, "f64": ctypes.c_double}


class LaunchError(Exception):
    """A launch failed; the text is the library's own, or the driver's."""


class LaunchRefusedError(LaunchError):
    """The library cannot be opened, or refused the call: nothing ran, nothing is harmed."""


def find_c_type(dtype: str, is_tensor: bool) -> Any:
    """Return the ctypes type that an argument is passed to C as; a struct by its address."""
    if is_tensor or dtype not in DTYPES:
        return ctypes.c_char_p if dtype.startswith("struct") else ctypes.c_void_p
    return _C_TYPES.get(dtype) or getattr(ctypes, f"c_{DTYPES[dtype].numpy}")


class BoundLaunch:
    """A library's `launch` with all of its arguments; it is called without any."""

    def __init__(
        self,
        path: str,
        arguments: Sequence[CaseArgument],
        addresses: Sequence[int],
        stream: int,
        allocate_workspace: Callable[[str, int], int],
    ) -> None:
        """`allocate_workspace` returns the address of a workspace, of its name and bytes."""
        types = [find_c_type(argument.dtype, argument.shape is not None) for argument in arguments]
        try:
            library = ctypes.CDLL(path)
            self._launch, self._error = library.launch, library.launch_error
            self._launch.restype, self._error.restype = ctypes.c_int, ctypes.c_char_p
            self._launch.argtypes = [*types, ctypes.c_void_p]
        except (OSError, AttributeError) as error:
            raise LaunchRefusedError(f"the library cannot be opened: {error}") from None
        # The values are converted here, once: else each call would be timed with the conversion.
        values = []
        for kind, argument, address in zip(types, arguments, addresses, strict=True):
            value: Any = address if argument.shape is not None else argument.value
            # A struct is its bytes, which `case.json` has as hexadecimal digits.
            values.append(kind(bytes.fromhex(value) if isinstance(value, str) else value))
        workspaces = [i for i, argument in enumerate(arguments) if argument.dtype == WORKSPACE]
        if workspaces:
            sizes = (ctypes.c_int64 * len(workspaces))()
            library.workspace.argtypes = [*types, ctypes.c_void_p]
            self._call_function(library.workspace, *values, sizes)
            for i, size in zip(workspaces, sizes, strict=True):
                values[i] = ctypes.c_void_p(allocate_workspace(arguments[i].name, size))
        self._values = (*values, ctypes.c_void_p(stream))  # each call would copy a list

    def __call__(self) -> None:
        """Launch. Raises `LaunchRefusedError` when the library reports an error."""
        self._call_function(self._launch, *self._values)

    def _call_function(self, function: Callable[..., int], *values: Any) -> None:
        if function(*values):
            text: bytes = self._error() or b"the launch failed, and gives no reason"
            raise LaunchRefusedError(text.decode(errors="replace"))


def count_launches(estimate: float, span: float, limit: int) -> int:
    """Return how many launches of `estimate` seconds take `span` seconds: 1 to `limit`."""
    if estimate <= 0:
        return limit
    return max(1, min(limit, math.ceil(span / estimate)))


# Seconds that a warm sample lasts at least: a hundred times what the clock and the call cost.
_CPU_SPAN = 50e-6
_MAX_CPU_CALLS = 1000
_MIN_CPU_FLUSH, _MAX_CPU_FLUSH = 64 << 20, 512 << 20
# Bytes of forbidden addresses on both sides of a tensor's pages: addresses cost no memory.
_FENCE = 64 << 20
# Of Linux' mman.h; `mmap` has the first from Python 3.13 on only.
_MAP_NORESERVE, _PROT_NONE = 0x4000, 0


class HostDevice:
    """The processor as a device."""

    stream = 0
    guard = mmap.PAGESIZE

    def __init__(self) -> None:
        self._mappings: list[mmap.mmap] = []
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._flush: mmap.mmap | None = None

    def allocate_memory(self, size: int) -> int:
        """Allocate whole pages, zeroed. Before and after them is memory that ends the process when
        it is touched. Raises `OSError`."""
        # Never given back: a worker serves one case.
        page_bytes = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        mapping = mmap.mmap(-1, _FENCE + page_bytes + _FENCE, flags=flags)
        self._mappings.append(mapping)
        base = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        # A write far beside a tensor ends the worker, and not another tensor.
        for fence in (base, base + _FENCE + page_bytes):
            if self._libc.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(_FENCE), _PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect")
        return base + _FENCE

    def write_memory(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def read_memory(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    def copy_memory(self, to: int, source: int, size: int) -> None:
        ctypes.memmove(to, source, size)

    def wait_for_calls(self) -> None:
        """Do nothing: a call on the cpu has ended when it returns."""

    def describe_device(self) -> dict[str, str | int]:
        """Return the facts that a fingerprint is made of."""
        from tilusbuild.runtime.device import get_cpu

        return {"kind": "cpu", "name": get_cpu().name, "arch": "cpu", "id": "cpu", "driver": 0}

    def time_call(
        self,
        call: Callable[[], None],
        *,
        cold: bool,
        restore: Callable[[], None] | None = None,
    ) -> tuple[float, str]:
        """Return the mean seconds of a call, and "": no disturbance is known. `restore` is
        called before each call, outside of the time."""
        # The first call also faults in pages and warms the branch predictor.
        estimate = _time_one_call(call, restore)
        if cold:
            # One call: the second would find what the first has loaded.
            if restore is not None:
                restore()
            self._evict_caches()
            return _time_one_call(call), ""
        launches = count_launches(estimate, _CPU_SPAN, _MAX_CPU_CALLS)
        if restore is not None:
            return sum(_time_one_call(call, restore) for _ in range(launches)) / launches, ""
        start = time.perf_counter()
        for _ in range(launches):
            call()
        return (time.perf_counter() - start) / launches, ""

    def _evict_caches(self) -> None:
        """Write as much memory as the largest cache holds."""
        if self._flush is None:
            # The size is 0 where Linux does not report it, and can be very large on servers.
            size = min(max(find_largest_cache(), _MIN_CPU_FLUSH), _MAX_CPU_FLUSH)
            self._flush = mmap.mmap(-1, size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._flush))
        ctypes.memset(address, 1, len(self._flush))


def _time_one_call(call: Callable[[], None], restore: Callable[[], None] | None = None) -> float:
    """Return the seconds of one call, after `restore`."""
    if restore is not None:
        restore()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def find_largest_cache() -> int:
    """Return the size in bytes of the first processor's largest cache; 0 if Linux reports none."""
    sizes = [0]
    for path in glob.glob("/sys/devices/system/cpu/cpu0/cache/index*/size"):
        with suppress(ValueError):
            sizes.append(int((try_read_text(path) or "").strip().removesuffix("K")) << 10)
    return max(sizes)


# Seconds of kernel time in a sample: events resolve about half a microsecond.
_GPU_SPAN = 200e-6
_MAX_COLD, _MAX_WARM = 8, 100
# Nanoseconds of delay for each operation that is queued: several times what queueing costs.
_DELAY_NS = 30_000
_MAX_DELAY_NS = 20_000_000
_TRIES = 4
# Of cuda.h: what else a launcher calls is allowed while its stream is captured.
_CAPTURE_RELAXED = 2
_MIN_GPU_FLUSH = 64 << 20

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


class CudaDevice:
    """A GPU, by its number among those that the process can use. Raises `DriverError`."""

    guard = 1 << 20

    def __init__(self, index: int) -> None:
        self._driver = CudaDriver()
        self._call_driver = self._driver.call_function
        self._call_driver("cuInit", 0)
        context = ctypes.c_void_p()
        self._device = self._driver.get_device(index)
        self._uuid = self._read_uuid()
        self._monitor = GpuMonitor(self._uuid)
        # The primary context is the one that a library's runtime calls use, too.
        self._call_driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call_driver("cuCtxSetCurrent", context)
        self._monitor.note_context()
        stream = ctypes.c_void_p()
        self._call_driver("cuStreamCreate", ctypes.byref(stream), 1)  # CU_STREAM_NON_BLOCKING
        self.stream = stream.value or 0
        self._spin = self._load_spin()
        self._flush: tuple[int, int] | None = None
        self._events: list[ctypes.c_void_p] = []

    def allocate_memory(self, size: int) -> int:
        """Allocate device memory."""
        # Never given back: a worker serves one case.
        address = ctypes.c_uint64()
        self._call_driver("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def write_memory(self, address: int, data: bytes) -> None:
        self._call_driver(
            "cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data))
        )

    def read_memory(self, address: int, size: int) -> bytes | bytearray:
        content = bytearray(size)  # bytes would be made of it by one more copy
        buffer = (ctypes.c_char * size).from_buffer(content)
        source, count = ctypes.c_uint64(address), ctypes.c_size_t(size)
        self._call_driver("cuMemcpyDtoH_v2", buffer, source, count)
        return content

    def copy_memory(self, to: int, source: int, size: int) -> None:
        """Copy on the device, in the order of the stream."""
        self._call_driver(
            "cuMemcpyDtoDAsync_v2",
            ctypes.c_uint64(to),
            ctypes.c_uint64(source),
            ctypes.c_size_t(size),
            ctypes.c_void_p(self.stream),
        )

    def wait_for_calls(self) -> None:
        """Wait for the stream. Raises `LaunchError` for an error since the last wait."""
        try:
            self._call_driver("cuStreamSynchronize", ctypes.c_void_p(self.stream))
        except DriverError as error:
            raise LaunchError(str(error)) from None

    def describe_device(self) -> dict[str, str | int]:
        """Return the facts that a fingerprint is made of."""
        return {
            "kind": "cuda",
            "name": self._driver.get_name(self._device),
            "arch": self._driver.get_arch(self._device),
            "id": f"GPU-{self._uuid}",  # as nvidia-smi writes it
            "driver": self._driver.get_version(),
            "count": self._driver.count_devices(),
            "unwatched": self._monitor.problem,
        }

    def time_call(
        self,
        call: Callable[[], None],
        *,
        cold: bool,
        restore: Callable[[], None] | None = None,
    ) -> tuple[float, str]:
        """Return the mean seconds of a launch, and why they may be too many: the launches were not
        queued before the device reached the first, or something disturbed the device. `restore` is
        queued before each launch, outside of the time. Raises `LaunchError`."""
        # What is queued before each launch, outside of its time.
        steps = [*([restore] if restore else []), *([self._evict_caches] if cold else [])]
        # With a delay: the latency of a launch can be many times a short kernel.
        estimate, _ = self._time_launches(call, 1, steps if restore else [], delay=3 * _DELAY_NS)
        launches = count_launches(estimate, _GPU_SPAN, _MAX_COLD if steps else _MAX_WARM)
        # The time of a graph has all of it, steps included. One launch needs no graph.
        graph = self._capture_launches(call, launches) if launches > 1 and not steps else None
        if graph is None:
            seconds, is_hidden = self._time_behind_delay(call, launches, steps)
        else:
            seconds, is_hidden = self._time_behind_delay(partial(self._launch_graph, graph), 1, [])
            seconds /= launches
            self._call_driver("cuGraphExecDestroy", graph)
        note = self._monitor.find_disturbance()
        return seconds, note if is_hidden else "launch latency shows"

    def _capture_launches(self, call: Callable[[], None], launches: int) -> ctypes.c_void_p | None:
        """Return an executable CUDA graph of these launches, one after the other; None for a call
        that cannot be captured, because it waits for the device or reads the host's memory."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        stream = ctypes.c_void_p(self.stream)
        try:
            self._call_driver("cuStreamBeginCapture_v2", stream, _CAPTURE_RELAXED)
            try:
                for _ in range(launches):
                    call()
            finally:
                self._call_driver("cuStreamEndCapture", stream, ctypes.byref(graph))
            self._call_driver(
                "cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0)
            )
            # Else the first launch of the graph would do this, in the time.
            self._call_driver("cuGraphUpload", executable, stream)
        except (LaunchRefusedError, DriverError):
            if executable.value:
                self._call_driver("cuGraphExecDestroy", executable)
            return None
        finally:
            if graph.value:
                self._call_driver("cuGraphDestroy", graph)
        return executable

    def _launch_graph(self, graph: ctypes.c_void_p) -> None:
        self._call_driver("cuGraphLaunch", graph, ctypes.c_void_p(self.stream))

    def _time_behind_delay(
        self, call: Callable[[], None], launches: int, steps: Sequence[Callable[[], None]]
    ) -> tuple[float, bool]:
        """Return the result of `_time_launches` after a delay that lets the host stay ahead, if
        one of `_TRIES` does. Raises `LaunchError`."""
        # Two events and the launches are queued; a launch with steps has its own events.
        delay = _DELAY_NS * (2 + launches * (2 + len(steps) if steps else 1))
        for _ in range(_TRIES):
            seconds, is_hidden = self._time_launches(
                call, launches, steps, delay=min(delay, _MAX_DELAY_NS)
            )
            if is_hidden:
                break
            # The host was late: hold the device longer before it begins.
            delay *= 2
        return seconds, is_hidden

    def _time_launches(
        self,
        call: Callable[[], None],
        launches: int,
        steps: Sequence[Callable[[], None]],
        *,
        delay: int,
    ) -> tuple[float, bool]:
        """Return the mean seconds of these launches after a delay in nanoseconds, and whether
        the host stayed ahead of the device. Raises `LaunchError`.

        A pair of events is around all launches; with `steps` before them they have a pair each.
        """
        pair_count = launches if steps else 1
        events = self._get_events(2 * pair_count)
        try:
            if delay and self._spin is not None:
                self._launch_spin(delay)
            for pair in range(pair_count):
                for step in steps:
                    step()
                self._record_event(events[2 * pair])
                for _ in range(1 if steps else launches):
                    call()
                self._record_event(events[2 * pair + 1])
            # Asked before the wait: the first event is still ahead only if the host queued
            # everything in time.
            is_hidden = self._driver.library.cuEventQuery(events[0]) == NOT_READY
            self.wait_for_calls()
            total_seconds = sum(
                self._read_elapsed(*events[2 * pair : 2 * pair + 2]) for pair in range(pair_count)
            )
        except DriverError as error:
            raise LaunchError(str(error)) from None
        return total_seconds / launches, is_hidden

    def _evict_caches(self) -> None:
        """Queue a write of twice the L2 cache."""
        if self._flush is None:
            size = max(2 * self._driver.get_attribute(L2_CACHE_SIZE, self._device), _MIN_GPU_FLUSH)
            self._flush = self.allocate_memory(size), size
        address, size = self._flush
        self._call_driver(
            "cuMemsetD8Async",
            ctypes.c_uint64(address),
            ctypes.c_ubyte(1),
            ctypes.c_size_t(size),
            ctypes.c_void_p(self.stream),
        )

    def _get_events(self, count: int) -> list[ctypes.c_void_p]:
        """Return this many events, which are created once."""
        while len(self._events) < count:
            event = ctypes.c_void_p()
            self._call_driver("cuEventCreate", ctypes.byref(event), 0)
            self._events.append(event)
        return self._events[:count]

    def _record_event(self, event: ctypes.c_void_p) -> None:
        self._call_driver("cuEventRecord", event, ctypes.c_void_p(self.stream))

    def _read_elapsed(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        milliseconds = ctypes.c_float()
        self._call_driver("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value / 1e3

    def _load_spin(self) -> ctypes.c_void_p | None:
        """Return the delay kernel; None if the driver does not compile PTX."""
        # Without it only the fill of the caches hides the latency of a launch.
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        try:
            self._call_driver("cuModuleLoadData", ctypes.byref(module), SPIN)
            self._call_driver(
                "cuModuleGetFunction", ctypes.byref(function), module, b"tilusbuild_spin"
            )
        except DriverError:
            return None
        return function

    def _launch_spin(self, nanoseconds: int) -> None:
        """Queue the delay kernel: one thread that waits."""
        # The array of parameters has their addresses: `value` must live until the launch returns.
        value = ctypes.c_uint64(nanoseconds)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        # Grid and block: one thread.
        sizes = [ctypes.c_uint(1)] * 6
        nothing = ctypes.c_uint(0)
        stream = ctypes.c_void_p(self.stream)
        self._call_driver("cuLaunchKernel", self._spin, *sizes, nothing, stream, parameters, None)

    def _read_uuid(self) -> str:
        """Return the UUID of the GPU, or of the instance of one (MIG)."""
        raw = ctypes.create_string_buffer(16)
        self._call_driver("cuDeviceGetUuid_v2", raw, self._device)
        return str(uuid.UUID(bytes=raw.raw))
