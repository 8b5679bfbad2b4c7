"""The side that asks: a worker process, started by the runner, spoken to over a socket.

The runner knows how the process ended, the socket only that it did. A worker that does not answer
in time is killed with all that it started. Nothing of it survives `close`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

import tilusbuild
from tilusbuild.errors import TilusbuildError
from tilusbuild.process.base import CancelledError, Command, CompletedCommand
from tilusbuild.process.local import LocalRunner, signal_name
from tilusbuild.tune.bench.worker import SOCKET

_START = 60.0
"""Seconds for a worker to connect: an interpreter's start on a machine that has much to do."""
_MAIN = """\
import sys
sys.path.insert(0, {root!r})
from tilusbuild.tune.bench.worker import main
main({kind!r}, {index})
"""


def _answer(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("status"), str) else None


class WorkerDiedError(Exception):
    """The process ended before it answered; the text says how."""


class WorkerTimeoutError(Exception):
    """No answer in time; the process was killed."""


class WorkerUnusableError(TilusbuildError):
    """A worker cannot do its work, whatever the program: no device, no memory, a missing file."""


class Conversation:
    """One worker. Making one starts the process; raises `WorkerUnusableError` when it cannot."""

    def __init__(self, runner: LocalRunner, kind: str, index: int = 0) -> None:
        self._scope = runner.scope()
        self._directory = tempfile.mkdtemp(prefix="tilusbuild-tune-")
        self._finished: CompletedCommand | BaseException | None = None
        self._wake, self._woken = os.pipe()
        self._ends: tuple[int, ...] = (self._wake, self._woken)
        self._channel: socket.socket | None = None
        self._received = bytearray()
        self._thread: threading.Thread | None = None
        try:
            self._connect(kind, index)
        except BaseException:
            self.close()
            raise

    def ask(self, request: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Return the answer. Raises `WorkerDiedError`, `WorkerTimeoutError`, `CancelledError`, and
        `WorkerUnusableError`."""
        if self._channel is None:
            raise WorkerDiedError("it had ended before")
        deadline = time.monotonic() + limit
        try:
            self._channel.sendall(json.dumps(request).encode() + b"\n")
            line = self._line(deadline)
        except OSError:
            line = None
        except KeyboardInterrupt:
            self._scope.cancel()
            raise
        if line is None:
            raise WorkerDiedError(self._ending())
        answer = _answer(line)
        if answer is None:  # what a program wrote into memory or files that are not its own
            self.close()
            raise WorkerDiedError("it answered what is no answer")
        if answer["status"] == "broken":
            raise WorkerUnusableError(f"measuring is not possible: {answer.get('why')}")
        return answer

    def close(self) -> None:
        """End the process, if it has not."""
        self._scope.cancel()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._thread is not None:
            self._thread.join()
        ends, self._ends = self._ends, ()
        for end in ends:
            os.close(end)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _connect(self, kind: str, index: int) -> None:
        root = os.path.dirname(os.path.dirname(os.path.abspath(tilusbuild.__file__)))
        main = _MAIN.format(root=root, kind=kind, index=index)
        command = Command(
            (sys.executable, "-I", "-c", main),
            self._directory,
            dict(os.environ),
            output_limit=1 << 16,
        )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            # Through /proc, because a socket's path has at most 107 bytes, and TMPDIR any number.
            handle = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                listener.bind(f"/proc/self/fd/{handle}/{SOCKET}")
            finally:
                os.close(handle)
            listener.listen(1)
            self._thread = threading.Thread(target=self._run, args=(command,), daemon=True)
            self._thread.start()
            ready, _, _ = select.select([listener.fileno(), self._wake], [], [], _START)
            if listener.fileno() not in ready:
                self._scope.cancel()
                self._thread.join()
                raise WorkerUnusableError(
                    f"the process that measures does not start: {self._ending()}"
                )
            self._channel, _ = listener.accept()

    def _run(self, command: Command) -> None:
        try:
            self._finished = self._scope.run(command)
        except BaseException as error:
            self._finished = error
        with contextlib.suppress(OSError):
            os.write(self._woken, b"x")

    def _line(self, deadline: float) -> bytes | None:
        """Return the next line; None when the process has ended."""
        channel = self._channel
        assert channel is not None  # noqa: S101 - `ask` looked
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0:
                self.close()
                raise WorkerTimeoutError
            channel.settimeout(left)
            try:
                data = channel.recv(1 << 16)
            except TimeoutError:
                continue
            if not data:
                return None
            self._received += data
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        return line

    def _ending(self) -> str:
        """Return how the process ended. Raises `CancelledError` when it was we who ended it."""
        if self._thread is not None:
            self._thread.join()
        ended = self._finished
        if isinstance(ended, CancelledError | TilusbuildError):
            raise ended
        if not isinstance(ended, CompletedCommand):
            return str(ended)
        name = signal_name(ended.status)
        last = ended.output.decode(errors="replace").strip().splitlines()[-1:]
        how = f"killed by {name}" if name else f"exit status {ended.status}"
        return ": ".join([how, *last])
