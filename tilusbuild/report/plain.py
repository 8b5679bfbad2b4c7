"""How far a build is, reckoned from its events, and progress as plain lines.

`Progress` is pure: time comes in with each call. The estimate weighs programs by the seconds that
history expects of them, corrected by how those that ended compare with what was expected; without a
history, by the mean of those that ended; before anything ended, there is none. A plain line stands
alone and is never redrawn, for files, pipes and CI. The first of equal failures gets its line; the
summary counts them. Of the other programs the first few get a line, then at most one a second.
`verbose` shows every one, `quiet` none.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TextIO

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.engine import events
from tilusbuild.engine.events import EXECUTING, HERE, QUEUED, SENT, WAITING
from tilusbuild.engine.results import locate_error, normalize_error
from tilusbuild.report.summary import format_failure, format_summary
from tilusbuild.report.text import (
    OutputStream,
    format_clock,
    format_count,
    format_duration,
    to_one_line,
)
from tilusbuild.status import Status

_PLACE_WORDS = {
    HERE: "here",
    WAITING: "waits for a core",
    SENT: "sent",
    QUEUED: "waits for a worker",
}
_GOOD_STATUSES = (Status.BUILT, Status.PRUNED)
# Programs that always get a line, and the seconds between two lines after them: so a log of ten
# thousand programs stays readable.
_ALWAYS_PRINTED = 10
_LINE_INTERVAL = 1.0
# Shorter estimates change more than they say.
_SHORTEST_ETA = 5
# The most by which an estimate is multiplied, or divided, after compiles took another time.
_MAX_CORRECTION = 5.0


class RunningCompile(Struct, frozen=True):
    """A compiler at work since `since`."""

    label: str
    since: float
    expected: float | None
    place: str = HERE
    """As in `Placed`."""
    worker: str = ""


class Progress:
    """The state of a build so far."""

    def __init__(self) -> None:
        self.jobs = 1
        self.total = 0
        self.done = 0
        self.failed = 0
        self.compiled = 0
        self.waiting: set[str] = set()
        self.running: dict[str, RunningCompile] = {}
        self.shared = False
        """Whether other machines may compile."""
        self.began_at = 0.0
        self.first_labels: dict[object, str] = {}
        """The label of the first program of each message."""
        self._expected: float | None = None
        self._expected_done = 0.0
        self._seconds_done = 0.0

    def take_event(self, event: events.Event, now: float) -> None:
        """Update the counts, the running compiles and the sums of seconds from an event. `now` is
        its time."""
        match event:
            case events.BuildStarted():
                self.jobs = event.jobs
                self.began_at = now
            case events.Planned():
                self.total = event.to_compile
                self.began_at = now
                self._expected = event.expected_seconds
            case events.Started():
                self.waiting.discard(event.hash)
                self.running[event.hash] = RunningCompile(event.label, now, event.expected_seconds)
            case events.Placed():
                self.shared = True
                # A compile that was dropped may still be placed by its worker.
                if (running := self.running.get(event.hash)) is not None:
                    placed = replace(running, place=event.place, worker=event.worker)
                    self.running[event.hash] = placed
            case events.Waiting():
                self.waiting.add(event.hash)
            case events.Retried() | events.Dropped():
                self.running.pop(event.hash, None)
            case events.Finished():
                self.running.pop(event.hash, None)
                self.waiting.discard(event.hash)
                self.done = event.done
                if event.status not in _GOOD_STATUSES:
                    self.failed += 1
                self._expected_done += event.expected_seconds or 0.0
                if not event.cached:
                    self.compiled += 1
                    self._seconds_done += event.seconds

    def find_same_failure(self, event: events.Finished | events.Retried) -> str | None:
        """Return the label of the first program that failed with this status and error; None for
        the first one itself, which is remembered. Errors are equal but for names and numbers."""
        outcome = event.status if isinstance(event, events.Finished) else event.event
        error = locate_error(event.reason) or normalize_error(event.reason)
        key = (outcome, error)
        label = self.first_labels.setdefault(key, event.label)
        return None if label == event.label else label

    def count_places(self) -> Mapping[str, int]:
        """Return how many compiles are in each place."""
        return Counter(running.place for running in self.running.values())

    def estimate_remaining(self, now: float) -> float | None:
        """Return the estimated seconds until the end of the build; None without a history, before a
        compile has ended. See the head of this file for the estimate."""
        remaining = self.total - self.done
        if remaining <= 0:
            return 0.0
        if self._expected is not None:
            compile_seconds = self._expected - self._expected_done
            if self._expected_done > 0 and self._seconds_done > 0:
                # Compiles so far took this many times what was expected. The factor is bounded, as
                # the first few compiles may be unusual.
                factor = self._seconds_done / self._expected_done
                compile_seconds *= min(_MAX_CORRECTION, max(1 / _MAX_CORRECTION, factor))
        elif self.compiled:
            compile_seconds = remaining * self._seconds_done / self.compiled
        else:
            return None
        elapsed = sum(now - running.since for running in self.running.values())
        return max(0.0, compile_seconds - elapsed) / min(self.jobs, remaining)


class PlainReporter(events.Reporter):
    """Writes to `stream`."""

    def __init__(
        self,
        stream: TextIO,
        *,
        quiet: bool = False,
        verbose: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = OutputStream(stream)
        self._quiet = quiet
        self._verbose = verbose and not quiet
        self._now = now
        self._progress = Progress()
        self._line_count = 0
        self._printed_at = 0.0
        self._has_waited = False

    def emit(self, event: events.Event, /) -> None:
        """Write the lines of an event. With `quiet` only failures and a summary of them."""
        now = self._now()
        self._progress.take_event(event, now)
        match event:
            case events.Finished():
                self._print_finished(event, now)
            case events.Summary():
                self._out.write(format_summary(event, quiet=self._quiet))
            case _ if not self._quiet and (line := self._format_event(event)) is not None:
                self._out.write(line + "\n")

    def _print_finished(self, event: events.Finished, now: float) -> None:
        """Write a program's line and its details: the first of equal failures always, another
        program if it gets a line now."""
        width = len(str(event.to_compile))
        counter = f"[{event.done:>{width}}/{event.to_compile}] "
        is_failure = event.status not in _GOOD_STATUSES
        first_label = self._progress.find_same_failure(event) if is_failure else None
        if is_failure and first_label is None:
            line = format_failure(event.label, event.status, event.reason)
            self._out.write(f"{counter}{line}\n")
        elif not self._quiet and self._try_count_line(event, now):
            description = self._describe_end(event, now)
            if first_label:
                description = f": as {to_one_line(first_label)}"
            self._out.write(f"{counter}{to_one_line(event.label)}{description}\n")
        self._out.write("".join(f"{line}\n" for line in list_details(event)))

    def _describe_end(self, event: events.Finished, now: float) -> str:
        """Return how a program was made, and the remaining time of the build, after a space."""
        parts = ["by another build" if event.cached else format_duration(event.seconds)]
        if event.remote:
            parts = ["fetched"]
        if event.worker:
            parts.append(f"by {to_one_line(event.worker)}")
        if event.status == Status.PRUNED:
            parts.append(f"pruned: {to_one_line(event.reason)}")
        remaining = self._progress.estimate_remaining(now)
        if remaining and remaining >= _SHORTEST_ETA:
            parts.append(f"(about {format_clock(remaining)} left)")
        return f" {' '.join(parts)}"

    def _try_count_line(self, event: events.Finished, now: float) -> bool:
        """Return whether a program gets a line; if so, count it. With `verbose` each does, else the
        first `_ALWAYS_PRINTED`, the last, and one after `_LINE_INTERVAL` seconds."""
        is_last = event.done == event.to_compile
        is_due = (
            is_last
            or self._line_count < _ALWAYS_PRINTED
            or now - self._printed_at >= _LINE_INTERVAL
        )
        if self._verbose or is_due:
            self._line_count += 1
            self._printed_at = now
        return self._verbose or is_due

    def _format_event(self, event: events.Event) -> str | None:
        """Return the line of an event; None for no line. Without `verbose`, only the first wait for
        another build has one."""
        match event:
            case events.Planned():
                return format_plan(event, self._progress)
            case events.Started() | events.Placed() if not self._verbose:
                return None
            case events.Started():
                return f"{to_one_line(event.label)} …"
            case events.Placed():
                return f"{to_one_line(event.label)} … {describe_place(event)}"
            case events.Waiting():
                is_first = not self._has_waited
                self._has_waited = True
                if self._verbose or is_first:
                    return f"{to_one_line(event.label)} waits for another build; others first"
                return None
            case events.Retried() if self._progress.find_same_failure(event) is not None:
                return None
        return format_rare_event(event)


def describe_place(placed: RunningCompile | events.Placed) -> str:
    """Return the place of a compile, in words."""
    worker = to_one_line(placed.worker)
    if placed.place == EXECUTING:
        return f"by {worker}" if worker else "on a worker"
    return _PLACE_WORDS.get(placed.place, placed.place)


def list_details(event: events.Finished) -> Iterator[str]:
    """Yield the lines that -v and -vv add below a program's."""
    yield from (f"  $ {to_one_line(command)}" for command in event.commands)
    yield from (f"  {line}" for line in event.log.splitlines())


