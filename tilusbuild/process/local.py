"""The runner of real processes: it asks a spawn server (`warden.py`) to start them.

Why not `subprocess` from our own threads: a fork of a large process is slow; PR_SET_PDEATHSIG could
not kill the children with this process, since it follows the thread that forked; a compiler's
orphans would be reparented to init; and a Ctrl-C in the terminal would reach compilers before us.
The server is started by the first command; a runner that runs nothing costs nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from tilusbuild.process import warden
from tilusbuild.process.base import (
    CancelledError,
    Command,
    CompletedCommand,
    RunnerLostError,
    start_thread,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_CHANNEL = 3
"""The warden's descriptor of its end of the socket."""

_SWEEPS = 500
"""How often, 10 ms apart, a killed warden's processes are killed: one may be uninterruptible."""
_DYING = 5.0
"""Seconds that a killed command has to end: one may be uninterruptible."""


class _PendingCommand:
    """A command in flight. The reader thread sets `frame` and calls `end`; without `frame` the
    warden has died."""

    __slots__ = ("_pieces", "cancelled", "frame", "scope")

    def __init__(self, scope: Scope | None) -> None:
        self._pieces: SimpleQueue[bytes | None] = SimpleQueue()
        self.frame: tuple[int, bytes] | None = None
        self.cancelled = False
        self.scope = scope

    def add(self, piece: bytes) -> None:
        self._pieces.put(piece)

    def end(self) -> None:
        self._pieces.put(None)

    def end_soon(self) -> None:
        """Wait until the end of what is killed, unless it cannot be."""
        late = time.monotonic() + _DYING
        with contextlib.suppress(Empty):
            while self._pieces.get(timeout=max(0.0, late - time.monotonic())) is not None:
                pass

    def wait(self, on_output: Callable[[bytes], None] | None) -> None:
        """Wait until the end, and call `on_output` with the output in the meantime."""
        while (piece := self._pieces.get()) is not None:
            if on_output is not None:
                on_output(piece)


class Scope:
    """A runner for some of a `LocalRunner`'s commands, which are cancelled together, and for good:
    after `cancel` every further `run` raises `CancelledError`."""

    def __init__(self, runner: LocalRunner) -> None:
        self._runner = runner
        self.cancelled = False

    def run(self, command: Command) -> CompletedCommand:
        """As `LocalRunner.run`."""
        return self._runner.run(command, self)

    def cancel(self) -> None:
        """Kill the process groups of these commands now; the runner's others go on."""
        self._runner.cancel(self)


