"""Actions under way on a server: their streams are followed, taken up again, and given up.

A stream that is lost is continued by WaitExecution; a server that was started again and knows the
operation no more gets the action again. What is silent, queues, or loses its streams for long is
given up with a word to the server, so that nothing runs there in vain.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

import grpc
from msgspec import Struct

from tilusbuild.engine.events import EXECUTING, QUEUED
from tilusbuild.process.base import CancelledError
from tilusbuild.reapi import reapi_pb2 as reapi
from tilusbuild.reapi.backend import V2, ReapiBackend, describe_status, parse_message
from tilusbuild.remote.backend import RemoteTroubleError
from tilusbuild.remote.settings import RemoteSettings

# Seconds of an action whose command has no timeout.
_MAX_LENGTH = 3600.0
# The stages of an action that are reported.
_STAGE_PLACES = {2: QUEUED, 3: EXECUTING}
_MAX_NAME = 100
# Stages before a worker has it: the cache is looked up, and it waits. Servers need not say.
_QUEUED_STAGES = (1, 2)
# NOT_FOUND and FAILED_PRECONDITION, of inputs that are there no more.
_ABSENT_STATUS = (5, 9)
# Seconds that the server has to take note of it.
_CANCEL_SECONDS = 1.0
# How often a stream is taken up again that has ended before its time.
_MAX_LOSSES = 6
# Seconds before the first of them; twice as many before each next, but never more than one.
_PAUSE = 0.05

ReportPlace: TypeAlias = Callable[[str, str], None]
"""A function that gets a command's stage, one of `events.Placed`, and its worker, "" if none."""


def ignore_place(stage: str, worker: str) -> None:
    """Do nothing, for commands whose stages are not reported."""


class InputsAbsentError(Exception):
    """The server does not have an input of the action. The message is the server's."""


class RunningAction(Struct, eq=False):
    """An action under way."""

    cancelled: threading.Event
    report_place: ReportPlace = ignore_place
    call: Any = None
    name: str = ""
    """The server's name of its operation; "" until the server sends it."""
    stage: int = 0
    has_messages: bool = False
    """Whether its present stream has brought a message."""
    is_abandoned: bool = False
    losses: int = 0


