"""The signals that end a command: SIGINT, SIGTERM and SIGHUP.

The first one is an exception in the main thread, as Python makes one of Ctrl-C, so that whatever
holds something lets go of it in its own `with` block. What has a loop takes signals as messages
instead (`catch_signals`). Either way a second one ends the process as it would by itself. What a
parent ignores (`nohup`) stays ignored.

Libraries in C that call Python while they read a type do not expect an exception from there:
msgspec ends the process. So the exception waits until code of tilusbuild runs, half a second at
most: what blocks, or runs on, in other code is stopped then.

An exception that comes up in a finalizer, or in Python that C code called, may go no further. The
death of a `StoppedError` that has not left its `stoppable` block says so, whoever swallowed it: a
timer then stops the command again, until the exception arrives. It costs one more signal's handler.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_SECONDS = 0.01
"""From the death of an exception to the next one: the finalizer that swallowed it has ended."""
_PATIENCE = 0.5
"""Seconds that a stop waits for code of tilusbuild."""


class StoppedError(KeyboardInterrupt):
    """A signal ended the command."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    def __del__(self) -> None:
        if _within and _stopped_by is not None:
            # Again and again: a signal just before a call that blocks does not end that call.
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS, _AGAIN_SECONDS)


_stopped_by: int | None = None
_latest = 0.0
"""When the stop is raised whatever runs, by `time.monotonic`."""
_within = False


@contextmanager
def stoppable() -> Iterator[None]:
    """Within the block, the signals raise `StoppedError`, and its end does for a stop that became
    nothing on its way, a result, or another exception: pydantic-core makes a `SchemaError`, without
    a cause, of any that it meets while it builds a model. Off the main thread, where Python allows
    no handlers, nothing is installed."""
    global _stopped_by, _within
    _stopped_by, _within = None, True
    with _handled(_raise, STOPPING), _handled(_raise_again, (signal.SIGALRM,)), _unprinted():
        try:
            yield
        except Exception:
            if _stopped_by is None:
                raise
        finally:
            _within = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    if _stopped_by is not None:
        raise StoppedError(_stopped_by)


def _raise(number: int, frame: FrameType | None) -> None:
    global _stopped_by, _latest
    if _stopped_by is None:
        _latest = time.monotonic() + _PATIENCE
    _stopped_by = number
    if number != signal.SIGINT:
        signal.signal(number, signal.SIG_DFL)
    _raise_in(number, frame)


def _raise_in(number: int, frame: FrameType | None) -> None:
    """Raise the stop in a frame of ours, or try again soon."""
    name = "" if frame is None else str(frame.f_globals.get("__name__"))
    if name.partition(".")[0] == __name__.partition(".")[0] or time.monotonic() > _latest:
        raise StoppedError(number)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS, _AGAIN_SECONDS)


def _raise_again(alarm: int, frame: FrameType | None) -> None:
    """Stop once more: by a message where signals are taken as messages now."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    if _within and _stopped_by is not None:
        handler: Any = signal.getsignal(_stopped_by)
        takes_messages = callable(handler) and handler is not _raise
        (handler if takes_messages else _raise_in)(_stopped_by, frame)


@contextmanager
def _unprinted() -> Iterator[None]:
    """Within the block a stop is not printed: neither the interpreter that cannot raise it further
    nor C code that has its own way to say so (`PyErr_Print`)."""
    unraisable, uncaught = sys.unraisablehook, sys.excepthook

    def drop(given: Any) -> None:
        if not isinstance(given.exc_value, StoppedError):
            unraisable(given)

    def drop_printed(kind: Any, error: BaseException, trace: Any) -> None:
        if isinstance(error, StoppedError):
            error.__del__()  # Python may keep it, as `sys.last_value`
        else:
            uncaught(kind, error, trace)

    sys.unraisablehook, sys.excepthook = drop, drop_printed
    try:
        yield
    finally:
        sys.unraisablehook, sys.excepthook = unraisable, uncaught


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
