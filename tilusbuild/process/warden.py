"""The spawn server: a process of its own that starts compilers, and ends with the builder.

`local.LocalRunner` starts this file as a script (`python -I -S warden.py`, standard library only)
in a session of its own, so that a terminal's Ctrl-C reaches neither it nor a compiler. It talks
over one socket. What it guarantees:

- when the socket closes or its client dies, however that happens, everything it ever started is
  killed, and only then does it end;
- a command leads its own process group, and the group is killed when its leader ends or is late;
- what escapes the group (a daemon with its own session) falls to the warden, which is a
  subreaper, and is killed as soon as no command runs;
- tokens of a jobserver that the client held when it died are given back, after all of that;
- should the warden itself be killed, the kernel kills the leaders (PR_SET_PDEATHSIG), and the
  client the rest of the session.

It is single-threaded, because PR_SET_PDEATHSIG follows the thread that forked, and small, because a
process's peak memory starts at that of the process it was forked from.

A frame is `HEADER` (payload length, kind, command number) and a payload. `RUN` carries `REQUEST`
and strings that end in NUL: working directory, arguments, `NAME=value` of the whole environment,
the paths that a sandbox lets it read and change (neither: there is no sandbox). `HOLD` carries the
path that tokens are written to, a NUL, and the tokens that the client has now; `HELD` confirms
them. `PAUSE` stops all commands, later ones too, until `RESUME`; `PAUSED` confirms it.

The price is a second Python process for each build and a frame each way for each command. Why a
process group or PR_SET_PDEATHSIG alone is not enough: docs/design-notes.md.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

HEADER = struct.Struct("<IBQ")
REQUEST = struct.Struct("<dQ?BIIII")
"""Time limit in seconds (0: none), output limit in bytes, whether to report output as it comes,
niceness, number of arguments, of variables, of a sandbox's paths to read and to change."""
RESULT = struct.Struct("<idQ?")
"""Exit status or minus the signal, seconds, peak resident set in bytes, timed out; the output
follows."""
REFUSAL = struct.Struct("<i")
"""The errno with which a start failed; the path that it is about follows."""

RUN, KILL, FINISHED, REFUSED, PRINTED, HOLD, HELD = 1, 2, 3, 4, 5, 6, 7
PAUSE, RESUME, PAUSED = 8, 9, 10

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CHUNK = 1 << 16
# Seconds: poll() takes no more milliseconds than an int holds, which is 25 days.
_MAX_WAIT = 86400.0
# Signals that the warden ignores: it ends only with its socket.
_SURVIVED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ)


class DisconnectedError(Exception):
    """The client has closed the socket or died."""


def pop_frames(received: bytearray) -> Iterator[tuple[int, int, bytes]]:
    """Remove the complete frames from `received`. Yield each one's kind, number and payload."""
    while len(received) >= HEADER.size:
        length, kind, number = HEADER.unpack_from(received)
        end = HEADER.size + length
        if len(received) < end:
            return
        payload = bytes(received[HEADER.size : end])
        del received[:end]
        yield kind, number, payload


