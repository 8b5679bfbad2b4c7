"""The process that runs kernels: it is told what to do a line at a time, and may die of any of it.

It connects to the socket `socket` in its working directory and answers each request, a JSON object
a line, with one. It holds one device and one case. Whatever a program does to this process, only
the answer is lost: who asked sees how it ended.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from tilusbuild.runtime.errors import DriverError
from tilusbuild.tune.bench.buffers import Buffers, Memory, WrongResultError
from tilusbuild.tune.bench.cuda import CudaDevice
from tilusbuild.tune.bench.host import HostDevice
from tilusbuild.tune.bench.launch import BoundLaunch, LaunchError, LaunchRefusedError
from tilusbuild.tune.bench.work import Case, read_case

SOCKET = "socket"


class Worker:
    """What a worker knows between two requests."""

    def __init__(self, device: HostDevice | CudaDevice) -> None:
        self._device = device
        self._case: Case | None = None
        self._buffers: Buffers | None = None
        self._bound: dict[str, BoundLaunch] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked. Raises nothing that a program can cause."""
        try:
            match request["do"]:
                case "describe":
                    return {"status": "ok", **self._device.describe()}
                case "case":
                    self._take_case(request["folder"])
                    return {"status": "ok"}
                case "check":
                    return self._check(request["library"])
                case "time":
                    return self._time(request["library"], request["warmup"])
                case other:
                    return {"status": "broken", "why": f"no request: {other}"}
        except LaunchRefusedError as error:
            return {"status": "launch error", "why": str(error), "harmless": True}
        except LaunchError as error:
            return {"status": "launch error", "why": str(error)}
        except (OSError, ValueError, MemoryError, DriverError) as error:
            return {"status": "broken", "why": f"{type(error).__name__}: {error}"}

    def _take_case(self, directory: str) -> None:
        memory: Memory = self._device
        self._case = read_case(directory)
        self._buffers = Buffers(memory, self._case, directory)
        self._bound.clear()

    def _program(self, library: str) -> tuple[BoundLaunch, Buffers, Case]:
        if self._case is None or self._buffers is None:
            raise ValueError("no case is given yet")
        if library not in self._bound:
            self._bound[library] = BoundLaunch(
                library, self._case.arguments, self._buffers.addresses, self._device.stream
            )
        return self._bound[library], self._buffers, self._case

    def _check(self, library: str) -> dict[str, Any]:
        launch, buffers, _ = self._program(library)
        buffers.restore()
        launch()
        self._device.finish()
        try:
            return {"status": "ok", "error": buffers.check()}
        except WrongResultError as wrong:
            return {"status": "incorrect", "why": str(wrong), "error": wrong.error}

    def _time(self, library: str, warmup: int) -> dict[str, Any]:
        launch, buffers, case = self._program(library)
        buffers.restore()
        for _ in range(warmup):
            launch()
        self._device.finish()
        timed = self._device.time(launch, cold=case.cold)
        found = {"status": "ok", "seconds": timed.seconds, "launches": timed.launches}
        if not timed.hidden:
            found["latency"] = "visible"
        throttled = self._device.throttled()
        return {**found, "throttled": throttled} if throttled else found


def serve(channel: socket.socket, worker: Worker) -> None:
    """Answer until the other side has gone."""
    with channel, channel.makefile("rwb") as stream:
        for line in stream:
            answer = worker.answer(json.loads(line))
            stream.write(json.dumps(answer).encode() + b"\n")
            stream.flush()


def main(kind: str, index: int) -> None:
    """Be the worker for a device."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.connect(SOCKET)
    try:
        device: HostDevice | CudaDevice = HostDevice() if kind == "cpu" else CudaDevice(index)
    except DriverError as error:
        with channel:
            channel.recv(1 << 16)
            channel.sendall(json.dumps({"status": "broken", "why": str(error)}).encode() + b"\n")
        return
    serve(channel, Worker(device))
