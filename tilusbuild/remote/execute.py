"""Compiles on the workers of a server of the Remote Execution API.

What a worker answers is believed only after a probe has shown that its tools are this machine's. A
compiler that fails there has failed; a server or a worker in trouble has not answered, and the
command is run here. A lost stream is taken up again, a server that is silent or lets an action
queue for long is given up, and what is cancelled here is cancelled there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from tilusbuild.process.base import CancelledError, Command, CompletedCommand
from tilusbuild.process.threads import start_thread
from tilusbuild.remote import reapi_pb2 as reapi
from tilusbuild.remote.actions import Actions, digest
from tilusbuild.remote.backend import RemoteTroubleError
from tilusbuild.remote.guard import BrokenError, Guard
from tilusbuild.remote.reapi import V2, ReapiBackend, parsed
from tilusbuild.remote.record import Blob, RecordError, Sources, blob_of
from tilusbuild.remote.settings import RemoteSettings
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.files import sha256_bytes

_LONGEST = 3600.0
"""Seconds of an action whose command has no timeout."""
_QUEUED = (1, 2)
"""Stages before a worker has it: the cache is looked up, and it waits. Servers need not say."""
_ABSENT = (5, 9)
"""NOT_FOUND and FAILED_PRECONDITION, of inputs that are there no more."""
_TIMED_OUT = 4
_CANCEL = 1.0
"""Seconds that the server has to take note of it."""
_SIGNALLED = 128
_LAST_WORDS = 5.0
"""Seconds that the probe has to remove what it made."""


@dataclass(slots=True, eq=False)
class _Running:
    """An action under way."""

    cancelled: threading.Event
    call: Any = None
    name: str = ""
    """Of its operation."""
    stage: int = 0
    heard: bool = False
    """Whether its stream has brought anything."""
    given_up: bool = False


class _NoAnswerError(Exception):
    """A worker could not do it, which says nothing about the program or the server."""


class RemoteExecutor:
    """An `elsewhere.Executor`. `probe` is called with `try_once` before anything is believed."""

    def __init__(
        self,
        settings: RemoteSettings,
        probe: Callable[[Callable[[Command], CompletedCommand]], str | None],
        warn: Callable[[str], None],
    ) -> None:
        """Connects to nothing yet. Raises `RemoteTroubleError`."""
        self._settings = settings
        self._backend = ReapiBackend(settings)
        self._actions = Actions(settings.properties)
        self._guard = Guard(lambda why: warn(f"{why}; this build compiles here"))
        self._probe = probe
        self._lock = threading.Lock()
        self._known: set[Blob] = set()
        """Blobs that the server has, as far as we know."""
        self._running: dict[threading.Event, _Running] = {}
        self._slots = threading.BoundedSemaphore(settings.jobs)
        self._proved: bool | None = None
        """None while the probe runs."""
        self._probing = False
        self._prover: threading.Thread | None = None
        self.executed = 0

    def run(self, command: Command, cancelled: threading.Event) -> CompletedCommand | None:
        if not self._usable() or not self._slots.acquire(blocking=False):
            return None
        try:
            done = self._guard.call(lambda: self._try(command, cancelled))
            with self._lock:
                self.executed += 1
            return done
        except (BrokenError, _NoAnswerError, OSError, RecordError):
            return None
        finally:
            self._slots.release()

    def cancel(self, cancelled: threading.Event) -> None:
        with self._lock:
            running = self._running.get(cancelled)
        if running is None or running.call is None or running.given_up:
            return
        running.given_up = True
        if running.name:
            running.call.cancel()
        else:
            # Without its name it could not be cancelled there; the server says it at once.
            threading.Timer(_CANCEL, running.call.cancel).start()

    def close(self) -> None:
        """Give everything up."""
        self._guard.open(None)
        with self._lock:
            running = list(self._running.values())
        for each in running:
            each.cancelled.set()
            if each.call is not None:
                each.call.cancel()
        if self._prover is not None:
            self._prover.join(_LAST_WORDS)
        self._backend.close()

    def try_once(self, command: Command) -> CompletedCommand:
        """Run a command on a worker, whatever the server remembers of it. Raises
        `RemoteTroubleError`, `OSError`."""
        return self._try(command, threading.Event(), cached=False)

    def _usable(self) -> bool:
        with self._lock:
            begins, self._probing = not self._probing, True
        if begins:
            with suppress(OSError):
                self._prover = start_thread("tilusbuild-probe", self._prove)
        return bool(self._proved) and not self._guard.broken

    def _prove(self) -> None:
        try:
            problem = self._guard.call(lambda: self._probe(self.try_once))
        except (BrokenError, OSError, CancelledError):
            return
        if problem is None:
            self._proved = True
        else:
            self._guard.open(f"{self._settings.address}: {problem}")

    def _try(
        self, command: Command, cancelled: threading.Event, *, cached: bool = True
    ) -> CompletedCommand:
        action, sources = self._actions.of(command, cached=cached)
        running = _Running(cancelled)
        with self._lock:
            self._running[cancelled] = running
        try:
            for again in (False, True):
                self._upload(sources, anew=again)
                answer = self._execute(action, running, command.timeout, cached=cached)
                if answer.status.code not in _ABSENT:
                    break
            return self._completed(answer, command)
        finally:
            with self._lock:
                del self._running[cancelled]

    def _upload(self, sources: Sources, *, anew: bool) -> None:
        with self._lock:
            if anew:  # something is gone that was there
                self._known.difference_update(sources)
            unknown = sources.keys() - self._known
        missing = self._backend.missing(unknown) if unknown else ()
        if missing:
            self._backend.send({blob: _content(sources[blob]) for blob in missing})
        with self._lock:
            self._known |= unknown

    def _execute(
        self, action: Blob, running: _Running, timeout: float | None, *, cached: bool
    ) -> reapi.ExecuteResponse:
        until = time.monotonic() + (timeout or _LONGEST) + self._settings.timeout
        request = reapi.ExecuteRequest(
            instance_name=self._settings.instance,
            skip_cache_lookup=not cached,
            action_digest=digest(action),
        )
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
                return answer

    def _follow(self, name: str, request: Any, running: _Running) -> reapi.ExecuteResponse | None:
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
            about = parsed(reapi.ExecuteOperationMetadata, operation.metadata.value)
            running.stage = about.stage
            if operation.done and operation.error.code:
                raise RemoteTroubleError(f"{self._settings.address}: {operation.error.message}")
            if operation.done:
                answer: reapi.ExecuteResponse
                answer = parsed(reapi.ExecuteResponse, operation.response.value)
                return answer
        return None

    def _lost(self, error: Any, running: _Running, until: float) -> None:
        """Return when a stream that has ended is to be taken up again. Raises `CancelledError`,
        `RemoteTroubleError`."""
        if running.cancelled.is_set():
            self._cancel_there(running)
            raise CancelledError
        code = error.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            silent = not running.heard
            if silent or running.stage in _QUEUED or time.monotonic() > until:
                self._cancel_there(running)
                why = "no answer in time" if silent else "no worker took a compile in time"
                raise RemoteTroubleError(f"{self._settings.address}: {why}", retry=False)
        elif code is grpc.StatusCode.NOT_FOUND and running.name:
            running.name = ""  # a server that was started again knows it no more
        elif not running.name or not running.heard:
            raise self._backend.trouble(error)

    def _cancel_there(self, running: _Running) -> None:
        if running.name:
            request = reapi.CancelOperationRequest(name=running.name)
            self._backend.try_to("/google.longrunning.Operations/CancelOperation", request, _CANCEL)

    def _completed(self, answer: reapi.ExecuteResponse, command: Command) -> CompletedCommand:
        result = answer.result
        status = result.exit_code
        timed_out = answer.status.code == _TIMED_OUT and command.timeout is not None
        if answer.status.code and not timed_out:
            why = answer.status.message.partition("\n")[0][:200]
            raise RemoteTroubleError(f"{self._settings.address}: {why}")
        if status >= _SIGNALLED and not timed_out:
            raise _NoAnswerError  # killed: it had no memory, say
        output = self._bytes(result.stdout_raw, result.stdout_digest) + self._bytes(
            result.stderr_raw, result.stderr_digest
        )
        made = {each.path: each for each in result.output_files if each.path in command.outputs}
        contents = self._contents({blob_of(each.digest) for each in made.values()})
        for path, each in made.items():
            target = os.path.join(command.cwd, path)
            with open(target, "wb") as file:
                file.write(contents[blob_of(each.digest)])
            if each.is_executable:
                os.chmod(target, 0o755)  # noqa: S103 - as the tool left it there
        about = result.execution_metadata
        start, end = about.execution_start_timestamp, about.execution_completed_timestamp
        seconds = max(0.0, end.seconds - start.seconds + (end.nanos - start.nanos) / 1e9)
        return CompletedCommand(status, output, seconds, 0, timed_out, elsewhere=True)

    def _bytes(self, raw: bytes, named: reapi.Digest) -> bytes:
        if raw or not named.size_bytes:
            return raw
        blob = blob_of(named)
        return self._contents({blob})[blob]

    def _contents(self, wanted: set[Blob]) -> Mapping[Blob, bytes]:
        """Return blobs, compared with their digests."""
        found = self._backend.blobs(wanted) if wanted else {}
        for blob in wanted:
            data = found.get(blob)
            if data is None or len(data) != blob.size or sha256_bytes(data) != blob.digest:
                raise RemoteTroubleError(f"{self._settings.address}: an output is not what it says")
        return found


def _content(source: bytes | str) -> bytes:
    return source if isinstance(source, bytes) else read_bytes(source)
