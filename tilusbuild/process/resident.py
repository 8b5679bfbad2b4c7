"""Resident processes: a process that has loaded a compiler answers many commands of one program.

To load a compiler that is a library costs more than a small compile. So the ordinary runner starts
one process for each command that runs at the same time. The process connects to a socket and
answers one request after the other: `toolchain/nvrtc_command.py`, or a Python function by
`serve_requests`. The guarantees are those of `Runner`:

- If a process dies, one command ends with its exit status; the next command gets another process.
- A command that is late or cancelled is killed together with its process. The runner owns the
  process: it never outlives the build, and a Ctrl-C in the terminal does not reach it.
- Peak memory is reported for each command.

Not threads: a compiler that crashes, hangs or is killed for memory must not take the builder with
it. Not a fork for each command: the kernel copies and faults in some 3,000 pages of the library
again, 8 ms of CPU beside the 25 ms of a small kernel.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilusbuild.process.base import (
    CancelledError,
    Command,
    CompletedCommand,
    shut_down,
    start_thread,
)
from tilusbuild.process.local import LocalRunner, Scope

FRAME = struct.Struct("<I")
"""The length of a request, which is a working directory and arguments, each with a NUL."""
ANSWER = struct.Struct("<iQ?I")
"""Exit status, peak memory in bytes, whether the process takes another request, output's length."""

_CREDENTIALS = struct.Struct("iII")
"""struct ucred: process, user, group."""

_SECONDS_TO_START = 60.0
# Seconds for a process to end after it has closed its connection.
_SECONDS_TO_END = 5.0
# Exit status of a command whose process ended with status 0 and without an answer: EX_SOFTWARE of
# sysexits.h.
_OWN_FAILURE = 70
# Exit status of a process that had no memory to send an answer: EX_OSERR.
_NO_MEMORY = 71
# Seconds. A socket's time limit is a 32-bit number of milliseconds, 24.8 days at most.
_MAX_WAIT = 24 * 86400.0


class ResidentPool:
    """The processes of one program. `argv` must accept the option `--serve ADDRESS`."""

    def __init__(self, runner: LocalRunner, argv: tuple[str, ...]) -> None:
        self.argv = argv
        self._runner = runner
        self._guard = threading.Lock()
        self._idle: list[Resident] = []
        self._closed = False

    def is_served(self, command: Command) -> bool:
        """Return whether these processes can answer a command."""
        return command.argv[: len(self.argv)] == self.argv

    def close(self) -> None:
        """End the idle processes, and keep no further ones. Runners cancel the busy ones."""
        with self._guard:
            self._closed = True
        self.release_idle()

    def release_idle(self) -> None:
        """End the idle processes."""
        with self._guard:
            idle, self._idle = self._idle, []
        for resident in idle:
            resident.release()

    def take_resident(self, command: Command) -> Resident:
        """Return an idle process, which is idle no more, or a new one with the environment of
        `command`.

        All commands of a pool have the same environment. Raises `OSError`, and `CancelledError`
        after `close`.
        """
        while True:
            with self._guard:
                if self._closed:
                    raise CancelledError
                resident = self._idle.pop() if self._idle else None
            if resident is None:
                return Resident(self._runner.open_scope(), self.argv, command)
            if not resident.ended.is_set():
                return resident
            resident.release()

    def give_back(self, resident: Resident) -> None:
        """Add a process that can answer further requests to the idle ones; end it after `close`."""
        with self._guard:
            if not self._closed:
                self._idle.append(resident)
                return
        resident.release()


class ResidentRunner:
    """A `Runner` for the commands of one job. `inner` runs those of other programs."""

    def __init__(self, pool: ResidentPool, inner: Scope) -> None:
        self._pool = pool
        self._inner = inner
        self._guard = threading.Lock()
        self._working: set[Resident] = set()
        self._cancelled = False

    def run(self, command: Command) -> CompletedCommand:
        """Run a command as `LocalRunner.run` does, in a resident process if one can answer it."""
        if not self._pool.is_served(command):
            return self._inner.run(command)
        resident = self._pool.take_resident(command)
        with self._guard:
            self._working.add(resident)
            if self._cancelled:
                resident.kill()
        is_reusable = False
        try:
            arguments = command.argv[len(self._pool.argv) :]
            completed, is_reusable = resident.send_request(command, arguments)
        finally:
            with self._guard:
                self._working.discard(resident)
            if is_reusable:
                self._pool.give_back(resident)
            else:
                resident.release()
        return completed

    def cancel(self) -> None:
        """Kill the processes of this runner's commands, and of any later ones."""
        with self._guard:
            self._cancelled = True
            working = tuple(self._working)
        for resident in working:
            resident.kill()
        self._inner.cancel()


