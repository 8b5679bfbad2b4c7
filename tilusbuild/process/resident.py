"""Resident processes: commands of one program are answered by processes that have it loaded.

Loading a compiler that is a library costs more than a small compile. So the ordinary runner starts
one process for each command that runs at the same time; it connects to our socket and answers one
request after the other (`toolchain/nvrtc_command.py` is the other side, and `tune/bench/worker.py`
that of a single process). The interface and its guarantees are those of `Runner`:

- a process that dies takes one command with it, whose end is then that process's own; the next
  command gets another process;
- a command that is late or cancelled is killed with its process, which is the runner's: nothing
  outlives it, and a Ctrl-C in the terminal reaches none of them;
- peak memory is reported for each command.

Why processes and not threads of ours: a compiler that crashes, hangs or meets the OOM killer must
not take the builder with it. Why not a fork for each command: the kernel copies and faults in
some 3,000 pages of the library again, 8 ms of CPU beside the 25 ms that a small kernel takes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from dataclasses import replace

from tilusbuild.process.base import CancelledError, Command, CompletedCommand, start_thread
from tilusbuild.process.local import LocalRunner, Scope

FRAME = struct.Struct("<I")
"""The length of a request: a working directory and arguments, each ending in NUL."""
ANSWER = struct.Struct("<iQ?I")
"""Exit status, peak resident set in bytes, whether the process goes on, length of the output."""

_CREDENTIALS = struct.Struct("iII")
"""struct ucred: process, user, group."""

_SECONDS_TO_START = 60.0
_SECONDS_TO_END = 5.0
"""How long a process may take to end after it has closed its connection."""

_OWN_FAILURE = 70
"""The status of a command whose process ended without an answer and without a signal."""


class ResidentPool:
    """The processes of one program, `argv`, which must understand `--serve ADDRESS`."""

    def __init__(self, runner: LocalRunner, argv: tuple[str, ...]) -> None:
        self.argv = argv
        self._runner = runner
        self._guard = threading.Lock()
        self._idle: list[Resident] = []
        self._closed = False

    def serves(self, command: Command) -> bool:
        """Return whether a command is one for these processes."""
        return command.argv[: len(self.argv)] == self.argv

    def runner(self, inner: Scope, before: tuple[str, ...] = ()) -> ResidentRunner:
        """Return a runner for one job; `inner` runs the commands of other programs. `before` are
        words to put before those of each request."""
        return ResidentRunner(self, inner, before)

    def close(self) -> None:
        """End the idle processes, and keep none from now on. Runners cancel the busy ones."""
        with self._guard:
            self._closed = True
        self.drain()

    def drain(self) -> None:
        """End the idle processes: before the runner below is cancelled, so that no command is given
        to a process that is about to be killed."""
        with self._guard:
            idle, self._idle = self._idle, []
        for resident in idle:
            resident.release()

    def take(self, command: Command) -> Resident:
        """Return an idle process, or start one in the way of `command`, which is the same for all
        commands of a pool. Raises `OSError` and `CancelledError`."""
        while (resident := self._waiting()) is not None:
            if not resident.over.is_set():
                return resident
            resident.release()
        return Resident(self._runner.scope(), self.argv, command)

    def give_back(self, resident: Resident) -> None:
        """Take back a process that can answer further requests."""
        with self._guard:
            if not self._closed:
                self._idle.append(resident)
                return
        resident.release()

    def _waiting(self) -> Resident | None:
        with self._guard:
            if self._closed:
                raise CancelledError
            return self._idle.pop() if self._idle else None


class ResidentRunner:
    """A `Runner` for the commands of one job."""

    def __init__(self, pool: ResidentPool, inner: Scope, before: tuple[str, ...]) -> None:
        self._pool = pool
        self._before = before
        self._inner = inner
        self._guard = threading.Lock()
        self._working: set[Resident] = set()
        self._cancelled = False

    def run(self, command: Command) -> CompletedCommand:
        """As `LocalRunner.run`."""
        if not self._pool.serves(command):
            return self._inner.run(command)
        resident = self._pool.take(command)
        with self._guard:
            self._working.add(resident)
            if self._cancelled:
                resident.kill()
        stays = False
        try:
            words = (*self._before, *command.argv[len(self._pool.argv) :])
            finished, stays = resident.ask(command, words)
        finally:
            with self._guard:
                self._working.discard(resident)
            if stays:
                self._pool.give_back(resident)
            else:
                resident.release()
        return finished

    def cancel(self) -> None:
        """Kill the processes of these commands now, and for good."""
        with self._guard:
            self._cancelled = True
            working = tuple(self._working)
        for resident in working:
            resident.kill()
        self._inner.cancel()


class Resident:
    """One process of `argv`, which is started in the way of `like`. `over` is set when it has
    ended. Raises `OSError` when there can be no thread."""

    def __init__(self, scope: Scope, argv: tuple[str, ...], like: Command) -> None:
        self.over = threading.Event()
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
            start_thread(self._live, command)
        except OSError:
            self._listener.close()
            raise

    def _live(self, command: Command) -> None:
        try:
            self._end = self._scope.run(command)
        except BaseException as error:
            self._end = error
        self.over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes a thread in accept()
        self._listener.close()

    def kill(self) -> None:
        """Kill the process."""
        self._scope.cancel()

    def release(self) -> None:
        """As `kill`, and close the connection: the process is not used any more."""
        self.kill()
        if self._channel is not None:
            self._channel.close()

    def ask(self, command: Command, words: tuple[str, ...]) -> tuple[CompletedCommand, bool]:
        """Return a command's result, and whether the process can answer further requests.

        Raises `CancelledError`, `OSError` when it cannot be started or asked, `RunnerLostError`.
        """
        strings = [os.fsencode(word) for word in (command.cwd, *words)]
        request = b"\0".join(strings) + b"\0"
        began = time.monotonic()
        limit = command.timeout
        try:
            # Python's start and the library's load do not count against the command's limit.
            channel = self._connected(limit and began + max(limit, _SECONDS_TO_START))
            late = limit and time.monotonic() + limit
            channel.sendall(FRAME.pack(len(request)) + request)
            head = _read(channel, ANSWER.size, late)
            status, peak, stays, length = ANSWER.unpack(head)
            output = _read(channel, length, late)
        except TimeoutError:
            self.kill()
            self.over.wait()
            seconds = time.monotonic() - began
            return CompletedCommand(-9, b"", seconds, self._peak(), timed_out=True), False
        except (OSError, EOFError) as error:
            if not self.over.wait(_SECONDS_TO_END):
                self.kill()
                self.over.wait()
                if isinstance(error, OSError):  # it was well: this machine has no room to ask it
                    raise
            return self._last(began), False
        kept = output[: command.output_limit]
        return CompletedCommand(status, kept, time.monotonic() - began, peak), stays

    def _connected(self, late: float | None) -> socket.socket:
        while self._channel is None:
            self._listener.settimeout(_left(late))
            channel, _ = self._listener.accept()
            if _user(channel) == os.getuid():
                self._channel = channel
                self._listener.close()
            else:  # abstract sockets have no permissions, and all users can list their names
                channel.close()
        return self._channel

    def _last(self, began: float) -> CompletedCommand:
        """Return the end of the process as the result of the command that it did not answer."""
        if isinstance(self._end, BaseException):
            raise self._end
        end = self._end or CompletedCommand(_OWN_FAILURE, b"", 0.0, 0)
        status = end.status if end.status < 0 else end.status or _OWN_FAILURE
        return CompletedCommand(status, end.output, time.monotonic() - began, end.peak_rss)

    def _peak(self) -> int:
        return self._end.peak_rss if isinstance(self._end, CompletedCommand) else 0


def _user(channel: socket.socket) -> int:
    """Return the user of the process at the other end, as the kernel saw it connect."""
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return int(user)


_MAX_WAIT = 24 * 86400.0
"""Seconds: a socket's time limit is an int of milliseconds."""


def _left(late: float | None) -> float | None:
    """Return the seconds until a time limit, None without one. Raises `TimeoutError`."""
    if late is None:
        return None
    left = late - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return min(left, _MAX_WAIT)


def _read(channel: socket.socket, size: int, late: float | None) -> bytes:
    """Return the next `size` bytes. Raises `EOFError`, `TimeoutError` and `OSError`."""
    received = bytearray()
    while len(received) < size:
        channel.settimeout(_left(late))
        data = channel.recv(min(size - len(received), 1 << 20))
        if not data:
            raise EOFError
        received += data
    return bytes(received)
