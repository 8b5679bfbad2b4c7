"""Threads that begin, or of which an `OSError` says that they cannot: a limit on processes counts
threads too, and Python's `RuntimeError` would be taken for a bug of ours.

`threading.Thread.start` waits for the new thread without a limit, and one that finds no memory for
its first call ends without a word to it: under `ulimit -v` a build hung. Here the new thread alone
holds an object, which goes with it however it ends, and who started it looks whether it is there.
"""

from __future__ import annotations

import _thread
import errno
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOK_SECONDS = 0.1


class Thread:
    """A thread that does not keep the process alive."""

    def __init__(self) -> None:
        self.has_begun = False
        self._begun = _thread.allocate_lock()
        self._alive = _thread.allocate_lock()
        self._begun.acquire()
        self._alive.acquire()

    def is_alive(self) -> bool:
        """Return whether it has not ended."""
        return self._alive.locked()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended; no longer than `timeout` seconds."""
        if self._alive.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            self._alive.release()

    def _run(self, held: _Held, run: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self.has_begun = True
        self._begun.release()
        try:
            run(*arguments)
        finally:
            self._alive.release()

    def _start(self, run: Callable[..., object], arguments: tuple[object, ...]) -> None:
        _install()
        held = _Held()
        there = weakref.ref(held)
        with starting_threads():
            _thread.start_new_thread(self._run, (held, run, arguments))
        del held
        while not self._begun.acquire(timeout=_LOOK_SECONDS):
            if there() is None and not self._begun.acquire(blocking=False):
                raise OSError(errno.ENOMEM, "no thread can be started (no memory)")


class _Held:
    """What a thread holds until it ends."""


_former = sys.unraisablehook


def _report(unraisable: sys.UnraisableHookArgs) -> None:
    """Leave it to who started a thread to say that it has not begun."""
    thread = getattr(unraisable.object, "__self__", None)
    if not isinstance(thread, Thread) or thread.has_begun:
        _former(unraisable)


def _install() -> None:
    global _former
    if sys.unraisablehook is not _report:
        _former, sys.unraisablehook = sys.unraisablehook, _report


def start_thread(run: Callable[..., object], *arguments: object) -> Thread:
    """Start a thread that does not keep the process alive. Raises `OSError`."""
    thread = Thread()
    thread._start(run, arguments)
    return thread


@contextmanager
def starting_threads() -> Iterator[None]:
    """Start threads in a block, by whatever library. Raises `OSError`."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"no thread can be started ({error})") from None
