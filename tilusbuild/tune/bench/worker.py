"""The process that runs kernels: it does as it is asked, and may die of any of it.

It is a resident process (`process/resident.py`): each request is a JSON object, and so is its
answer. It holds one device and one case. Whatever a program does to this process, only
the answer is lost: who asked sees how it ended.

Every tensor of the case lies between two guards of known bytes. A call is right when the outputs
are right, and the inputs and the guards are as they were: a kernel that writes beside its tensors
is wrong even where the numbers come out.
"""

from __future__ import annotations

import hashlib
import math
import os
import resource
import time
from functools import partial
from typing import Any, TypeAlias

from tilusbuild.process.resident import serve_requests
from tilusbuild.runtime.errors import DriverError
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.files import write_output
from tilusbuild.tune.bench.devices import (
    BoundLaunch,
    CudaDevice,
    HostDevice,
    LaunchError,
    LaunchRefusedError,
)
from tilusbuild.tune.bench.elements import compare_outputs, make_noise
from tilusbuild.tune.bench.work import WORKSPACE, Case, CaseArgument, read_case

Device: TypeAlias = HostDevice | CudaDevice


class Worker:
    """The state of a worker: its device, the tensors of one case, and the opened libraries."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._case: Case | None = None
        self._buffers: Buffers | None = None
        self._bound: dict[str, BoundLaunch] = {}
        self._is_settled = False

    def answer_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a request: "describe", "case", "check" or "time". An error of the
        device, of a file or of a program is a reply, too."""
        try:
            match request["do"]:
                case "describe":
                    return {"status": "ok", **self._device.describe_device()}
                case "case":
                    self._load_case(request["folder"])
                    return {"status": "ok"}
                case "check":
                    return self._check_program(
                        request["library"], request.get("soak", 0.0), request.get("outputs")
                    )
                case "time":
                    return self._time_program(request["library"], request["warmup"])
                case unknown:
                    return {"status": "broken", "why": f"no request: {unknown}"}
        except LaunchRefusedError as error:
            return {"status": "launch error", "why": str(error), "harmless": True}
        except LaunchError as error:
            return {"status": "launch error", "why": str(error)}
        except (OSError, ValueError, MemoryError, DriverError) as error:
            return {"status": "broken", "why": f"{type(error).__name__}: {error}"}

    def _load_case(self, directory: str) -> None:
        """Load a case onto the device, in place of the last one. Raises `OSError` and
        `ValueError`."""
        self._case = read_case(directory)
        self._buffers = Buffers(self._device, self._case, directory)
        self._bound.clear()

    def _load_program(self, library: str) -> tuple[BoundLaunch, Buffers, Case]:
        """Return a library's launch with the case's arguments, and the case. The launch is kept
        until the next case. Raises `LaunchError`, and `ValueError` without a case."""
        if self._case is None or self._buffers is None:
            raise ValueError("no case is given yet")
        # Workspaces are those of the program that was bound last.
        if library not in self._bound or self._buffers.has_workspaces:
            self._bound[library] = BoundLaunch(
                library,
                self._case.arguments,
                self._buffers.addresses,
                self._device.stream,
                self._buffers.take_workspace,
            )
        return self._bound[library], self._buffers, self._case

    def _check_program(self, library: str, soak: float, outputs: str | None) -> dict[str, Any]:
        """Call a program and compare its outputs; call it again for `soak` seconds, at most
        `_SOAK_CALLS` times. The calls of the first half, and the last one, are compared, too. With
        the directory `outputs`, the different outputs are written there, and the reply has their
        number."""
        launch, buffers, _ = self._load_program(library)
        end = time.monotonic() + soak
        calls = 0
        written: set[bytes] = set()
        try:
            # Inputs and guards are written again: another program may have damaged them.
            buffers.reset_all()
            # A race between threads may show in one call of many, so there are many calls.
            while True:
                launch()
                self._device.wait_for_calls()
                calls += 1
                now = time.monotonic()
                is_last = calls >= _SOAK_CALLS or now >= end
                # In the second half of the time nothing is compared, to make more calls.
                if is_last or calls == 1 or now < end - soak / 2:
                    error = buffers.check_tensors()
                    if outputs is not None:
                        buffers.write_outputs(outputs, written)
                    if is_last:
                        return {"status": "ok", "error": error, "outputs": len(written)}
                buffers.reset_outputs()
        except WrongResultError as wrong:
            why = f"{wrong} after {calls} calls" if calls > 1 else str(wrong)
            return {"status": "incorrect", "why": why, "error": wrong.error}

    def _time_program(self, library: str, warmup: int) -> dict[str, Any]:
        """Return the reply with one sample. A program that wrote into a guard is incorrect."""
        launch, buffers, case = self._load_program(library)
        buffers.reset_outputs()
        restore = partial(buffers.reset_outputs, restored=True) if buffers.has_resets else None
        for _ in range(warmup):
            if restore is not None:
                restore()
            launch()
        self._device.wait_for_calls()
        if not self._is_settled:
            # The first sample of a process is none: it touches the memory that empties the caches,
            # and the clocks rise.
            self._device.time_call(launch, cold=case.cold, restore=restore)
            self._is_settled = True
        seconds, note = self._device.time_call(launch, cold=case.cold, restore=restore)
        # The outputs were compared by the check; a wild write may come with any call.
        try:
            buffers.check_guards()
        except WrongResultError as wrong:
            return {"status": "incorrect", "why": f"{wrong} while it was timed"}
        return {"status": "ok", "seconds": seconds, "note": note}


