"""Ctrl-C and its kin: the first asks the build to stop, the second ends the process at once.

A signal that whoever started us ignores (`nohup`) stays ignored. Off the main thread, where Python
allows no handlers, nothing is installed. The former handlers come back on exit.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def caught(notify: Callable[[int], None]) -> Iterator[None]:
    """Within the block, call `notify(number)` for the first signal; it must be safe in a
    handler."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    notified = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal notified
        if notified:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        notified = True
        notify(number)

    former = {}
    for number in _STOPPING:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            former[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, was in former.items():
            signal.signal(number, was)