class LocalRunner:
    """Runs commands on this machine; safe to call from many threads. Use as a context manager.

    No method may be called from a signal handler: the handler may have interrupted another one.
    After `cancel` the runner can run further commands; after `close` it raises `CancelledError`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[int, _PendingCommand] = {}
        self._last_number = 0
        self._owner = os.getpid()
        self._socket: socket.socket | None = None
        self._reader: threading.Thread | None = None
        self._warden = 0
        self._closed = False
        self._held = threading.Event()
        """Set while the warden has confirmed the tokens, or is dead."""
        self._lost: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def asked(self) -> int:
        """The number of commands so far."""
        return self._last_number

    def scope(self) -> Scope:
        """Return a runner whose commands can be cancelled while this one's others go on."""
        return Scope(self)

    def run(self, command: Command, scope: Scope | None = None) -> CompletedCommand:
        """Run to the end.

        Raises `CancelledError`; `OSError` when the program cannot be started, with the program or
        the working directory as its `filename`; `RunnerLostError` when the spawn server was killed.
        """
        payload = _request(command)
        with self._lock:
            number, pending = self._submit(payload, scope)
        try:
            pending.wait(command.on_output)
        except BaseException:  # KeyboardInterrupt: the command is not wanted any more
            with self._lock:
                self._send(warden.KILL, number)
            # What it leaves in a directory of its caller's would come after that is removed.
            pending.end_soon()
            raise
        return self._answer(pending, command)

    def hold(self, path: str, tokens: bytes) -> None:
        """Have these bytes written to `path` should this process be killed: a `jobserver.Note`."""
        with self._lock:
            if self._closed or self._lost is not None or self._owner != os.getpid():
                return
            if not tokens:
                self._held.clear()
            elif self._socket is None:
                self._start()
            self._send(warden.HOLD, 0, os.fsencode(path) + b"\0" + tokens)
        if tokens:
            self._held.wait()

    def cancel(self, scope: Scope | None = None) -> None:
        """Kill every running process group now, or those of a scope; each `run` of them that is in
        progress raises `CancelledError`."""
        with self._lock:
            if scope is not None:
                scope.cancelled = True
            for number, pending in self._pending.items():
                if scope is None or pending.scope is scope:
                    pending.cancelled = True
                    if scope is not None:
                        self._send(warden.KILL, number)
            if scope is None and self._pending:
                self._send(warden.KILL, warden.EVERYTHING)

    def close(self) -> None:
        """As `cancel`, and end the spawn server. When it returns, none of its processes is left."""
        with self._lock:
            self._closed = True
            for pending in self._pending.values():
                pending.cancelled = True
            if self._socket is None or self._owner != os.getpid():
                return
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        if self._reader is not None:
            self._reader.join()
        self._socket.close()

    def _submit(self, payload: bytes, scope: Scope | None) -> tuple[int, _PendingCommand]:
        if self._closed or (scope is not None and scope.cancelled):
            raise CancelledError
        if self._lost is not None:
            raise RunnerLostError(self._lost)
        if self._owner != os.getpid():
            raise RuntimeError("a LocalRunner does not survive a fork: make one in the child")
        if self._socket is None:
            self._start()
        self._last_number += 1
        pending = self._pending[self._last_number] = _PendingCommand(scope)
        self._send(warden.RUN, self._last_number, payload)
        return self._last_number, pending

    def _send(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Send a request. What cannot be sent ends the warden, and with it every command."""
        frame = memoryview(warden.HEADER.pack(len(payload), kind, number) + payload)
        if self._socket is None:
            return
        sent = 0
        try:
            while sent < len(frame):
                sent += self._socket.send(frame[sent:])
        except BaseException as error:
            # Half a frame makes garbage of all that follows, and a cancellation has to arrive. The
            # warden ends with its socket; the reader thread notices, and ends what is pending.
            self._lost = self._lost or f"the process that starts compilers does not answer: {error}"
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            if not isinstance(error, OSError):
                raise

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        # It gets no stderr of ours: should it fail, it is for us to say so.
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "warden.py")
        argv = [sys.executable, "-I", "-S", script, str(_CHANNEL), str(self._owner)]
        try:
            # Above the descriptors that the actions below replace, whatever this process has open.
            end = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, _CHANNEL + 1)
            try:
                actions = (
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, end, _CHANNEL),
                )
                self._warden = os.posix_spawn(
                    sys.executable, argv, {}, file_actions=actions, setsid=True, setsigmask=()
                )
            finally:
                os.close(end)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        try:
            self._reader = start_thread(self._read_answers, ours)
        except OSError:
            ours.close()  # which ends the warden
            self._wait_for_warden()
            raise
        self._socket = ours

    def _read_answers(self, channel: socket.socket) -> None:
        received = bytearray()
        while True:
            try:
                data = channel.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                with contextlib.suppress(OSError):
                    channel.shutdown(socket.SHUT_RDWR)  # the warden ends, if it has not
                break
            received += data
            while len(received) >= warden.HEADER.size:
                length, kind, number = warden.HEADER.unpack_from(received)
                end = warden.HEADER.size + length
                if len(received) < end:
                    break
                payload = bytes(received[warden.HEADER.size : end])
                del received[:end]
                self._take(kind, number, payload)
        self._warden_ended()

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if kind == warden.HELD:
            self._held.set()
            return
        if kind == warden.PRINTED:
            with self._lock:
                pending = self._pending[number]
            pending.add(payload)
            return
        with self._lock:
            pending = self._pending.pop(number)
        pending.frame = kind, payload
        pending.end()

    def _warden_ended(self) -> None:
        """End all pending commands; first, if the warden was killed, its session."""
        status = self._wait_for_warden()
        for _ in range(_SWEEPS if status else 0):
            left = [pid for pid, _, session in warden.processes() if session == self._warden]
            if not left:
                break
            warden.kill_each(left)
            time.sleep(0.01)
        with self._lock:
            if not self._closed and (status or self._lost is None):
                how = f"signal {-status}" if status < 0 else f"status {status}"
                self._lost = f"the process that starts compilers ended unexpectedly ({how})"
            waiting = list(self._pending.values())
            self._pending.clear()
        self._held.set()
        for pending in waiting:
            pending.end()

    def _wait_for_warden(self) -> int:
        """Return the exit status of the warden, which is about to end; minus the signal."""
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self._warden, 0)[1])
        except ChildProcessError:
            return 0

    def _answer(self, pending: _PendingCommand, command: Command) -> CompletedCommand:
        if pending.cancelled:
            raise CancelledError
        if pending.frame is None:
            raise RunnerLostError(self._lost or "the runner was closed")
        kind, payload = pending.frame
        if kind == warden.REFUSED:
            (number,) = warden.REFUSAL.unpack_from(payload)
            subject = os.fsdecode(payload[warden.REFUSAL.size :])
            raise OSError(number, os.strerror(number), subject or command.argv[0])
        status, seconds, peak_rss, timed_out = warden.RESULT.unpack_from(payload)
        return CompletedCommand(
            status=status,
            output=payload[warden.RESULT.size :],
            seconds=seconds,
            peak_rss=peak_rss,
            timed_out=timed_out,
        )


def _request(command: Command) -> bytes:
    """Return the payload of a `RUN` frame. Raises `ValueError` for what no process can be given."""
    if not command.argv:
        raise ValueError("a command needs at least the program's name")
    variables = [f"{name}={value}" for name, value in command.env.items()]
    for name in command.env:
        if not name or "=" in name:
            raise ValueError(f"not a name of an environment variable: {name!r}")
    held = command.sandbox
    sandbox = (held.read, held.write) if held is not None else ((), ())
    words = (command.cwd, *command.argv, *variables, *(path for each in sandbox for path in each))
    strings = [os.fsencode(word) for word in words]
    if any(b"\0" in s for s in strings):
        raise ValueError("a command's strings cannot hold NUL")
    numbers = warden.REQUEST.pack(
        command.timeout or 0.0,
        command.output_limit,
        command.on_output is not None,
        command.nice,
        len(command.argv),
        len(variables),
        *map(len, sandbox),
    )
    return numbers + b"\0".join(strings) + b"\0"


def signal_name(status: int) -> str | None:
    """Return the name of the signal that a negative status stands for ("SIGSEGV"), else None."""
    if status >= 0:
        return None
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
