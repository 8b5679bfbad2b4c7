"""The timeline of the last build that compiled something, beside the history, for `report`.

A reporter records it from the build's events: a compile begins at `Started` and ends at `Finished`,
when its program is published. The timeline is state: a missing or damaged one is not drawn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from tilusbuild._version import __version__
from tilusbuild.engine import events
from tilusbuild.engine.events import CompositeReporter, Event, Reporter
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.state.envelope import Envelope

if TYPE_CHECKING:
    from tilusbuild.cache.tree import Tree
    from tilusbuild.engine.running import BuildConfig

# A session of `watch` may last for days.
MAX_ATTEMPTS = 50_000
_NAME = "timeline"
_ENVELOPE = Envelope(_NAME)


class TimedAttempt(Struct, frozen=True):
    """A compile of a program; `start` and `end` are in seconds of the build."""

    hash: str
    label: str
    start: float
    end: float
    status: str
    reason: str
    seconds: float
    """Of the compiler, as history has them."""
    peak_rss: int
    elsewhere: str
    """The worker that compiled it, or its server; "" when this machine did."""


class BuildTimeline(JsonLine, frozen=True):
    """When each compile of a build began and ended. Also a line of `report --json`."""

    event: ClassVar[str] = "timeline"
    began: float
    """In seconds since 1970."""
    seconds: float
    version: str
    """tilusbuild's."""
    jobs: int
    """Compiles at once."""
    planned: float
    """Seconds until the end of planning."""
    attempts: tuple[TimedAttempt, ...]


class TimelineRecorder(Reporter):
    """Records the timeline of the build whose events it gets. `started_at` is by `clock`."""

    def __init__(self, clock: Callable[[], float], started_at: float) -> None:
        self._clock = clock
        self._started_at = started_at
        self._began = time.time() - (clock() - started_at)
        self._jobs = 1
        self._planned = 0.0
        self._starts: dict[str, float] = {}
        self._attempts: list[TimedAttempt] = []

    def emit(self, event: Event, /) -> None:
        """Record when a compile begins, and the whole attempt when it ends; at most `MAX_ATTEMPTS`
        of them."""
        now = self._read_clock()
        match event:
            case events.BuildStarted(jobs):
                self._jobs = jobs
            case events.Planned():
                # Only the first plan counts: `watch` plans again and again.
                if not self._planned:
                    self._planned = now
            case events.Started(program):
                self._starts[program] = now
            case events.Retried(program) | events.Dropped(program):
                # This attempt has no answer. The retry of a program begins with another `Started`.
                self._starts.pop(program, None)
            case events.Finished(program) if program in self._starts:
                start = self._starts.pop(program)
                if len(self._attempts) < MAX_ATTEMPTS:
                    self._attempts.append(
                        TimedAttempt(
                            hash=event.hash,
                            label=event.label,
                            start=start,
                            end=now,
                            status=event.status,
                            reason=event.reason,
                            seconds=event.seconds,
                            peak_rss=event.peak_rss,
                            elsewhere=event.worker,
                        )
                    )

    def make_timeline(self) -> BuildTimeline | None:
        """Return the timeline so far; None when nothing was compiled."""
        if not self._attempts:
            return None
        return BuildTimeline(
            began=round(self._began, 3),
            seconds=self._read_clock(),
            version=__version__,
            jobs=self._jobs,
            planned=self._planned,
            attempts=tuple(self._attempts),
        )

    def _read_clock(self) -> float:
        return round(self._clock() - self._started_at, 6)


@contextmanager
def record_timeline(cache: Tree, config: BuildConfig, reporter: Reporter) -> Iterator[Reporter]:
    """Yield a reporter that passes events on and records the timeline; write it after the block,
    unless nothing was compiled."""
    started_at = config.clock() if config.started_at is None else config.started_at
    recorder = TimelineRecorder(config.clock, started_at)
    try:
        yield CompositeReporter(reporter, recorder)
    finally:
        timeline = recorder.make_timeline()
        # A cache that is read-only may have no directory for state.
        if timeline is not None and os.path.isdir(cache.state_path):
            _ENVELOPE.save_value(os.path.join(cache.state_path, _NAME), timeline)


def read_timeline(state_path: str) -> BuildTimeline | None:
    """Return the timeline in a state directory; None when it cannot be read."""
    return _ENVELOPE.load_value(os.path.join(state_path, _NAME), BuildTimeline)