class Operations:
    """Runs actions on the server. Several threads may use it, each for an action of its own."""

    def __init__(self, backend: ReapiBackend, settings: RemoteSettings) -> None:
        self._backend = backend
        self._settings = settings

    def execute_action(
        self, request: reapi.ExecuteRequest, running: RunningAction, timeout: float | None
    ) -> reapi.ExecuteResponse:
        """Run an action and return the server's response, which may report an error.

        A stream that is lost is taken up again, at most `_MAX_LOSSES` times. The fields of
        `running` follow the action. `timeout` is the command's, in seconds. Raises
        `CancelledError`, `InputsAbsentError`, `RemoteTroubleError`.
        """
        deadline = time.monotonic() + (timeout or _MAX_LENGTH) + self._settings.timeout
        while True:
            method, message = "Execute", request
            if running.name:
                # The server knows the action: its lost stream is continued.
                method, message = "WaitExecution", reapi.WaitExecutionRequest(name=running.name)
            # False for each new stream: `_handle_lost_stream` gives up one that was always silent.
            running.has_messages = False
            try:
                answer = self._follow_stream(f"{V2}.Execution/{method}", message, running)
            except grpc.RpcError as error:
                self._handle_lost_stream(error, running, deadline)
                continue
            if answer is not None:
                if answer.status.code in _ABSENT_STATUS:
                    raise InputsAbsentError(answer.status.message)
                return answer
            self._wait_to_resume(running, deadline, "its streams end without an answer")

    def abandon_action(self, running: RunningAction) -> None:
        """End the stream of an action, whose thread stops then; does not wait for that."""
        if running.call is None or running.is_abandoned:
            return
        running.is_abandoned = True
        if running.name:
            running.call.cancel()
        else:
            # An operation is cancelled on the server by its name, which the server sends at once:
            # the stream stays open for so long.
            threading.Timer(_CANCEL_SECONDS, running.call.cancel).start()

    def _follow_stream(
        self, name: str, request: Any, running: RunningAction
    ) -> reapi.ExecuteResponse | None:
        """Return an action's answer; None when the stream ends without one. Reports the action's
        stages, and sets the operation's name in `running`. Raises `grpc.RpcError`,
        `InputsAbsentError`, `RemoteTroubleError`."""
        running.call = self._backend.open_stream(name, request)
        # While the stream was opened, `abandon_action` had no call to cancel.
        if running.cancelled.is_set():
            running.call.cancel()
        for data in running.call:
            operation = parse_message(reapi.Operation, data)
            running.name = operation.name or running.name
            running.has_messages = True
            if running.cancelled.is_set():
                running.call.cancel()
                continue
            if _has_type(operation.metadata, "ExecuteOperationMetadata"):
                self._note_stage(running, operation.metadata.value)
            if operation.done:
                return self._read_answer(operation)
        return None

    def _note_stage(self, running: RunningAction, metadata: bytes) -> None:
        """Set the action's stage, and report a stage of `_STAGE_PLACES`."""
        progress = parse_message(reapi.ExecuteOperationMetadata, metadata)
        running.stage = progress.stage
        phase = _STAGE_PLACES.get(progress.stage)
        if phase is not None:
            worker = clean_worker_name(progress.partial_execution_metadata.worker)
            running.report_place(phase, worker)

    def _read_answer(self, operation: reapi.Operation) -> reapi.ExecuteResponse:
        """Return the answer in an operation that has ended. Raises `InputsAbsentError`, and
        `RemoteTroubleError` for another error or no answer."""
        error = operation.error
        if error.code in _ABSENT_STATUS:
            raise InputsAbsentError(error.message)
        if error.code:
            raise RemoteTroubleError(f"{self._settings.address}: {describe_status(error)}")
        if not _has_type(operation.response, "ExecuteResponse"):
            raise RemoteTroubleError(f"{self._settings.address}: an operation ended without answer")
        answer: reapi.ExecuteResponse = parse_message(
            reapi.ExecuteResponse, operation.response.value
        )
        return answer

    def _handle_lost_stream(self, error: Any, running: RunningAction, deadline: float) -> None:
        """Return when a stream that ended with an error is to be taken up again.

        - The build was cancelled: raise `CancelledError`.
        - The stream's time is over: raise `RemoteTroubleError` if the server does not answer, no
          worker has the action, or the action's own time is over; else return at once.
        - The server does not know the operation: forget its name, and return after a pause.
        - Inputs are missing: raise `InputsAbsentError`.
        - The action was not begun, or the stream brought no message: raise `RemoteTroubleError`.
        - Any other error: return after a pause.
        """
        if running.cancelled.is_set():
            self._cancel_operation(running)
            raise CancelledError
        code = error.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            # Some servers (casd) send nothing while an action runs: a silent stream of a known
            # operation is given up only if the server does not answer other calls either.
            is_silent = not running.has_messages and not (running.name and self._backend.is_alive())
            if is_silent:
                self._give_up(running, "no answer in time")
            if running.stage in _QUEUED_STAGES:
                self._give_up(running, "no worker took a compile in time")
            if time.monotonic() > deadline:
                self._give_up(running, "a worker did not end a compile in time")
            return
        if code is grpc.StatusCode.NOT_FOUND and running.name:
            running.name = ""  # a server that was started again knows it no more
        elif code.value[0] in _ABSENT_STATUS and not running.name:
            raise InputsAbsentError(error.details() or "")
        elif not running.name or not running.has_messages:
            raise self._backend.explain_error(error)
        self._wait_to_resume(running, deadline, str(self._backend.explain_error(error)))

    def _wait_to_resume(self, running: RunningAction, deadline: float, why: str) -> None:
        """Count a loss, and wait before the stream is taken up again. Raises `CancelledError`, and
        `RemoteTroubleError` with the reason `why` after too many losses or too long."""
        running.losses += 1
        if running.losses > _MAX_LOSSES or time.monotonic() > deadline:
            self._give_up(running, why)
        pause = min(_PAUSE * 2 ** (running.losses - 1), 1.0)
        if running.cancelled.wait(pause):
            self._cancel_operation(running)
            raise CancelledError

    def _give_up(self, running: RunningAction, why: str) -> NoReturn:
        """Cancel the operation on the server. Raises `RemoteTroubleError` without a retry."""
        self._cancel_operation(running)
        raise RemoteTroubleError(f"{self._settings.address}: {why}", retry=False)

    def _cancel_operation(self, running: RunningAction) -> None:
        """Ask the server to cancel an operation, if its name is known. Ignores errors."""
        if running.name:
            request = reapi.CancelOperationRequest(name=running.name)
            self._backend.attempt_call(
                "/google.longrunning.Operations/CancelOperation", request, _CANCEL_SECONDS
            )


def clean_worker_name(name: str) -> str:
    """Return a worker's name without unprintable characters, cut to `_MAX_NAME`."""
    return "".join(letter for letter in name[:_MAX_NAME] if letter.isprintable())


def _has_type(message: reapi.Any, name: str) -> bool:
    # Servers differ in what stands before the name: "type.googleapis.com/", another package.
    return message.type_url.rpartition("/")[2].rpartition(".")[2] == name
