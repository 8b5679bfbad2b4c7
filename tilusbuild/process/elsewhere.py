"""The seam for compiles on other machines: this machine's places first, others beside them.

A command that may run elsewhere takes one of the local places while there is one. Otherwise the
executor gets it; what that cannot do is done here, as soon as a place is free. So an executor in
trouble makes a build slower, never wrong, and starts no more compilers here than `-j` allows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from tilusbuild.process.base import CancelledError, Command, CompletedCommand, Runner

_CHECK_EVERY = 0.1


class Executor(Protocol):
    """Runs commands on other machines. Called from many threads."""

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

    def take(self, cancelled: threading.Event) -> None:
        """Wait for a place. Raises `CancelledError`."""
        while not cancelled.is_set():
            if self.try_take():
                return
            with self._freed:
                self._freed.wait(_CHECK_EVERY)
        raise CancelledError

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
        if not self._places.try_take():
            if (done := self._executor.run(command, self._cancelled)) is not None:
                return done
            self._places.take(self._cancelled)
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
