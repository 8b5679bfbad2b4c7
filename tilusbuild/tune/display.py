"""Progress of a tuning: one line that is redrawn on a terminal, and plain lines elsewhere.

A decision gets its line wherever the output goes. What is left is reckoned, once a case is done, as
if all took as long; answers that were read from the log take no time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TextIO

from tilusbuild.engine import events
from tilusbuild.engine.events import Reporter
from tilusbuild.report.plain import format_rare_event
from tilusbuild.report.text import OutputStream, format_clock, format_count, to_one_line
from tilusbuild.tune.bench.bench import Answer

_PAUSE = 0.1
_PLAIN_PAUSE = 5.0
_ERASE = "\r\x1b[2K"


def list_unwatched(facts: Mapping[str, Any]) -> list[str]:
    """Return a line if NVML does not answer for the device of these facts."""
    problem = facts.get("unwatched")
    return [f"throttled clocks and other processes are not seen: {problem}"] if problem else []


def list_sample_notes(answers: Iterable[Answer]) -> list[str]:
    """Return a line for each reason why samples were dropped, or may be too long."""
    answers = list(answers)
    dropped = Counter(note for answer in answers for note in answer.dropped)
    kept = Counter(answer.note for answer in answers if answer.note)
    return [
        f"{format_count(count, 'sample')} {verb}: {note}"
        for verb, counts in (("dropped", dropped), ("kept", kept))
        for note, count in counts.items()
    ]


class TuningReporter(Reporter):
    """Writes to `stream`; redraws a line there when `live`. Gets the events of the build, too."""

    def __init__(
        self,
        stream: TextIO,
        *,
        live: bool,
        quiet: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = OutputStream(stream, "styled")
        self._live = live
        self._quiet = quiet
        self._now = now
        self._printed_at = now()
        self._is_drawn = False
        self._cases = self._done_cases = self._runs = self._compiles = 0
        self._devices = 1
        self._seconds = 0.0
        """What the cases that are done took, and the one in progress so far."""

    def begin_tuning(
        self, label: str, device: str, programs: int, cases: int, devices: int = 1
    ) -> None:
        """Count from the first case again, and print a line about the tuning."""
        self._cases, self._done_cases, self._runs, self._seconds = cases, 0, 0, 0.0
        self._devices = devices
        counts = f"{format_count(programs, 'program')}, {format_count(cases, 'size')}"
        if devices > 1:
            counts += f", {devices} devices"
        self.print_line(f"{label} on {device}: {counts}")

    def report_run(self, answer: Answer, replayed: bool) -> None:
        """Count a check or a sample, and now and then print the progress. A `replayed` answer was
        read from the log."""
        self._runs += 1
        self._seconds += 0.0 if replayed else answer.cost
        self.tick()

    def emit(self, event: events.Event, /) -> None:
        """Count a compile, and print a warning. Make room for the reporter of failures."""
        if isinstance(event, events.Finished):
            self._compiles += not event.cached
        if (line := format_rare_event(event)) is not None:
            self.print_line(line)
        elif isinstance(event, events.Finished | events.Summary):
            self.close()

    def tick(self) -> None:
        """Now and then print the progress."""
        now = self._now()
        # A log gets a line now and then; a terminal is redrawn as often as an eye can follow.
        if self._quiet or now - self._printed_at < (_PAUSE if self._live else _PLAIN_PAUSE):
            return
        self._printed_at = now
        case = min(self._done_cases + 1, self._cases)
        text = f"size {case}/{self._cases}: run {self._runs}"
        if self._compiles:
            text += f", {format_count(self._compiles, 'compile')}"
        if self._done_cases and self._seconds:
            # The case in progress counts as half done.
            done = self._done_cases + 0.5
            remaining = self._seconds / done * (self._cases - done) / self._devices
            text += f", about {format_clock(max(0.0, remaining))} left"
        if self._live:
            self._out.write(f"{_ERASE}{text}")
            self._is_drawn = True
        else:
            self._out.write(text + "\n")

    def end_case(self, text: str) -> None:
        """Count a decided case, and print `text`."""
        self._done_cases, self._runs = self._done_cases + 1, 0
        self.print_line(text)

    def print_line(self, text: str) -> None:
        """Write a line that stays above the frame."""
        self.close()
        if not self._quiet:
            self._out.write(to_one_line(text) + "\n")

    def close(self) -> None:
        """Take the redrawn line away."""
        if self._is_drawn:
            self._out.write(_ERASE)
            self._is_drawn = False
