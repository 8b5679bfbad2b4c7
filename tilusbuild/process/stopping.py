"""The signals that end a command: SIGINT, SIGTERM and SIGHUP.

The first one is an exception in the main thread, as Python makes one of Ctrl-C, so that whatever
holds something lets go of it in its own `with` block. What has a loop takes signals as messages
instead (`catch_signals`). Either way a second one ends the process as it would by itself. What a
parent ignores (`nohup`) stays ignored. A fork that does not exec takes the handlers back
(`held_back`, `forget`): it must never run its parent's blocks.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StoppedError(KeyboardInterrupt):
    """A signal ended the command."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


_stopped_by: int | None = None


@contextmanager
def stoppable() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP raise `StoppedError`, and SIGINT `KeyboardInterrupt`.
    Off the main thread, where Python allows no handlers, nothing is installed."""
    global _stopped_by
    _stopped_by = None
    with _handled(_raise, STOPPING):
        yield


def stopped_by() -> int | None:
    """Return the signal that the last `stoppable` block has raised. Its exception may have become
    another on its way: pydantic-core makes a `SchemaError`, without a cause, of any that it meets
    while it builds a model."""
    return _stopped_by


def _raise(number: int, frame: FrameType | None) -> None:
    global _stopped_by
    _stopped_by = number
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    signal.signal(number, signal.SIG_DFL)
    raise StoppedError(number)


@contextmanager
def catch_signals(notify: Callable[[int], None]) -> Iterator[None]:
    """Within the block, call `notify(number)` for the first signal, and end the process at the
    second; `notify` must be safe in a handler. Off the main thread nothing is installed."""
    notified = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal notified
        if notified:
            # Die of the signal itself, so that whoever waits for us sees which it was.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        notified = True
        notify(number)

    with _handled(handler, STOPPING):
        yield


@contextmanager
def _handled(
    handler: Callable[[int, FrameType | None], None], numbers: tuple[signal.Signals, ...]
) -> Iterator[None]:
    former = {}
    if threading.get_ident() == threading.main_thread().ident:
        for number in numbers:
            # None is a handler that C code installed: Python could not put it back.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                former[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, was in former.items():
            signal.signal(number, was)