def main(kind: str, index: int, core: int | None, address: str) -> None:
    """Be the worker for a device; on one core of the processor unless `core` is None."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # programs crash here by the dozen
    try:
        if core is not None:
            os.sched_setaffinity(0, {core})
        worker = Worker(HostDevice() if kind == "cpu" else CudaDevice(index))
    except (DriverError, OSError) as error:
        # Answered rather than raised: the one who asks would take an exit for a crash.
        broken = {"status": "broken", "why": str(error)}
        serve_requests(address, lambda _: broken)
    else:
        serve_requests(address, worker.answer_request)


_GUARD_BYTE = b"\xa5"
_PAGE_SIZE = 4096
# Calls that the check of a winner makes at most.
_SOAK_CALLS = 64
# Different outputs of these calls that a function of the project compares at most.
_MAX_OUTPUTS = 8


class WrongResultError(Exception):
    """A call left wrong content. `error` is the largest absolute error of the compared outputs,
    0 if none was compared."""

    def __init__(self, message: str, error: float = 0.0) -> None:
        super().__init__(message)
        self.error = error


class _GuardedTensor:
    """One tensor of a case, between two guards. `content` is the memory from `base` on as it is
    before a call, guards included; `inside` is the tensor's own part of it. `pristine` is the
    address of an output's first content, from which it is written again."""

    __slots__ = ("address", "argument", "base", "content", "expected", "inside", "pristine")

    def __init__(self, argument: CaseArgument, memory: Device, data: bytes) -> None:
        # The end of the tensor and its guard fill whole pages, so that the fence follows at once.
        after = memory.guard + -len(data) % _PAGE_SIZE
        self.argument = argument
        self.content = _GUARD_BYTE * memory.guard + data + _GUARD_BYTE * after
        self.inside = slice(memory.guard, memory.guard + len(data))
        self.base = memory.allocate_memory(len(self.content))
        self.address = self.base + memory.guard
        self.pristine = memory.allocate_memory(max(1, len(data))) if argument.out else self.base
        self.expected: bytes | None = None