class Resident:
    """One process of `argv`, started with the environment of `like`. `ended` is set at its end.

    Raises `OSError` if no thread can be started.
    """

    def __init__(self, scope: Scope, argv: tuple[str, ...], like: Command) -> None:
        self.ended = threading.Event()
        self._scope = scope
        self._end: CompletedCommand | BaseException | None = None
        # An abstract name: no file to clean up, and no limit of a path's length to run into.
        name = f"tilusbuild-{os.getpid()}-{os.urandom(16).hex()}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind("\0" + name)
        self._listener.listen(1)
        self._channel: socket.socket | None = None
        command = replace(like, argv=(*argv, "--serve", name), cwd="/", timeout=None)
        try:
            start_thread(self._run_process, command)
        except OSError:
            self._listener.close()
            raise

    def _run_process(self, command: Command) -> None:
        """Run the process to its end, on its thread. Keep its result or exception as `_end`, set
        `ended`, and close the listener."""
        try:
            self._end = self._scope.run(command)
        except BaseException as error:
            self._end = error
        self.ended.set()
        shut_down(self._listener)  # wakes a thread in accept()
        self._listener.close()

    def kill(self) -> None:
        """Kill the process."""
        self._scope.cancel()

    def release(self) -> None:
        """Kill the process and close its connection."""
        self.kill()
        if self._channel is not None:
            self._channel.close()

    def send_request(
        self, command: Command, arguments: tuple[str, ...]
    ) -> tuple[CompletedCommand, bool]:
        """Run a command in the process. Return its result, and whether the process can answer
        further requests.

        A process that takes longer than the command's `timeout` is killed. Of a process that ends
        without an answer, the end is the result. Raises `CancelledError` and `RunnerLostError`, and
        `OSError` if the process cannot be started or reached.
        """
        strings = [os.fsencode(word) for word in (command.cwd, *arguments)]
        request = b"\0".join(strings) + b"\0"
        began_at = time.monotonic()
        timeout = command.timeout
        try:
            # The command's time limit begins after the connection: Python's start and the load of
            # the library have a limit of their own.
            start_deadline = None if timeout is None else began_at + max(timeout, _SECONDS_TO_START)
            channel = self._connect(start_deadline)
            deadline = None if timeout is None else time.monotonic() + timeout
            channel.sendall(FRAME.pack(len(request)) + request)
            head = _read_bytes(channel, ANSWER.size, deadline)
            status, peak, is_reusable, length = ANSWER.unpack(head)
            output = _read_bytes(channel, length, deadline)
        except TimeoutError:
            self.kill()
            self.ended.wait()
            peak = self._end.peak_rss if isinstance(self._end, CompletedCommand) else 0
            seconds = time.monotonic() - began_at
            return CompletedCommand(-signal.SIGKILL, b"", seconds, peak, timed_out=True), False
        except (OSError, EOFError) as error:
            is_ended = self.ended.wait(_SECONDS_TO_END)
            if not is_ended:
                self.kill()
                self.ended.wait()
                # The process was alive, so this machine has caused the error, such as a lack of
                # memory.
                if isinstance(error, OSError):
                    raise
            return self._make_end_result(began_at), False
        seconds = time.monotonic() - began_at
        completed = CompletedCommand(status, output[: command.output_limit], seconds, peak)
        return completed, is_reusable

    def _connect(self, deadline: float | None) -> socket.socket:
        """Return the connection to the process; the first call waits for it. Connections of other
        users are closed. Raises `TimeoutError`, and `OSError` if the process has ended."""
        while self._channel is None:
            self._listener.settimeout(_count_seconds_until(deadline))
            channel, _ = self._listener.accept()
            # Abstract sockets have no permissions, so a process of any user may connect.
            if _read_peer_user(channel) == os.getuid():
                self._channel = channel
                self._listener.close()
            else:
                channel.close()
        return self._channel

    def _make_end_result(self, began_at: float) -> CompletedCommand:
        """Return the end of the process as the result of its unanswered command.

        Raises the exception that ended the process, if there was one, and `OSError` if the machine
        had no memory for the answer.
        """
        if isinstance(self._end, BaseException):
            raise self._end
        end = self._end or CompletedCommand(_OWN_FAILURE, b"", seconds=0.0, peak_rss=0)
        if end.status == _NO_MEMORY:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        # Status 0 would be taken for a command that succeeded.
        status = end.status or _OWN_FAILURE
        seconds = time.monotonic() - began_at
        return CompletedCommand(status, end.output, seconds, end.peak_rss)


def serve_requests(address: str, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Connect to an abstract socket, and answer requests until the other side closes it."""
    channel = socket.socket(socket.AF_UNIX)
    channel.connect("\0" + address)  # with the NUL no file is needed
    with channel, channel.makefile("rb") as requests:
        while len(head := requests.read(FRAME.size)) == FRAME.size:
            (length,) = FRAME.unpack(head)
            # A NUL ends the working directory, which is not used here, and the one argument.
            _, request, _ = requests.read(length).split(b"\0")
            output = json.dumps(answer(json.loads(request))).encode()
            # Exit status 0; the peak of memory is not known, 0; another request may follow.
            try:
                channel.sendall(ANSWER.pack(0, 0, True, len(output)) + output)
            except OSError as error:
                # The command is not to blame. Any other error may be: it can close the socket.
                if error.errno in (errno.ENOMEM, errno.ENOBUFS):
                    sys.exit(_NO_MEMORY)
                raise


def _read_peer_user(channel: socket.socket) -> int:
    """Return the user id of the process at the other end, at the time when it connected."""
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return int(user)


def _count_seconds_until(deadline: float | None) -> float | None:
    """Return the seconds until a deadline, at most `_MAX_WAIT`; None without a deadline. Raises
    `TimeoutError` after it."""
    if deadline is None:
        return None
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return min(seconds, _MAX_WAIT)


def _read_bytes(channel: socket.socket, size: int, deadline: float | None) -> bytes:
    """Return exactly `size` bytes. Raises `EOFError`, `TimeoutError` and `OSError`."""
    received = bytearray()
    while len(received) < size:
        channel.settimeout(_count_seconds_until(deadline))
        data = channel.recv(min(size - len(received), 1 << 20))
        if not data:
            raise EOFError
        received += data
    return bytes(received)