class CapturedOutput:
    """The output of a process in bounded memory: of long output the first and the last half."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // 2
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add_data(self, data: bytes) -> None:
        """Add a piece of output: to the head until that is full, then to the tail."""
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        # The tail is trimmed only now and then, as a trim moves all of it.
        if len(self._tail) > 2 * self._tail_limit + _CHUNK:
            self._trim_tail()

    def _trim_tail(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess

    def join_pieces(self) -> bytes:
        """Return the kept output, with a line in the middle that counts the bytes left out."""
        self._trim_tail()
        if not self._dropped:
            return bytes(self._head + self._tail)
        gap = f"\n[... {self._dropped} bytes left out ...]\n"
        return bytes(self._head + gap.encode() + self._tail)


class RunningChild:
    """A running command. `pid` is also its process group. `pipe` is -1 after it was closed."""

    def __init__(self, number: int, pid: int, pipe: int, errors: int, limit: int) -> None:
        self.number = number
        self.pid = pid
        self.pipe = pipe
        self.errors = errors
        self.output = CapturedOutput(limit)
        self.reports = False
        self.started = time.monotonic()
        self.deadline: float | None = None
        self.timed_out = False


class Warden:
    """The spawn server. `channel` is its socket, `client` the pid at the other end."""

    def __init__(self, channel: int, client: int) -> None:
        import ctypes

        self._prctl = ctypes.CDLL(None).prctl
        self._prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._pid = os.getpid()
        self._channel = channel
        self._received = bytearray()
        self._children: dict[int, RunningChild] = {}
        self._pipes: dict[int, RunningChild] = {}
        self._client_is_gone = False
        self._paused_at: float | None = None
        self._token_end = -1
        self._token_path = b""
        self._tokens = b""
        self._oom_score = choose_oom_score()
        self._null = os.open(os.devnull, os.O_RDONLY)
        self._poller = select.poll()
        self._poller.register(channel, select.POLLIN)
        self._wakeup = self._wake_on_child_death()
        self._client_handle = self._watch_client(client)

    def _wake_on_child_death(self) -> int:
        """Return a descriptor that becomes readable when a child ends. Survive the signals
        `_SURVIVED`."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        # Handlers that do nothing, and not SIG_IGN: an exec resets handlers, and keeps SIG_IGN.
        # A shell lets background processes ignore a Ctrl-\; the compilers should not inherit this.
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        for number in (*_SURVIVED, signal.SIGCHLD):
            signal.signal(number, lambda _number, _frame: None)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self._poller.register(read_end, select.POLLIN)
        return read_end

    def _watch_client(self, client: int) -> int:
        """Return a descriptor that becomes readable when the client dies, or -1 on an old system.

        The socket alone is not enough: a fork of the client may keep its other end open. Raises
        `DisconnectedError` if the client has died already.
        """
        try:
            handle = os.pidfd_open(client)
        except ProcessLookupError:
            raise DisconnectedError from None
        except (OSError, AttributeError):  # a kernel before 5.3, or a Python built on one
            return -1
        self._poller.register(handle, select.POLLIN)
        # As long as the client lives it is this process's parent. If it is not, the client has died
        # before, and `handle` may be that of another process with the same number.
        if os.getppid() != client:
            raise DisconnectedError
        return handle

    def serve_client(self) -> None:
        """Answer requests until the client is gone. Raises `DisconnectedError` then."""
        milliseconds = None
        while True:
            for descriptor, _ in self._poller.poll(milliseconds):
                if descriptor == self._channel:
                    self._receive_requests()
                elif descriptor == self._wakeup:
                    os.read(self._wakeup, _CHUNK)
                elif descriptor == self._client_handle:
                    raise DisconnectedError
                elif descriptor in self._pipes:
                    self._read_output(self._pipes[descriptor])
            self._reap_children()
            milliseconds = self._kill_late()

    def _kill_late(self) -> float | None:
        """Kill the commands that are late. Return the milliseconds until the next time limit; None
        without one."""
        # During a pause the time of commands stands still.
        now = time.monotonic() if self._paused_at is None else self._paused_at
        seconds = _MAX_WAIT
        has_limit = False
        for child in self._children.values():
            if child.deadline is None:
                continue
            has_limit = True
            remaining = child.deadline - now
            if remaining > 0:
                seconds = min(seconds, remaining)
            elif not child.timed_out:
                child.timed_out = True
                kill_group(child.pid)
        # poll() rounds down, and would return again and again just before the limit: so it waits
        # one millisecond more.
        return seconds * 1000 + 1 if has_limit else None

    def _receive_requests(self) -> None:
        """Read from the socket once, and handle the complete requests; without a client, only those
        of tokens. Raises `DisconnectedError`."""
        try:
            data = os.read(self._channel, _CHUNK)
        except OSError as error:
            raise DisconnectedError from error
        if not data:
            raise DisconnectedError
        self._received += data
        for kind, number, payload in pop_frames(self._received):
            if kind == HOLD:
                self._hold_tokens(payload)
            elif self._client_is_gone:
                continue
            elif kind == RUN:
                self._start_command(number, payload)
            elif kind == KILL:
                for child in self._children.values():
                    if child.number == number:
                        kill_group(child.pid)
            elif kind in (PAUSE, RESUME):
                self._pause_commands(pauses=kind == PAUSE)

    def _pause_commands(self, *, pauses: bool) -> None:
        """Stop all commands and confirm it, or continue them, with later time limits."""
        now = time.monotonic()
        for child in self._children.values():
            if child.deadline is not None and self._paused_at is not None:
                child.deadline += now - max(self._paused_at, child.started)
            kill_group(child.pid, signal.SIGSTOP if pauses else signal.SIGCONT)
        self._paused_at = now if pauses else None
        if pauses:
            self._send_frame(PAUSED, 0)

    def _send_frame(self, kind: int, number: int, *payload: bytes) -> None:
        """Send an answer, whose payload is given in pieces. Raises `DisconnectedError`."""
        body = b"".join(payload)
        view = memoryview(HEADER.pack(len(body), kind, number) + body)
        try:
            while view:
                view = view[os.write(self._channel, view) :]
        except OSError as error:
            raise DisconnectedError from error

    def _start_command(self, number: int, payload: bytes) -> None:
        """Start the command of a `RUN` payload. Answer `REFUSED` if no process can be made; that
        its program cannot run is known, and answered, only at its end."""
        timeout, output_limit, reports, nice, *counts = REQUEST.unpack_from(payload)
        cwd, *strings = payload[REQUEST.size :].split(b"\0")
        # The strings are those of four lists, one after the other; `counts` are their lengths.
        argv, environment, readable, writable = (
            [strings.pop(0) for _ in range(count)] for count in counts
        )
        confine: Callable[[], None] | None = None
        if readable or writable:
            # The module is loaded before the fork: a forked child should run as little as possible.
            confine = partial(load_landlock(), readable, writable)
        descriptors: list[int] = []
        try:
            descriptors += os.pipe()
            descriptors += os.pipe()
            # The command writes its output to `output`, which the warden reads from `pipe`. If the
            # program cannot run, the child writes why to `complaint`; that is read from `errors`.
            pipe, output, errors, complaint = descriptors
            pid = os.fork()
        except OSError as error:
            for descriptor in descriptors:
                os.close(descriptor)
            self._send_frame(REFUSED, number, REFUSAL.pack(error.errno or 0), argv[0])
            return
        if pid == 0:
            self._exec_command(cwd, argv, environment, output, complaint, nice, confine)
        os.close(output)
        os.close(complaint)
        with contextlib.suppress(OSError):
            # Parent and child both do this, so that the group exists whichever of them runs first.
            os.setpgid(pid, pid)
        os.set_blocking(pipe, False)
        os.set_blocking(errors, False)
        child = RunningChild(number, pid, pipe, errors, output_limit)
        child.reports = reports
        child.deadline = child.started + timeout if timeout > 0 else None
        self._children[pid] = child
        self._pipes[pipe] = child
        self._poller.register(pipe, select.POLLIN)
        if self._paused_at is not None:
            kill_group(pid, signal.SIGSTOP)

    def _exec_command(
        self,
        cwd: bytes,
        argv: list[bytes],
        environment: list[bytes],
        output: int,
        complaint: int,
        nice: int,
        confine: Callable[[], None] | None,
    ) -> None:
        """Replace the forked child by the command, in a process group of its own and with `output`
        as its stdout and stderr; or write errno and path of the error to `complaint`, and exit.

        Never returns. `confine` restricts the files that the child may open.
        """
        path_of_error = cwd
        try:
            os.setpgid(0, 0)
            self._prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            # If the warden died between the fork and the call above, no signal will come.
            if os.getppid() != self._pid:
                os._exit(127)
            os.dup2(self._null, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            if nice:
                os.nice(nice)
            if self._oom_score:
                with contextlib.suppress(OSError), open(_OOM_SCORE, "wb", buffering=0) as file:
                    file.write(self._oom_score)
            os.chdir(cwd)
            if confine is not None:
                confine()
            path_of_error = argv[0]
            variables = dict(variable.split(b"=", 1) for variable in environment)
            os.execvpe(argv[0], argv, variables)  # noqa: S606 - no shell is wanted
        except OSError as error:
            os.write(complaint, REFUSAL.pack(error.errno or 0) + path_of_error)
        finally:
            os._exit(127)

    def _read_output(self, child: RunningChild) -> bool:
        """Read a piece of output; close the pipe at its end. Return whether there was a piece."""
        try:
            data = os.read(child.pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._close_output(child)
            return False
        child.output.add_data(data)
        if child.reports:
            self._send_frame(PRINTED, child.number, data)
        return True

    def _close_output(self, child: RunningChild) -> None:
        """Close the pipe of a child's output, unless it is closed."""
        if child.pipe >= 0:
            self._poller.unregister(child.pipe)
            del self._pipes[child.pipe]
            os.close(child.pipe)
            child.pipe = -1

    def _reap_children(self) -> None:
        """Reap the children that have ended. After the last command kill what it left running."""
        while True:
            try:
                # WNOWAIT keeps the zombie until its group is killed, so that no other process can
                # get the number.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                break
            child = self._children.pop(ended.si_pid, None)
            if child is None:
                # An orphan of a command, which became a child of this subreaper.
                os.waitpid(ended.si_pid, 0)
            else:
                self._finish_command(child)
        if not self._children:
            kill_each(list_children())

    def _finish_command(self, child: RunningChild) -> None:
        """Kill the rest of a dead child's group, reap the child, and answer `FINISHED` with its
        result and output, or `REFUSED` if its program could not run."""
        kill_group(child.pid)
        _, wait_status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - child.started
        # The rest of the output is read, but at most 1 MiB of it: a process that has left the group
        # may never stop writing.
        for _ in range(1 + (1 << 20) // _CHUNK):
            if child.pipe < 0 or not self._read_output(child):
                break
        self._close_output(child)
        try:
            refusal = os.read(child.errors, _CHUNK)
        except BlockingIOError:
            refusal = b""
        os.close(child.errors)
        if refusal:
            self._send_frame(REFUSED, child.number, refusal)
            return
        exit_status = os.waitstatus_to_exitcode(wait_status)
        result = RESULT.pack(exit_status, seconds, usage.ru_maxrss * 1024, child.timed_out)
        self._send_frame(FINISHED, child.number, result, child.output.join_pieces())

    def _hold_tokens(self, payload: bytes) -> None:
        """Store the tokens of a `HOLD` payload, in place of earlier ones, and open their path if it
        is not open. Answer `HELD` after that. Without tokens, close the path."""
        # The payload is such as b"/proc/123/fd/7\0++". The path is one of the client's, and is gone
        # when the client has died: so it is opened now.
        path, _, self._tokens = payload.partition(b"\0")
        if self._token_end >= 0 and (path != self._token_path or not self._tokens):
            os.close(self._token_end)
            self._token_end = -1
        if self._token_end < 0 and self._tokens:
            with contextlib.suppress(OSError):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                self._token_end = os.open(path, flags)
                self._token_path = path
            self._send_frame(HELD, 0)

    def give_tokens_back(self) -> None:
        """Write the tokens that a dead client held back to make."""
        # The last `HOLD` may still be in the socket. Requests that follow it start nothing.
        self._client_is_gone = True
        os.set_blocking(self._channel, False)
        with contextlib.suppress(DisconnectedError):
            # Ends by `DisconnectedError`, when nothing more is in the socket.
            while True:
                self._receive_requests()
        if self._token_end >= 0 and self._tokens:
            with contextlib.suppress(OSError):
                os.write(self._token_end, self._tokens)

    def kill_everything(self) -> None:
        """Kill all descendants and wait until the last one is gone."""
        for pid in self._children:
            kill_group(pid)
        while True:
            kill_each(list_children())
            try:
                # Reap all children that have ended; 0 says that the others still run.
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.001)


@functools.cache
def load_landlock() -> Callable[[list[bytes], list[bytes]], None]:
    """Return the function that restricts a process's files."""
    # By its path: the warden stands alone, and `tilusbuild` is not on its path.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    restrict: Callable[[list[bytes], list[bytes]], None]
    restrict = importlib.import_module("landlock").restrict_files
    del sys.path[0]
    return restrict


_OOM_SCORE = "/proc/self/oom_score_adj"
# Added to a command's score, in thousandths of the memory. If memory runs out, the kernel should
# kill a compile, which is retried, and not the builder or the user's editor.
_OOM_SCORE_MARGIN = 300


def choose_oom_score() -> bytes:
    """Return the text that a command writes to its `oom_score_adj`; b"" if ours is unknown."""
    try:
        with open(_OOM_SCORE, "rb") as file:
            return b"%d" % min(1000, int(file.read()) + _OOM_SCORE_MARGIN)
    except (OSError, ValueError):
        return b""


def kill_group(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, number)


def kill_each(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def list_children() -> list[int]:
    """Return the pids of this process's children, with adopted orphans."""
    own_pid = os.getpid()
    try:
        with open(f"/proc/{own_pid}/task/{own_pid}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        # A kernel may be built without this file.
        return [pid for pid, parent, _ in list_processes() if parent == own_pid]


def list_processes() -> list[tuple[int, int, int]]:
    """Return (pid, parent, session) of every process in /proc that has not ended."""
    rows = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The line is such as b"42 (cc1plus) S 41 40 39 …": pid, name, state, parent, group,
                # session. The name may hold anything, spaces and parentheses too.
                _, _, fields_after_name = file.read().rpartition(b")")
                state, parent, _, session = fields_after_name.split()[:4]
        except (OSError, ValueError):
            continue
        if state not in (b"Z", b"X"):
            rows.append((int(name), int(parent), int(session)))
    return rows


def main() -> None:
    """Serve the client until it is gone; then kill all processes and give the tokens back.

    The arguments are the socket's descriptor and the client's pid. Exit with 1 after an error of
    the system.
    """
    channel, client = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(channel, False)
    os.closerange(channel + 1, 1 << 16)  # what an embedding application left inheritable
    warden = None
    try:
        warden = Warden(channel, client)
        warden.serve_client()
    except DisconnectedError:
        pass
    except (OSError, MemoryError):
        # All commands are killed below, and the client reports the warden's end.
        sys.exit(1)
    finally:
        if warden is not None:
            warden.kill_everything()
            warden.give_tokens_back()


if __name__ == "__main__":
    main()