class Buffers:
    """The tensors of a case in a device's memory. Raises `OSError` for a missing file."""

    def __init__(self, memory: Device, case: Case, directory: str) -> None:
        self._memory = memory
        self._tensors: dict[str, _GuardedTensor] = {}
        self._right_outputs: dict[bytes, float] = {}
        self._outputs = [argument.name for argument in case.arguments if argument.out]
        self._workspaces: dict[tuple[str, int], _GuardedTensor] = {}
        self.has_workspaces = any(argument.dtype == WORKSPACE for argument in case.arguments)
        for argument in case.arguments:
            if argument.shape is not None:
                self._tensors[argument.name] = self._make_tensor(argument, directory)
        self.addresses = [
            self._tensors[argument.name].address if argument.shape is not None else 0
            for argument in case.arguments
        ]
        self.reset_all()

    def _make_tensor(self, argument: CaseArgument, directory: str) -> _GuardedTensor:
        """Allocate and return a tensor with its first content, its guards and its expected
        content. Raises `OSError`, and `ValueError` for a file of another length."""
        path = os.path.join(directory, argument.name)
        if argument.value is None:
            content = read_bytes(f"{path}.input")
        else:
            content = make_noise(
                argument.dtype, math.prod(argument.shape or ()), str(argument.value)
            )
        if len(content) != argument.bytes:
            raise ValueError(f"{path}.input has {len(content)} bytes, not {argument.bytes}")
        tensor = _GuardedTensor(argument, self._memory, content)
        if argument.want is not None:
            tensor.expected = read_bytes(f"{path}.want")
        return tensor

    def take_workspace(self, name: str, size: int) -> int:
        """Return the address of a workspace of `size` bytes, with guards and noise like an output.
        It is the one that is reset and checked until the next call."""
        key = name, size
        is_new = key not in self._workspaces
        if is_new:
            argument = CaseArgument(name, "u8", (size,), out=True)
            noise = make_noise("u8", size, name)
            self._workspaces[key] = _GuardedTensor(argument, self._memory, noise)
        tensor = self._tensors[name] = self._workspaces[key]
        if is_new:
            self.reset_all()
        return tensor.address

    def reset_all(self) -> None:
        """Write the first content of all tensors and guards."""
        for tensor in self._tensors.values():
            self._memory.write_memory(tensor.base, tensor.content)
            if tensor.argument.out:
                self._memory.write_memory(tensor.pristine, tensor.content[tensor.inside])

    def reset_outputs(self, *, restored: bool = False) -> None:
        """Write the first content of the outputs: noise, or the content that a kernel adds to. With
        `restored`, only of those that are restored before every launch."""
        for tensor in self._tensors.values():
            argument = tensor.argument
            if argument.out and argument.bytes and (argument.reset or not restored):
                self._memory.copy_memory(tensor.address, tensor.pristine, argument.bytes)

    @property
    def has_resets(self) -> bool:
        """Return whether a tensor is restored before every launch."""
        return any(tensor.argument.reset for tensor in self._tensors.values())

    def check_tensors(self) -> float:
        """Compare outputs, inputs and guards after a call; return the largest absolute error.
        Raises `WrongResultError`."""
        largest = 0.0
        for tensor in self._tensors.values():
            content = self._memory.read_memory(tensor.base, len(tensor.content))
            # One comparison is enough for an unchanged input; the rest finds out what is wrong.
            if not tensor.argument.out and content == tensor.content:
                continue
            inside = tensor.inside
            _check_guard_bytes(tensor, content[: inside.start], content[inside.stop :])
            if not tensor.argument.out:
                raise WrongResultError(f"it changed its input {tensor.argument.name}")
            if tensor.expected is not None:
                largest = max(
                    largest, self._compare_output(tensor, bytes(content[inside]), tensor.expected)
                )
        return largest

    def write_outputs(self, directory: str, written: set[bytes]) -> None:
        """Write the outputs to files `NAME.NUMBER.output`, unless their digest is in `written`, or
        `_MAX_OUTPUTS` of them are. Add the digest. Raises `OSError`."""
        contents = {
            name: self._memory.read_memory(tensor.address, tensor.argument.bytes)
            for name, tensor in self._tensors.items()
            if name in self._outputs
        }
        digest = hashlib.sha256(b"".join(contents.values())).digest()
        if digest in written or len(written) == _MAX_OUTPUTS:
            return
        for name, content in contents.items():
            write_output(os.path.join(directory, f"{name}.{len(written)}.output"), content)
        written.add(digest)

    def check_guards(self) -> None:
        """Compare the guards of every tensor. Raises `WrongResultError`."""
        for tensor in self._tensors.values():
            start, end = tensor.inside.start, tensor.inside.stop
            after = self._memory.read_memory(tensor.base + end, len(tensor.content) - end)
            _check_guard_bytes(tensor, self._memory.read_memory(tensor.base, start), after)

    def _compare_output(self, tensor: _GuardedTensor, data: bytes, want: bytes) -> float:
        """Return the largest absolute error of an output. Raises `WrongResultError`."""
        # Most schedules give the very same bits, which are compared once. The digest covers the
        # name, too, as two outputs of a case may have equal bytes and other expected ones.
        argument = tensor.argument
        digest = hashlib.sha256(argument.name.encode() + b"\0" + data).digest()
        if digest in self._right_outputs:
            return self._right_outputs[digest]
        error, mismatch = compare_outputs(argument, data, want)
        if mismatch is not None:
            raise WrongResultError(mismatch, error)
        self._right_outputs[digest] = error
        return error


def _check_guard_bytes(
    tensor: _GuardedTensor, before: bytes | bytearray, after: bytes | bytearray
) -> None:
    """Raise `WrongResultError` if a guard's bytes changed."""
    for side, guard in (("before", before), ("after", after)):
        if guard != _GUARD_BYTE * len(guard):
            raise WrongResultError(f"it wrote {side} the tensor {tensor.argument.name}")
