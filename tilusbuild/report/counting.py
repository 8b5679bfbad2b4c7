"""How far a long count of a space is, on a stream for people: nothing of a count that is short.

A terminal has one line, written again; anything else gets a line each time that the count took
twice as long as at the line before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TextIO

from tilusbuild.report.text import duration

PATIENCE = 1.0  # seconds without a word
AGAIN = 0.5  # seconds between two states of a terminal's line


class CountDisplay:
    """Called with an instance's name, gives what is called with the progress of its count."""

    def __init__(self, stream: TextIO, *, redraws: bool) -> None:
        self._stream = stream
        self._redraws = redraws

    def __call__(self, name: str) -> Callable[[float | None], None]:
        """Return what takes the part of the work that is done, None where it is not known."""
        return partial(self._tell, name, _Count(time.monotonic()))

    def _tell(self, name: str, count: _Count, part: float | None) -> None:
        now = time.monotonic()
        if part == 1.0 and (not count.told or count.done):
            return  # a count that has ended is printed once, and only if its progress was
        if now < count.next and part != 1.0:
            return
        count.done = part == 1.0
        taken = now - count.started
        count.next = now + (AGAIN if self._redraws else taken)
        if part is None:
            text = f"{name}: looking for valid points, {duration(taken)} so far"
        else:
            left = duration(taken / max(part, 1e-9) * (1 - part))
            text = f"{name}: counting its points, {part:.1%} in {duration(taken)}, {left} left"
        if not count.told:
            text += "; Ctrl-C stops it"
        count.told = True
        if self._redraws:
            self._stream.write(f"\r\x1b[K{text}" if part != 1.0 else "\r\x1b[K")
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()


class _Count:
    """One count."""

    def __init__(self, started: float) -> None:
        self.started = started
        self.next = started + PATIENCE
        self.told = False
        self.done = False
