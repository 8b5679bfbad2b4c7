"""Actions under way on a server: their streams are followed, taken up again, and given up.

A stream that is lost is continued by WaitExecution; a server that was started again and knows the
operation no more gets the action again. What is silent, queues, or loses its streams for long is
given up with a word to the server, so that nothing runs there in vain.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc
from msgspec import Struct

from tilusbuild.engine.events import EXECUTING, QUEUED
from tilusbuild.process.base import CancelledError
from tilusbuild.reapi import reapi_pb2 as reapi
from tilusbuild.reapi.backend import V2, ReapiBackend, parsed, said
from tilusbuild.remote.backend import RemoteTroubleError
from tilusbuild.remote.settings import RemoteSettings

_MAX_LENGTH = 3600.0
"""Seconds of an action whose command has no timeout."""
_PLACES = {2: QUEUED, 3: EXECUTING}
"""The stages of an action that are reported."""
_MAX_NAME = 100
_QUEUED = (1, 2)
"""Stages before a worker has it: the cache is looked up, and it waits. Servers need not say."""
_ABSENT = (5, 9)
"""NOT_FOUND and FAILED_PRECONDITION, of inputs that are there no more."""
_CANCEL = 1.0
"""Seconds that the server has to take note of it."""
_LOSSES = 6
"""How often a stream is taken up again that has ended before its time."""
_PAUSE = 0.05
"""Seconds before the first of them; twice as many before each next, but never more than one."""


Tell: TypeAlias = Callable[[str, str], None]
"""Is called with where a command is, as `events.Placed` has it, and on which worker if known."""


def untold(place: str, worker: str) -> None:
    """For commands that are not followed."""


class InputsAbsentError(Exception):
    """Something that the action consists of is missing on the server. The text is what it said."""


class Running(Struct, eq=False):
    """An action under way."""

    cancelled: threading.Event
    tell: Tell = untold
    call: Any = None
    name: str = ""
    """Of its operation."""
    stage: int = 0
    heard: bool = False
    """Whether its stream has brought anything."""
    given_up: bool = False
    losses: int = 0


class Operations:
    """May be used from several threads, each for an action of its own."""

    def __init__(self, backend: ReapiBackend, settings: RemoteSettings) -> None:
        self._backend = backend
        self._settings = settings

    def execute(
        self, request: reapi.ExecuteRequest, running: Running, timeout: float | None
    ) -> reapi.ExecuteResponse:
        """Return an action's answer, which may be that something went wrong there. `timeout` is the
        command's. Raises `CancelledError`, `InputsAbsentError`, `RemoteTroubleError`."""
        until = time.monotonic() + (timeout or _MAX_LENGTH) + self._settings.timeout
        while True:
            if running.name:
                name, message = "WaitExecution", reapi.WaitExecutionRequest(name=running.name)
            else:
                name, message = "Execute", request
            running.heard = False
            try:
                answer = self._follow(f"{V2}.Execution/{name}", message, running)
            except grpc.RpcError as error:
                self._lost(error, running, until)
                continue
            if answer is not None:
                if answer.status.code in _ABSENT:
                    raise InputsAbsentError(answer.status.message)
                return answer
            self._pause(running, until, "its streams end without an answer")

    def give_up(self, running: Running) -> None:
        """Have the thread that waits for it end; does not wait."""
        if running.call is None or running.given_up:
            return
        running.given_up = True
        if running.name:
            running.call.cancel()
        else:
            # Without its name it could not be cancelled there; the server says it at once.
            threading.Timer(_CANCEL, running.call.cancel).start()

    def _follow(self, name: str, request: Any, running: Running) -> reapi.ExecuteResponse | None:
        """Return an action's answer; None when the stream ends without."""
        running.call = self._backend.stream(name, request)
        if running.cancelled.is_set():
            running.call.cancel()
        for data in running.call:
            operation = parsed(reapi.Operation, data)
            running.name, running.heard = operation.name or running.name, True
            if running.cancelled.is_set():
                running.call.cancel()
                continue
            if _is(operation.metadata, "ExecuteOperationMetadata"):
                self._heard(running, operation.metadata.value)
            if operation.done:
                return self._answer(operation)
        return None

    def _heard(self, running: Running, metadata: bytes) -> None:
        about = parsed(reapi.ExecuteOperationMetadata, metadata)
        running.stage = about.stage
        if (place := _PLACES.get(about.stage)) is not None:
            running.tell(place, worker_name(about.partial_execution_metadata.worker))

    def _answer(self, operation: reapi.Operation) -> reapi.ExecuteResponse:
        error = operation.error
        if error.code in _ABSENT:
            raise InputsAbsentError(error.message)
        if error.code:
            raise RemoteTroubleError(f"{self._settings.address}: {said(error)}")
        if not _is(operation.response, "ExecuteResponse"):
            raise RemoteTroubleError(f"{self._settings.address}: an operation ended without answer")
        answer: reapi.ExecuteResponse = parsed(reapi.ExecuteResponse, operation.response.value)
        return answer

    def _lost(self, error: Any, running: Running, until: float) -> None:
        """Return when a stream that has ended is to be taken up again. Raises `CancelledError`,
        `InputsAbsentError`, `RemoteTroubleError`."""
        if running.cancelled.is_set():
            self._cancel_there(running)
            raise CancelledError
        code = error.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            # casd says nothing more of an action until it has ended; then the server is asked.
            silent = not running.heard and not (running.name and self._backend.is_alive())
            if silent or running.stage in _QUEUED or time.monotonic() > until:
                why = "no answer in time" if silent else "no worker took a compile in time"
                if not silent and running.stage not in _QUEUED:
                    why = "a worker did not end a compile in time"
                self._gave_up(running, why)
            return
        if code is grpc.StatusCode.NOT_FOUND and running.name:
            running.name = ""  # a server that was started again knows it no more
        elif code.value[0] in _ABSENT and not running.name:
            raise InputsAbsentError(error.details() or "")
        elif not running.name or not running.heard:
            raise self._backend.trouble(error)
        self._pause(running, until, str(self._backend.trouble(error)))

    def _pause(self, running: Running, until: float, why: str) -> None:
        """Wait before a stream goes on. Raises `CancelledError`, `RemoteTroubleError`."""
        running.losses += 1
        if running.losses > _LOSSES or time.monotonic() > until:
            self._gave_up(running, why)
        if running.cancelled.wait(min(_PAUSE * 2 ** (running.losses - 1), 1.0)):
            self._cancel_there(running)
            raise CancelledError

    def _gave_up(self, running: Running, why: str) -> None:
        self._cancel_there(running)
        raise RemoteTroubleError(f"{self._settings.address}: {why}", retry=False)

    def _cancel_there(self, running: Running) -> None:
        if running.name:
            request = reapi.CancelOperationRequest(name=running.name)
            self._backend.try_to("/google.longrunning.Operations/CancelOperation", request, _CANCEL)


def worker_name(name: str) -> str:
    """Return what a server calls a worker, as it can be shown."""
    return "".join(each for each in name[:_MAX_NAME] if each.isprintable())


def _is(message: reapi.Any, name: str) -> bool:
    return message.type_url.rpartition("/")[2].rpartition(".")[2] == name
