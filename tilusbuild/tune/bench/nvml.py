"""What NVML says of a GPU while it is timed: whether heat or power makes it slower than it is.

NVML comes with the driver (libnvidia-ml.so.1). Where it is missing, or does not know the device,
nothing is said and nothing is dropped.
"""

from __future__ import annotations

import ctypes

_REASONS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""nvmlClocksEventReason… of nvml.h. The power cap (0x04) is no fault: large kernels live at it."""


class Nvml:
    """A GPU by its UUID."""

    def __init__(self, uuid: str) -> None:
        self._library: ctypes.CDLL | None = None
        self._handle = ctypes.c_void_p()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2():
                return
            name, handle = uuid.encode(), ctypes.byref(self._handle)
            if library.nvmlDeviceGetHandleByUUID(name, handle) == 0:
                self._library = library
        except (OSError, AttributeError):
            return

    def throttled(self) -> str | None:
        """The reasons in words, or None."""
        if self._library is None:
            return None
        reasons = ctypes.c_ulonglong()
        try:
            status = self._library.nvmlDeviceGetCurrentClocksThrottleReasons(
                self._handle, ctypes.byref(reasons)
            )
        except AttributeError:
            return None
        found = [text for bit, text in _REASONS.items() if reasons.value & bit]
        return ", ".join(found) if found and status == 0 else None
