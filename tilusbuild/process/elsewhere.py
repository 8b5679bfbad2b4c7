"""The seam for compiles on other machines: this machine's places first, others beside them.

A command that may run elsewhere takes one of the local places while there is one. Otherwise the
executor gets it, as soon as that takes any; what it cannot do is done here, when a place is free,
and so is a compile that must stay.
So an executor in trouble makes a build slower, never wrong, and starts no more compilers here than
`-j` allows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeAlias

from tilusbuild.process.base import CancelledError, Command, CompletedCommand, Runner

WAITING, SENT, QUEUED, EXECUTING, HERE = "waiting", "sent", "queued", "executing", "here"
"""How far a command is that found no place here at once: it waits for anybody to take it; a server
has it, which may know more; it waits for a worker; a worker runs it; it got a place here. One that
must stay is waiting or here."""
Tell: TypeAlias = Callable[[str, str], None]
"""Called with how far a command is, and with its worker where that is known."""
_CHECK_EVERY = 0.1


def untold(place: str, worker: str) -> None:
    """For commands that are not followed."""


class Executor(Protocol):
    """Runs commands on other machines. Called from many threads."""

    def ready(self) -> bool:
        """Return whether it takes a command now; it may need to be asked to become so."""
        ...

    def run(
        self, command: Command, cancelled: threading.Event, tell: Tell
    ) -> CompletedCommand | None:
        """Run to the end, outputs brought into `cwd`; return None when that is not possible now.
        Raises `CancelledError` once `cancelled` is set and `cancel` was called."""
        ...

    def cancel(self, cancelled: threading.Event) -> None:
        """Give up the command that has this event; does not wait."""
        ...


class NobodyElse:
    """An executor that takes nothing: for a command that only this machine may run."""

    def ready(self) -> bool:
        return False

    def run(
        self, command: Command, cancelled: threading.Event, tell: Tell
    ) -> CompletedCommand | None:
        return None

    def cancel(self, cancelled: threading.Event) -> None: ...


class Places:
    """The right to compile here; `limit` says how many have it at once, and may change."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._taken = 0
        self._freed = threading.Condition()

    def try_take(self) -> bool:
        """Take a place if there is one."""
        with self._freed:
            free = self._taken < self._limit()
            self._taken += free
            return free

    def wait(self) -> None:
        """Wait a moment, or until a place is free."""
        with self._freed:
            self._freed.wait(_CHECK_EVERY)

    def give(self) -> None:
        """Give a place back."""
        with self._freed:
            self._taken -= 1
            self._freed.notify()


class SharingRunner:
    """Runs the commands of one program here, on `inner`, or elsewhere."""

    def __init__(self, inner: Runner, executor: Executor, places: Places, tell: Tell) -> None:
        self._inner = inner
        self._executor = executor
        self._places = places
        self._tell = tell
        self._cancelled = threading.Event()

    def run(self, command: Command) -> CompletedCommand:
        if not command.outputs and not command.stays:
            return self._inner.run(command)
        began = time.monotonic()
        tried = told = False
        while not self._places.try_take():
            if not tried and not command.stays and self._executor.ready():
                tried, waited = True, time.monotonic() - began
                done = self._executor.run(command, self._cancelled, self._tell)
                if done is not None:
                    return replace(done, waited=waited)
                told = False
            else:
                if not told:
                    self._tell(WAITING, "")
                told = True
                self._places.wait()
            if self._cancelled.is_set():
                raise CancelledError
        waited = time.monotonic() - began
        try:
            if tried or told or command.stays:
                self._tell(HERE, "")
            return replace(self._inner.run(command), waited=waited)
        finally:
            self._places.give()

    def cancel(self) -> None:
        self._cancelled.set()
        self._executor.cancel(self._cancelled)
        self._inner.cancel()

    def close(self) -> None:
        self.cancel()
        self._inner.close()
