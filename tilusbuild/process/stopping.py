"""Handle the signals that end a command: SIGINT, SIGTERM and SIGHUP.

The first signal raises an exception in the main thread, as Ctrl-C does in Python, so that each
`with` block releases its resources. Code with an event loop gets signals as messages instead
(`catch_signals`). In both cases a second signal ends the process at once. Signals that the parent
process ignores (`nohup`) stay ignored.

C libraries that call Python do not always expect an exception: msgspec ends the process while it
reads a type. So the exception waits until code of tilusbuild runs, but at most half a second, after
which other code is interrupted, too.

An exception in a finalizer, or in Python code that C code has called, may be swallowed. A
`StoppedError` that is destroyed inside of its `raise_on_signals` block was swallowed: a timer then
raises it again, until it arrives. The price is a handler for one more signal, SIGALRM.
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
# Seconds until a swallowed exception is raised again; the finalizer has ended by then.
_AGAIN_SECONDS = 0.01
# Seconds that a stop waits until code of tilusbuild runs.
_PATIENCE = 0.5


class StoppedError(KeyboardInterrupt):
    """A signal ended the command."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    def __del__(self) -> None:
        if _within and _stopped_by is not None:
            # A repeating timer: a signal just before a blocking call does not interrupt the call.
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS, _AGAIN_SECONDS)


_stopped_by: int | None = None
_latest = 0.0
"""The time (`time.monotonic`) at which the stop is raised in any code."""
_within = False


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Raise `StoppedError` in the block on the first signal.

    If other code swallows the exception, the end of the block raises it. Outside of the main
    thread, where Python allows no handlers, nothing is installed.
    """
    global _stopped_by, _within
    _stopped_by, _within = None, True
    with (
        _install_handlers(_raise_stopped, STOPPING),
        _install_handlers(_raise_again, (signal.SIGALRM,)),
        _hide_ignored_errors(),
    ):
        try:
            yield
        except Exception:
            # Another exception may have taken its place: pydantic-core turns any exception into a
            # `SchemaError` while it builds a model.
            if _stopped_by is None:
                raise
        finally:
            _within = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    if _stopped_by is not None:
        raise StoppedError(_stopped_by)


def _raise_stopped(number: int, frame: FrameType | None) -> None:
    """Handle a stopping signal: remember its number, and raise `StoppedError`, or set the timer
    that raises it. A second SIGTERM or SIGHUP ends the process."""
    global _stopped_by, _latest
    if _stopped_by is None:
        _latest = time.monotonic() + _PATIENCE
    _stopped_by = number
    # A second Ctrl-C raises again. Another signal's second one has the default effect.
    if number != signal.SIGINT:
        signal.signal(number, signal.SIG_DFL)
    _raise_in(number, frame)


def _raise_in(number: int, frame: FrameType | None) -> None:
    """Raise the stop if the frame is tilusbuild's or the patience is over; else set the timer."""
    module = "" if frame is None else str(frame.f_globals.get("__name__"))
    is_ours = module.partition(".")[0] == __name__.partition(".")[0]
    if is_ours or time.monotonic() > _latest:
        raise StoppedError(number)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS, _AGAIN_SECONDS)


def _raise_again(alarm: int, frame: FrameType | None) -> None:
    """Handle the timer: raise the stop again. Within `catch_signals`, call the handler of that
    block instead."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    if _within and _stopped_by is not None:
        handler: Any = signal.getsignal(_stopped_by)
        if callable(handler) and handler is not _raise_stopped:
            handler(_stopped_by, frame)
        else:
            _raise_in(_stopped_by, frame)


@contextmanager
def _hide_ignored_errors() -> Iterator[None]:
    """Print nothing about a `StoppedError` that was swallowed in the block.

    Otherwise the interpreter prints it as unraisable, and C code by `PyErr_Print`.
    """
    former_unraisablehook, former_excepthook = sys.unraisablehook, sys.excepthook

    def print_unraisable(unraised: Any) -> None:
        if not isinstance(unraised.exc_value, StoppedError):
            former_unraisablehook(unraised)

    def print_uncaught(kind: Any, error: BaseException, trace: Any) -> None:
        if isinstance(error, StoppedError):
            # `PyErr_Print` keeps the exception, as `sys.last_value`, so it is not destroyed. The
            # explicit call sets the timer that raises it again.
            error.__del__()
        else:
            former_excepthook(kind, error, trace)

    sys.unraisablehook, sys.excepthook = print_unraisable, print_uncaught
    try:
        yield
    finally:
        sys.unraisablehook, sys.excepthook = former_unraisablehook, former_excepthook


@contextmanager
def catch_signals(notify: Callable[[int], None]) -> Iterator[None]:
    """Call `notify(number)` on the first signal in the block. End the process at the second.

    `notify` runs in a signal handler. Outside of the main thread nothing is installed.
    """
    notified = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal notified
        if notified:
            # The process dies of the signal itself, so that its parent sees which one it was.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        notified = True
        notify(number)

    with _install_handlers(handler, STOPPING):
        yield


@contextmanager
def raise_signals() -> Iterator[None]:
    """Within the block, itself within `catch_signals`, the signals raise `StoppedError` again, so
    that work that looks at no messages ends at once."""
    with _install_handlers(_raise_stopped, STOPPING):
        yield


@contextmanager
def _install_handlers(
    handler: Callable[[int, FrameType | None], None], numbers: tuple[signal.Signals, ...]
) -> Iterator[None]:
    """Handle these signals by `handler` in the block, and as before after it. Signals that are
    ignored stay ignored. Outside of the main thread nothing is installed."""
    former_handlers = {}
    # Python lets only the main thread install handlers.
    if threading.get_ident() == threading.main_thread().ident:
        for number in numbers:
            # None is a handler that C code installed: Python could not put it back.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                former_handlers[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, former_handler in former_handlers.items():
            signal.signal(number, former_handler)
