"""The seam to the operating system's processes: a command goes in, how it ended comes out.

Nothing else in tilusbuild starts a process. `local.LocalRunner` is the real one. A runner may
be called from several threads at once.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from tilusbuild.errors import TilusbuildError


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The only files that a process can open: to read and run below `read`, also to change below
    `write`. Absolute paths; of one that does not exist, nothing. See `landlock`."""

    read: tuple[str, ...]
    write: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OnWorker:
    """How another machine runs a command, where that is not as it is run here."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]
    """Files here that its directory there has, too, by their names in it."""
    silent: frozenset[int]
    """The exit statuses that say nothing about what was compiled."""


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
    """Bytes of output kept. Longer output keeps its first and its last half of that, with a line
    between them on how much was left out."""
    on_output: Callable[[bytes], None] | None = field(default=None, compare=False)
    """Called in `Runner.run`, on its thread, with each piece of output as it comes."""
    outputs: tuple[str, ...] = ()
    """The files in `cwd` that it makes if it ends well, when it reads nothing but `cwd` and the
    tools: such a command may run on another machine. () is any other."""
    stays: bool = False
    """Whether it compiles and no other machine may run it: where others compile too, it takes one
    of the places that there are for compiles here."""
    on_worker: OnWorker | None = None
    """What another machine runs in its place; None: the same words."""
    sandbox: Sandbox | None = None
    """What holds the process and all that it starts; None: nothing."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where another machine ran a command."""

    address: str
    """The server's."""
    worker: str = ""
    """As the server calls it; "" where it does not say."""
    remembered: bool = False
    """Whether the server had run the same before, and nothing ran now."""

    @property
    def name(self) -> str:
        """The worker, or the server where it names none."""
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
    elsewhere: Elsewhere | None = None
    """The other machine that ran it: then nothing is known of its memory."""

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
        """Run to the end. Raises `CancelledError`, and `OSError` when the program cannot be
        started.

        A program without a slash is looked up along the PATH of the command's own `env`. When the
        program ends, its process group is killed; stdin is empty.
        """

    def cancel(self) -> None:
        """Kill every running process group now; every `run` in progress raises `CancelledError`."""


_ENV = "/usr/bin/env"


class PrefixRunner:
    """Runs `prefix` followed by each command, on `runner`, with a niceness from 0 to 19: through
    `srun -n1`, less urgently, or both.

    `prefix[0]` is a path. The prefix runs in the user's `environment`, where `srun` finds its job;
    what it starts gets the command's own, by `env -i`, whatever the prefix passes on.
    A prefix may start its command anywhere, and needs files of its own: what runs through one has
    no sandbox.
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
        sandbox = None if self._prefix else command.sandbox
        command = replace(command, nice=self._nice, sandbox=sandbox)
        if self._prefix:
            own = (f"{name}={value}" for name, value in command.env.items())
            argv = (*self._prefix, _ENV, "-i", *own, *command.argv)
            command = replace(command, argv=argv, env=self._environment)
        return self._runner.run(command)

    def cancel(self) -> None:
        self._runner.cancel()


def start_thread(run: Callable[..., object], *arguments: object) -> threading.Thread:
    """Start a thread that does not keep the process alive. Raises `OSError`."""
    thread = threading.Thread(target=run, args=arguments, daemon=True)
    with starting_threads():
        thread.start()
    return thread


@contextmanager
def starting_threads() -> Iterator[None]:
    """Start threads in a block, by whatever library. Raises `OSError`: a limit on processes counts
    threads too, and Python's `RuntimeError` would be reported as a bug of ours."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"no thread can be started ({error})") from None