def format_rare_event(event: events.Event) -> str | None:
    """Return the line of a shard, a dry run's program, a warning, a retry, schedules held back or
    a stop; None for all other events."""
    match event:
        case events.Sharded():
            return (
                f"shard {event.number}/{event.count}: {event.programs} of {event.of} programs"
                f" (split {event.split[:12]})"
            )
        case events.WouldCompile(label=label):
            return f"would compile {to_one_line(label)}"
        case events.Warned(message=message):
            return f"warning: {to_one_line(message)}"
        case events.Retried():
            return f"{to_one_line(event.label)}: {to_one_line(event.reason)}; retrying it alone"
        case events.HeldBack(label=label, programs=count):
            others = "one more is"
            if count > 1:
                others = f"its other {format_count(count, 'schedule')} are"
            return (
                f"{to_one_line(label)} and another schedule fail alike:"
                f" {others} not compiled (-k 0 compiles them)"
            )
        case events.Stopping():
            return f"stopping ({to_one_line(event.message)}); {event.running} still running"
    return None


def format_plan(event: events.Planned, progress: Progress) -> str | None:
    """Return the line of a plan: how many programs are to compile, and about how long that takes.
    Return None if nothing is to compile: the summary says so."""
    if not event.to_compile:
        return None
    ready = event.programs - event.to_compile
    parts = [f"{ready} up to date"] if ready else []
    verb = "would compile" if event.dry_run else "to compile"
    parts.append(f"{event.to_compile} {verb}")
    eta = progress.estimate_remaining(progress.began_at)
    about = f", about {format_clock(eta)}" if eta and eta >= _SHORTEST_ETA else ""
    jobs = "" if event.dry_run else f" {progress.jobs} at a time"
    return f"{format_count(event.programs, 'program')}: {', '.join(parts)}{jobs}{about}"
