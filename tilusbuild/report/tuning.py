"""Progress of a tuning, and of a long count of a space.

Of a tuning there is one line that is redrawn on a terminal, and plain lines elsewhere.

A decision gets its line wherever the output goes. What is left is reckoned from the runs of the
cases that are done, or from a guess for the first one, and from what a run took so far; answers
that were read from the log take no time and count for nothing.

Of a long count of a space people read how far it is, and nothing of a count that is short. A
terminal has one line, written again; anything else gets a line each time that the count took twice
as long as at the line before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TextIO

from tilusbuild.report.text import Stream, clock, counted, duration, one_line

_PAUSE = 0.1
_PLAIN_PAUSE = 5.0
_GUESS = 3.0
"""Runs of a case for each of its programs: a check, a sample, and a share of the race."""
_ERASE = "\r\x1b[2K"


class Pace:
    """How many runs are done and left, and how long these will take."""

    def __init__(self) -> None:
        self._programs = self._cases = 0
        self._case: str | None = None
        self._runs = 0
        self._finished: list[int] = []
        self._seconds = 0.0
        self._measured = 0

    def begin(self, programs: int, cases: int) -> None:
        self._programs, self._cases = programs, cases
        self._finished, self._runs = [], 0

    def run(self, cost: float, replayed: bool) -> None:
        self._runs += 1
        if not replayed:
            self._seconds += cost
            self._measured += 1

    def end_case(self) -> None:
        self._finished.append(self._runs)
        self._runs = 0

    @property
    def case(self) -> int:
        """The number of the case in progress, from 1."""
        return min(len(self._finished) + 1, self._cases)

    @property
    def runs(self) -> int:
        return self._runs

    def remaining(self) -> float | None:
        """Return seconds; None before anything was measured."""
        if not self._measured:
            return None
        each = self._programs * _GUESS
        if self._finished:
            each = sum(self._finished) / len(self._finished)
        left = max(0.0, each - self._runs) + each * max(0, self._cases - self.case)
        return left * self._seconds / self._measured


class TuningReporter:
    """Writes to `stream`; redraws a line there when `live`."""

    def __init__(
        self,
        stream: TextIO,
        *,
        live: bool,
        quiet: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = Stream(stream, "styled")
        self._live = live
        self._quiet = quiet
        self._now = now
        self._last = now()
        self._drawn = False
        self._pace = Pace()
        self._cases = 0

    def begin(self, label: str, device: str, programs: int, cases: int) -> None:
        """Note that a tuning begins."""
        self._pace.begin(programs, cases)
        self._cases = cases
        self.line(f"{label} on {device}: {counted(programs, 'program')}, {counted(cases, 'size')}")

    def run(self, what: str, cost: float, replayed: bool) -> None:
        """Note that a check or a sample was taken, or read."""
        self._pace.run(cost, replayed)
        now = self._now()
        if self._quiet or now - self._last < (_PAUSE if self._live else _PLAIN_PAUSE):
            return
        self._last = now
        left = self._pace.remaining()
        text = f"size {self._pace.case}/{self._cases}: run {self._pace.runs}"
        if left is not None:
            text += f", about {clock(left)} left"
        if self._live:
            self._out.write(f"{_ERASE}{text}")
            self._drawn = True
        else:
            self._out.write(text + "\n")

    def end_case(self, text: str) -> None:
        """Note that a case is decided."""
        self._pace.end_case()
        self.line(text)

    def line(self, text: str) -> None:
        """Write a line that stays above the frame."""
        self.close()
        if not self._quiet:
            self._out.write(one_line(text) + "\n")

    def close(self) -> None:
        """Take the redrawn line away."""
        if self._drawn:
            self._out.write(_ERASE)
            self._drawn = False


# Counts of spaces.


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
