"""The seam for compiles on other machines: this machine's places first, others beside them.

A command that may run elsewhere takes one of the local places while there is one. Otherwise the
executor gets it, as soon as that takes any; what it cannot do is done here, when a place is free.
So an executor in trouble makes a build slower, never wrong, and starts no more compilers here than
`-j` allows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from tilusbuild.process.base import CancelledError, Command, CompletedCommand, Runner

_CHECK_EVERY = 0.1


class Executor(Protocol):
    """Runs commands on other machines. Called from many threads."""

    def ready(self) -> bool:
        """Return whether it takes a command now; it may need to be asked to become so."""
        ...

    def run(self, command: Command, cancelled: threading.Event) -> CompletedCommand | None:
        """Run to the end, outputs brought into `cwd`; return None when that is not possible now.
        Raises `CancelledError` once `cancelled` is set and `cancel` was called."""
        ...

    def cancel(self, cancelled: threading.Event) -> None:
        """Give up the command that has this event; does not wait."""
        ...


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
        """Wait a moment, or until a place is free that nobody took."""
        with self._freed:
            self._freed.wait(_CHECK_EVERY)

    def give(self) -> None:
        """Give a place back."""
        with self._freed:
            self._taken -= 1
            self._freed.notify()


class SharingRunner:
    """Runs the commands of one program here, on `inner`, or elsewhere."""

    def __init__(self, inner: Runner, executor: Executor, places: Places) -> None:
        self._inner = inner
        self._executor = executor
        self._places = places
        self._cancelled = threading.Event()

    def run(self, command: Command) -> CompletedCommand:
        if not command.outputs:
            return self._inner.run(command)
        tried = False
        while not self._places.try_take():
            if not tried and self._executor.ready():
                tried = True
                if (done := self._executor.run(command, self._cancelled)) is not None:
                    return done
            else:
                self._places.wait()
            if self._cancelled.is_set():
                raise CancelledError
        try:
            return self._inner.run(command)
        finally:
            self._places.give()

    def cancel(self) -> None:
        self._cancelled.set()
        self._executor.cancel(self._cancelled)
        self._inner.cancel()

    def close(self) -> None:
        self.cancel()
        self._inner.close()
