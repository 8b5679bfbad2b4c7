"""NVML's answer to whether something disturbs a GPU: throttled clocks, or another process.

The processes of this worker are those that NVML lists since the worker's context was made, and not
those with its number: in a container NVML may list the numbers of the host. Clocks that a user has
set, and those of an idle GPU, do not count: they are the same for all samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# By the ends of the names of NVML's constants.
_THROTTLE_CAUSES = {
    "SwPowerCap": "power cap",
    "SwThermalSlowdown": "heat",
    "HwThermalSlowdown": "heat",
    "HwPowerBrakeSlowdown": "power brake",
    "HwSlowdown": "hardware slowdown",
}


class GpuMonitor:
    """Asks NVML about a GPU, or an instance of one (MIG), by its UUID without a prefix. It is made
    before the process has a context there."""

    def __init__(self, uuid: str) -> None:
        self.problem = ""
        """Why NVML does not answer; "" if it does."""
        try:
            import pynvml
        except ImportError:
            self.problem = '`pip install "tilusbuild[nvml]"`'
            return
        self._nvml: Any = pynvml
        with self._note_problem():
            pynvml.nvmlInit()
            self._device, self._gpu = self._find_device(uuid)
            self._earlier_processes = self._list_processes()
            self._list_throttle_causes()

    @contextmanager
    def _note_problem(self) -> Iterator[None]:
        """Set `problem` for an error of NVML in the block."""
        try:
            yield
        except self._nvml.NVMLError as error:
            self.problem = f"NVML: {error}"

    def _find_device(self, uuid: str) -> tuple[Any, Any]:
        """Return the handle that has the processes, and the one that has the clocks."""
        nvml = self._nvml
        try:
            gpu = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except nvml.NVMLError:
            instance = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
            return instance, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance)
        return gpu, gpu

    def note_context(self) -> None:
        """Take the processes that are new for this one, whose context has just been made."""
        if not self.problem:
            with self._note_problem():
                self._own_processes = self._list_processes() - self._earlier_processes

    def find_disturbance(self) -> str:
        """Return what disturbs the GPU now; "" for nothing, or where NVML does not answer."""
        if not self.problem:
            with self._note_problem():
                if causes := self._list_throttle_causes():
                    return f"the GPU's clocks were throttled ({', '.join(causes)})"
                if self._list_processes() - self._own_processes:
                    return "another process was on the GPU"
        return ""

    def _list_throttle_causes(self) -> list[str]:
        nvml = self._nvml
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(self._gpu)
        causes = (
            cause
            for name, cause in _THROTTLE_CAUSES.items()
            if reasons & getattr(nvml, f"nvmlClocksEventReason{name}")
        )
        return [*dict.fromkeys(causes)]

    def _list_processes(self) -> set[int]:
        processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._device)
        return {process.pid for process in processes}
