"""The interface to the operating system's processes: a runner runs a command to its end.

Nothing else in tilusbuild starts a process. `local.LocalRunner` is the real runner. A runner may be
called from several threads at once.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from tilusbuild.errors import TilusbuildError


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The files that a process may open: it reads and runs those below `read`, and also changes
    those below `write`. Paths are absolute; missing ones are ignored. See `landlock`."""

    read: tuple[str, ...]
    write: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OnWorker:
    """The form of a command on another machine, if it differs from the local one."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]
    """Local files to copy into its working directory there, by their names in it."""
    silent: frozenset[int]
    """Exit statuses that are not a verdict on the source: the command could not run there."""


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start. `env` is its whole environment, not an addition to this process's."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    """Seconds until the whole process group is killed."""
    nice: int = 0
    """Added to this process's niceness, 0 to 19."""
    output_limit: int = 4 << 20
    """Bytes of output to keep. Of longer output the first and the last half of them are kept, with
    a line in the middle that counts the bytes left out."""
    on_output: Callable[[bytes], None] | None = field(default=None, compare=False)
    """Called with each piece of output, on the thread that called `Runner.run`."""
    outputs: tuple[str, ...] = ()
    """Files that the command writes in `cwd`, if it reads only `cwd` and the tools: it may run on
    another machine. () for any other command."""
    stays: bool = False
    """Whether this is a compile that must run here. While other machines compile too, it takes one
    of the local slots."""
    on_worker: OnWorker | None = None
    """The form of the command on another machine; None: the same arguments."""
    sandbox: Sandbox | None = None
    """Limits the files of the process and its children; None: no limits."""


@dataclass(frozen=True, slots=True)
class WorkerRun:
    """The run of a command on another machine."""

    address: str
    """The server's."""
    worker: str = ""
    """As the server calls it; "" where it does not say."""
    remembered: bool = False
    """Whether the server returned an earlier result, and ran nothing."""

    @property
    def name(self) -> str:
        """The worker's name, or else the server's address."""
        return self.worker or self.address


@dataclass(frozen=True, slots=True)
class CompletedCommand:
    """The result of a process. `status` is its exit status, or minus the signal that ended it."""

    status: int
    output: bytes
    """stdout and stderr together, in the order in which they were written."""
    seconds: float
    peak_rss: int
    """Bytes: the largest resident set of the process and of the children that it waited for."""
    timed_out: bool = False
    elsewhere: WorkerRun | None = None
    """The run on another machine, whose memory is not known; None: it ran here."""

    @property
    def ok(self) -> bool:
        return self.status == 0 and not self.timed_out


class CancelledError(Exception):
    """The runner was closed or interrupted while the command ran; its processes are dead."""


class RunnerLostError(TilusbuildError):
    """The warden was killed: its processes are dead, and the runner cannot be used any more."""


class Runner(Protocol):
    """Starts processes and waits for them."""

    def run(self, command: Command) -> CompletedCommand:
        """Run a command to its end and return its result.

        A program without a slash is searched for in the PATH of the command's `env`. Its stdin is
        empty. When the program ends, its process group is killed. Raises `CancelledError`, and
        `OSError` if the program cannot be started.
        """

    def cancel(self) -> None:
        """Kill all running process groups. Each `run` in progress raises `CancelledError`."""


_ENV = "/usr/bin/env"


class PrefixRunner:
    """Runs each command on `runner` behind a prefix, such as `srun -n1`, or less urgently, or both.

    `prefix[0]` is a path. The prefix runs in the user's `environment`, where `srun` finds its job.
    A command behind a prefix has no sandbox. `nice` is 0 to 19.
    """

    def __init__(
        self,
        prefix: tuple[str, ...],
        runner: Runner,
        nice: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._prefix = prefix
        self._runner = runner
        self._nice = nice
        self._environment = {"PATH": os.defpath} if environment is None else environment

    def run(self, command: Command) -> CompletedCommand:
        """Run a command behind the prefix and with the niceness, as `Runner.run` does. Its own
        `nice` is replaced; with a prefix, its sandbox is dropped."""
        command = replace(command, nice=self._nice)
        if self._prefix:
            # `env -i` gives the command its own environment, whatever the prefix passes on. The
            # sandbox is dropped, as the prefix needs files of its own, and may start the command
            # on another machine.
            variables = (f"{name}={value}" for name, value in command.env.items())
            argv = (*self._prefix, _ENV, "-i", *variables, *command.argv)
            command = replace(command, argv=argv, env=self._environment, sandbox=None)
        return self._runner.run(command)

    def cancel(self) -> None:
        self._runner.cancel()


def start_thread(run: Callable[..., object], *arguments: object) -> threading.Thread:
    """Start a daemon thread, which does not keep the process alive. Raises `OSError`."""
    thread = threading.Thread(target=run, args=arguments, daemon=True)
    with convert_thread_errors():
        thread.start()
    return thread


def shut_down(connection: socket.socket, direction: int = socket.SHUT_RDWR) -> None:
    """End the traffic of a socket, which wakes the threads that wait for it. Do nothing for one
    that has lost its peer."""
    with suppress(OSError):
        connection.shutdown(direction)


@contextmanager
def convert_thread_errors() -> Iterator[None]:
    """Raise `OSError` (EAGAIN) for a `RuntimeError` in the block, which starts a thread: Python
    raises that one when the system allows no further thread."""
    try:
        yield
    # The system's limit on processes counts threads, too. A `RuntimeError` would be reported as a
    # bug of tilusbuild.
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"no thread can be started ({error})") from None
