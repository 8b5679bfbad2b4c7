"""How far a build is, reckoned from its events: counts, what runs, how long it will still take.

Pure: time comes in with each call. The estimate weighs programs by the seconds that history expects
of them, corrected by how those that ended compare with what was expected; without a history, by the
mean of those that ended; before anything ended, there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilusbuild.engine.events import (
    BuildStarted,
    Dropped,
    Event,
    Finished,
    Planned,
    Retried,
    Started,
    Waiting,
)
from tilusbuild.status import Status


@dataclass(frozen=True, slots=True)
class Running:
    """A compiler at work since `since`."""

    label: str
    since: float
    expected: float | None


class Progress:
    """The state of a build so far."""

    def __init__(self) -> None:
        self.jobs = 1
        self.total = 0
        self.done = 0
        self.failed = 0
        self.compiled = 0
        self.waiting: set[str] = set()
        self.running: dict[str, Running] = {}
        self.began = 0.0
        self._expected: float | None = None
        self._expected_done = 0.0
        self._seconds_done = 0.0

    def update(self, event: Event, now: float) -> None:
        """Take an event into account."""
        match event:
            case BuildStarted():
                self.jobs = event.jobs
                self.began = now
            case Planned():
                self.total = event.to_compile
                self.began = now
                self._expected = event.expected_seconds
            case Started():
                self.waiting.discard(event.hash)
                self.running[event.hash] = Running(event.label, now, event.expected_seconds)
            case Waiting():
                self.waiting.add(event.hash)
            case Retried() | Dropped():
                self.running.pop(event.hash, None)
            case Finished():
                self._finished(event)

    def _finished(self, event: Finished) -> None:
        self.running.pop(event.hash, None)
        self.waiting.discard(event.hash)
        self.done = event.done
        self.failed += event.status not in (Status.BUILT, Status.PRUNED)
        self._expected_done += event.expected_seconds or 0.0
        if not event.cached:
            self.compiled += 1
            self._seconds_done += event.seconds

    def rate(self, now: float) -> float | None:
        """Programs a second."""
        elapsed = now - self.began
        return self.done / elapsed if self.done and elapsed > 0 else None

    def remaining(self, now: float) -> float | None:
        """Return seconds until the end, or None where nothing is known."""
        left = self.total - self.done
        if left <= 0:
            return 0.0
        elapsed = sum(now - each.since for each in self.running.values())
        if self._expected is not None:
            work = (self._expected - self._expected_done) * self._pace()
        elif self.compiled:
            work = left * self._seconds_done / self.compiled
        else:
            return None
        return max(0.0, work - elapsed) / min(self.jobs, left)

    def _pace(self) -> float:
        """Return how much longer than expected things take."""
        if self._expected_done <= 0 or self._seconds_done <= 0:
            return 1.0
        return min(5.0, max(0.2, self._seconds_done / self._expected_done))
