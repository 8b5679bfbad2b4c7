"""The timeline of the last build that compiled something, beside the history, for `report`.

It is state: it only shows, and one that is missing or damaged is as good as none. The steps of a
compile come from a runner around the real one, so that no pipeline need know of them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from tilusbuild._version import __version__
from tilusbuild.engine.timeline import (
    PLACE,
    QUEUE,
    SEND,
    SHORTEST_WAIT,
    AttemptRecord,
    MemorySample,
    Span,
    Timeline,
)
from tilusbuild.process.base import Command, CompletedCommand, Runner
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.state.envelope import Envelope

if TYPE_CHECKING:
    from tilusbuild.builder.project import Project
    from tilusbuild.engine.running import BuildConfig


_ENVELOPE = Envelope("timeline")


class TimedRunner:
    """Records each command as a step, named by its tool: `names` has those whose program's name
    says nothing, by how their command begins. `before` is put before every name. The command lines
    are added to `ran`."""

    def __init__(
        self,
        runner: Runner,
        timeline: Timeline,
        names: Mapping[tuple[str, ...], str],
        before: str = "",
        ran: list[str] | None = None,
    ) -> None:
        self._runner = runner
        self._timeline = timeline
        self._names = names
        self._before = before
        self._ran = [] if ran is None else ran

    def run(self, command: Command) -> CompletedCommand:
        self._ran.append(shlex.join(command.argv))
        start = self._timeline.now()
        finished = self._runner.run(command)
        for name, seconds in _waits(finished):
            if seconds >= SHORTEST_WAIT:
                self._timeline.add(name, start, start + seconds)
            start += seconds
        # The seconds that history has, too: not those in which the output was read. A server may
        # have run it long ago.
        end = min(start + finished.seconds, max(start, self._timeline.now()))
        self._timeline.add(self._name(command), start, end)
        return finished

    def cancel(self) -> None:
        self._runner.cancel()

    def _name(self, command: Command) -> str:
        for begin, name in self._names.items():
            if command.argv[: len(begin)] == begin:
                return self._before + name
        return self._before + os.path.basename(command.argv[0])


def _waits(finished: CompletedCommand) -> Iterator[tuple[str, float]]:
    """Yield what came before a command ran, and how long it took."""
    yield PLACE, finished.waited
    if (there := finished.elsewhere) is not None:
        yield SEND, there.sent
        yield QUEUE, there.queued


class BuildTimeline(JsonLine, frozen=True):
    """When everything of a build began and ended, in seconds. Also a line of `report --json`."""

    event: ClassVar[str] = "timeline"
    began: float
    """In seconds since 1970."""
    seconds: float
    version: str
    """tilusbuild's."""
    jobs: int
    """Compiles at once."""
    attempts: tuple[AttemptRecord, ...]
    phases: tuple[Span, ...]
    waits: tuple[Span, ...]
    used: tuple[MemorySample, ...]


def built(timeline: Timeline, jobs: int, since: float) -> BuildTimeline:
    """Return what a timeline has recorded from a moment on."""

    def moved(span: Span) -> Span:
        start, end = round(span.start - since, 6), round(span.end - since, 6)
        return Span(span.name, start, end, span.label)

    def whole(each: AttemptRecord) -> AttemptRecord:
        parts = {name: getattr(each, name) for name in AttemptRecord.__struct_fields__}
        return AttemptRecord(**{**parts, "steps": [moved(step) for step in each.steps]})

    return BuildTimeline(
        began=round(timeline.began + since, 3),
        seconds=round(timeline.now() - since, 6),
        version=__version__,
        jobs=jobs,
        attempts=tuple(whole(a) for a in list(timeline.attempts) if a.steps[0].start >= since),
        phases=tuple(moved(span) for span in list(timeline.phases) if span.start >= since),
        waits=tuple(moved(span) for span in list(timeline.waits) if span.start >= since),
        used=tuple(
            MemorySample(round(each.at - since, 3), each.bytes)
            for each in list(timeline.used)
            if each.at >= since
        ),
    )


@contextmanager
def kept(project: Project, config: BuildConfig) -> Iterator[None]:
    """Keep the timeline of the build in the block, if it compiled anything."""
    timeline = project.timeline
    begun = 0.0 if config.started_at is None else config.clock() - config.started_at
    since = max(0.0, timeline.now() - begun)
    known = len(timeline.attempts)
    try:
        yield
    finally:
        if len(timeline.attempts) > known and os.path.isdir(project.cache.state_path):
            found = built(timeline, config.jobs or 1, since)
            _ENVELOPE.save(_path(project.cache.state_path), found)


def last(state_path: str) -> BuildTimeline | None:
    """Return the timeline of the last build that compiled anything in a cache tree; None when there
    is none that can be read."""
    return _ENVELOPE.load(_path(state_path), BuildTimeline)


def _path(state_path: str) -> str:
    return os.path.join(state_path, "timeline")
