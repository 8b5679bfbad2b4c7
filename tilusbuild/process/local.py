"""Run real processes: a spawn server (`warden.py`), started by the first command, starts them.

`subprocess` is not used, for four reasons. A fork of a large process is slow. PR_SET_PDEATHSIG
follows the thread that forked, so that it cannot kill children together with this process. Orphans
of a compiler would become children of init. A Ctrl-C in the terminal would reach the compilers
first.
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
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

from tilusbuild.process import warden
from tilusbuild.process.base import (
    CancelledError,
    Command,
    CompletedCommand,
    RunnerLostError,
    shut_down,
    start_thread,
)

_CHANNEL = 3
"""The descriptor of the socket in the warden."""

# Attempts, 10 ms apart, to kill the processes of a dead warden: one may be uninterruptible.
_MAX_SWEEPS = 500
# Seconds to wait for a killed command: it may be uninterruptible.
_SECONDS_TO_DIE = 5.0


class _PendingCommand:
    """A running command. The reader thread sets `frame`, the answer, and then calls `mark_end`.

    A command that ends without a frame has lost its warden.
    """

    __slots__ = ("_pieces", "cancelled", "frame", "scope")

    def __init__(self, scope: Scope | None) -> None:
        self._pieces: SimpleQueue[bytes | None] = SimpleQueue()
        self.frame: tuple[int, bytes] | None = None
        self.cancelled = False
        self.scope = scope

    def add_output(self, piece: bytes) -> None:
        self._pieces.put(piece)

    def mark_end(self) -> None:
        self._pieces.put(None)

    def wait_for_killed(self) -> None:
        """Wait for the end of a killed command, but at most `_SECONDS_TO_DIE`."""
        deadline = time.monotonic() + _SECONDS_TO_DIE
        with contextlib.suppress(Empty):
            # Pieces of output come before the end, which is None.
            while self._pieces.get(timeout=max(0.0, deadline - time.monotonic())) is not None:
                pass

    def wait_for_end(self, on_output: Callable[[bytes], None] | None) -> None:
        """Wait for the end of the command. Call `on_output` with its output meanwhile."""
        while (piece := self._pieces.get()) is not None:
            if on_output is not None:
                on_output(piece)


class Scope:
    """A runner for some of a `LocalRunner`'s commands, which are cancelled together.

    After `cancel` each further `run` of the scope raises `CancelledError`.
    """

    def __init__(self, runner: LocalRunner) -> None:
        self._runner = runner
        self.cancelled = False

    def run(self, command: Command) -> CompletedCommand:
        """Run a command as `LocalRunner.run` does."""
        return self._runner.run(command, self)

    def cancel(self) -> None:
        """Kill the process groups of this scope's commands. The runner's other commands go on."""
        self._runner.cancel(self)


class LocalRunner:
    """Runs commands on this machine, also from several threads at once. A context manager.

    After `cancel` the runner runs further commands; after `close` each `run` raises
    `CancelledError`. No method may be called in a signal handler, which may have interrupted
    another method that holds the lock.
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
        self._tokens_confirmed = threading.Event()
        """Set after the warden has confirmed that it holds the tokens, and after its death."""
        self._pause_count = 0
        self._paused = threading.Event()
        """Set after the warden has confirmed a pause, and after its death."""
        self._loss_reason: str | None = None

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def command_count(self) -> int:
        """The number of commands so far."""
        return self._last_number

    def open_scope(self) -> Scope:
        """Return a runner whose commands can be cancelled without this runner's other commands."""
        return Scope(self)

    def run(self, command: Command, scope: Scope | None = None) -> CompletedCommand:
        """Run a command as `Runner.run` does. The first one starts the warden.

        The `filename` of an `OSError` is the program or the working directory. Raises
        `RunnerLostError` if the warden was killed. Another exception while waiting, as of Ctrl-C,
        kills the command.
        """
        payload = _pack_request(command)
        with self._lock:
            number, pending = self._submit_request(payload, scope)
        try:
            pending.wait_for_end(command.on_output)
        except BaseException:
            # A Ctrl-C, say: the caller needs no result. It removes its directory next, where the
            # command must not write afterwards.
            with self._lock:
                self._send_frame(warden.KILL, number)
            pending.wait_for_killed()
            raise
        return self._unpack_result(pending, command)

    def deposit_tokens(self, path: str, tokens: bytes) -> None:
        """Have the warden write these tokens to `path` if this process is killed.

        They replace the tokens of an earlier call; with empty `tokens` the warden holds none.
        The first tokens after none are waited for, until the warden has confirmed them. Do nothing
        in a closed or lost runner, or in a fork. This is a `jobserver.Note`.
        """
        with self._lock:
            if self._closed or self._loss_reason is not None or self._owner != os.getpid():
                return
            if not tokens:
                # The warden closes `path` now: the next tokens wait for another confirmation.
                self._tokens_confirmed.clear()
            elif self._socket is None:
                self._start_warden()
            self._send_frame(warden.HOLD, 0, os.fsencode(path) + b"\0" + tokens)
        if tokens:
            self._tokens_confirmed.wait()

    def cancel(self, scope: Scope | None = None) -> None:
        """Kill all running process groups, or those of a scope.

        Each of their `run` calls in progress raises `CancelledError`.
        """
        with self._lock:
            if scope is not None:
                scope.cancelled = True
            for number, pending in self._pending.items():
                if scope is None or pending.scope is scope:
                    pending.cancelled = True
                    self._send_frame(warden.KILL, number)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Stop all commands while any thread is in such a block, those that start meanwhile, too.
        Raises `OSError` if the warden cannot be started."""
        with self._lock:
            if self._socket is None and not self._closed:
                self._start_warden()
            if not self._pause_count:
                self._paused.clear()
                self._send_frame(warden.PAUSE, 0)
            self._pause_count += 1
            is_running = not self._closed and self._loss_reason is None
        try:
            if is_running:
                self._paused.wait()
            yield
        finally:
            with self._lock:
                self._pause_count -= 1
                if not self._pause_count:
                    self._send_frame(warden.RESUME, 0)

    def close(self) -> None:
        """Cancel all commands, end the warden, and wait until all its processes are gone."""
        with self._lock:
            self._closed = True
            for pending in self._pending.values():
                pending.cancelled = True
            if self._socket is None or self._owner != os.getpid():
                return
            shut_down(self._socket, socket.SHUT_WR)
        if self._reader is not None:
            self._reader.join()
        self._socket.close()

    def _submit_request(self, payload: bytes, scope: Scope | None) -> tuple[int, _PendingCommand]:
        """Send a command to the warden, which is started if there is none. Return the command's
        number and its pending result. The caller holds the lock.

        Raises `CancelledError`, `RunnerLostError`, and `RuntimeError` in a fork.
        """
        if self._closed or (scope is not None and scope.cancelled):
            raise CancelledError
        if self._loss_reason is not None:
            raise RunnerLostError(self._loss_reason)
        if self._owner != os.getpid():
            raise RuntimeError("a LocalRunner does not survive a fork: make one in the child")
        if self._socket is None:
            self._start_warden()
        self._last_number += 1
        pending = self._pending[self._last_number] = _PendingCommand(scope)
        self._send_frame(warden.RUN, self._last_number, payload)
        return self._last_number, pending

    def _send_frame(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Send a request to the warden, if it was started. If that fails, set `_loss_reason`: the
        warden ends, and all commands with it. An `OSError` is not raised."""
        frame = memoryview(warden.HEADER.pack(len(payload), kind, number) + payload)
        if self._socket is None:
            return
        sent = 0
        try:
            while sent < len(frame):
                sent += self._socket.send(frame[sent:])
        except BaseException as error:
            # After half a frame the warden cannot read any other, so a later request to kill a
            # command would get lost. Instead the socket is closed, which ends the warden. The
            # reader thread then ends all commands.
            self._loss_reason = (
                self._loss_reason or f"the process that starts compilers does not answer: {error}"
            )
            shut_down(self._socket)
            if not isinstance(error, OSError):
                raise

    def _start_warden(self) -> None:
        """Start the warden, and the thread that reads its answers. Raises `OSError`."""
        own_end, warden_end = socket.socketpair()
        # The warden gets /dev/null as stderr: if it fails, this process reports it.
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "warden.py")
        argv = [sys.executable, "-I", "-S", script, str(_CHANNEL), str(self._owner)]
        try:
            # The warden's end gets a number above `_CHANNEL`: the actions below replace the
            # descriptors up to there, and might replace the end itself.
            end = fcntl.fcntl(warden_end, fcntl.F_DUPFD_CLOEXEC, _CHANNEL + 1)
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
            own_end.close()
            raise
        finally:
            warden_end.close()
        try:
            self._reader = start_thread(self._read_answers, own_end)
        except OSError:
            # The warden ends when its socket is closed.
            own_end.close()
            self._wait_for_warden()
            raise
        self._socket = own_end

    def _read_answers(self, channel: socket.socket) -> None:
        """Handle the warden's frames until it ends, on the reader thread; then end all commands."""
        received = bytearray()
        while True:
            try:
                data = channel.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                # The warden has ended, or ends now because of this.
                shut_down(channel)
                break
            received += data
            for kind, number, payload in warden.pop_frames(received):
                self._handle_frame(kind, number, payload)
        self._handle_warden_end()

    def _handle_frame(self, kind: int, number: int, payload: bytes) -> None:
        """Pass a frame to its waiting thread: tokens are held, a command printed or has ended."""
        if kind in (warden.HELD, warden.PAUSED):
            (self._tokens_confirmed if kind == warden.HELD else self._paused).set()
            return
        if kind == warden.PRINTED:
            with self._lock:
                pending = self._pending[number]
            pending.add_output(payload)
            return
        with self._lock:
            pending = self._pending.pop(number)
        pending.frame = kind, payload
        pending.mark_end()

    def _handle_warden_end(self) -> None:
        """End all pending commands. If the warden failed, kill the rest of its session before: only
        at a regular end has it killed its children itself."""
        exit_status = self._wait_for_warden()
        has_failed = exit_status != 0
        # The sweep is repeated: a child may start another one while it is being killed.
        for _ in range(_MAX_SWEEPS if has_failed else 0):
            survivors = [
                pid for pid, _, session in warden.list_processes() if session == self._warden
            ]
            if not survivors:
                break
            warden.kill_each(survivors)
            time.sleep(0.01)
        with self._lock:
            if not self._closed and (has_failed or self._loss_reason is None):
                cause = f"signal {-exit_status}" if exit_status < 0 else f"status {exit_status}"
                self._loss_reason = (
                    f"the process that starts compilers ended unexpectedly ({cause})"
                )
            pending_commands = list(self._pending.values())
            self._pending.clear()
        # A dead warden confirms nothing: a thread that waits for it must go on.
        self._tokens_confirmed.set()
        self._paused.set()
        for pending in pending_commands:
            pending.mark_end()

    def _wait_for_warden(self) -> int:
        """Wait for the warden. Return its exit status: 0 after a good end, and if a signal has
        killed it, minus the signal's number."""
        try:
            _, wait_status = os.waitpid(self._warden, 0)
        except ChildProcessError:
            # Other code of this process has waited for all children: the status is lost.
            return 0
        return os.waitstatus_to_exitcode(wait_status)

    def _unpack_result(self, pending: _PendingCommand, command: Command) -> CompletedCommand:
        """Return the result of an ended command. Raises `CancelledError`, `RunnerLostError`, and
        `OSError` if its program could not be started."""
        if pending.cancelled:
            raise CancelledError
        if pending.frame is None:
            raise RunnerLostError(self._loss_reason or "the runner was closed")
        kind, payload = pending.frame
        if kind == warden.REFUSED:
            (error_number,) = warden.REFUSAL.unpack_from(payload)
            path = os.fsdecode(payload[warden.REFUSAL.size :])
            raise OSError(error_number, os.strerror(error_number), path or command.argv[0])
        status, seconds, peak_rss, timed_out = warden.RESULT.unpack_from(payload)
        output = payload[warden.RESULT.size :]
        return CompletedCommand(status, output, seconds, peak_rss, timed_out)


def _pack_request(command: Command) -> bytes:
    """Return a command as the payload of a `RUN` frame, which `warden.py` describes.

    Raises `ValueError` for arguments and variables that the system cannot pass to a process.
    """
    if not command.argv:
        raise ValueError("a command needs at least the program's name")
    variables = [f"{name}={value}" for name, value in command.env.items()]
    # Without any path there is no sandbox.
    readable = () if command.sandbox is None else command.sandbox.read
    writable = () if command.sandbox is None else command.sandbox.write
    texts = (command.cwd, *command.argv, *variables, *readable, *writable)
    strings = [os.fsencode(text) for text in texts]
    if any(b"\0" in string for string in strings):
        raise ValueError("a command's strings cannot hold NUL")
    numbers = warden.REQUEST.pack(
        command.timeout or 0.0,
        command.output_limit,
        command.on_output is not None,
        command.nice,
        len(command.argv),
        len(variables),
        len(readable),
        len(writable),
    )
    return numbers + b"\0".join(strings) + b"\0"


def name_signal(status: int) -> str | None:
    """Return the name of the signal in a negative status ("SIGSEGV"), else None."""
    if status >= 0:
        return None
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
