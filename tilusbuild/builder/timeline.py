"""The timeline of the last build that compiled something, beside the history, for `report`.

It is state: it only shows, and one that is missing or damaged is as good as none. The steps of a
compile come from a runner around the real one, so that no pipeline need know of them.

A timeline as Chrome trace events, which Perfetto and chrome://tracing open.

A row is a compiler's place: no attempt shares one with another at the same time, and there are as
many as compilers ran at once. What another machine compiled has rows of its own, with what it
waited for, and so has publishing, because a place is free by then.
Slices of a row nest and never cross, as the format asks. Times are microseconds.
"""

from __future__ import annotations

import heapq
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec

from tilusbuild._version import __version__
from tilusbuild.engine.timeline import (
    LAUNCHER,
    PLACE,
    PUBLISH,
    QUEUE,
    RENDER,
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


_ENVELOPE = Envelope("timeline 2")


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


def built(timeline: Timeline, jobs: int, since: float = 0.0) -> BuildTimeline:
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
            with suppress(UnicodeEncodeError):  # a name with bytes that are not text
                _ENVELOPE.write(_path(project.cache.state_path), msgspec.json.encode(found))


def last(state_path: str) -> BuildTimeline | None:
    """Return the timeline of the last build that compiled anything in a cache tree; None when there
    is none that can be read."""
    body = _ENVELOPE.read(_path(state_path))
    if body is None:
        return None
    try:
        return msgspec.json.decode(body, type=BuildTimeline)
    except msgspec.MsgspecError:
        return None


def _path(state_path: str) -> str:
    return os.path.join(state_path, "timeline")


_BUILD, _COMPILING, _ELSEWHERE, _PUBLISHING, _WAITING = 1, 1000, 1500, 2000, 3000
"""The row of the build, and the first rows of what runs several at a time."""
_MB = 1e6
Event: TypeAlias = dict[str, Any]
Slices: TypeAlias = Sequence[Event]
"""Of one row: the first holds the others."""


def trace(found: BuildTimeline) -> bytes:
    """Return the JSON of a trace."""
    compiling: list[Slices] = []
    elsewhere: list[Slices] = []
    publishing: list[Slices] = []
    for each in found.attempts:
        (elsewhere if each.elsewhere else compiling).append(_compile(each))
        publishing += [[_slice(s, PUBLISH, each.label)] for s in each.steps if s.name == PUBLISH]
    events = [
        _meta("process_name", 0, {"name": f"tilusbuild -j {found.jobs}"}),
        *_row(_BUILD, "build"),
        *({**_slice(span, "build"), "tid": _BUILD} for span in found.phases),
        *_rows("compiler", _COMPILING, compiling),
        *_rows("elsewhere", _ELSEWHERE, elsewhere),
        *_rows("publishing", _PUBLISHING, publishing),
        *_rows("waiting", _WAITING, [[_slice(s, "wait", s.label)] for s in found.waits]),
        *_counters(found),
    ]
    head = {"displayTimeUnit": "ms", "otherData": {"tilusbuild": found.version}}
    return json.dumps({**head, "traceEvents": events}, separators=(",", ":")).encode()


def _compile(attempt: AttemptRecord) -> Slices:
    """Return the slice of an attempt until it is published, and those of its steps."""
    steps = [step for step in attempt.steps if step.name != PUBLISH]
    whole = Span(attempt.label, steps[0].start, max(step.end for step in steps))
    about = {
        "program": attempt.hash,
        "status": attempt.status,
        "reason": attempt.reason,
        "predicted MB": _scaled(attempt.predicted),
        "peak MB": _scaled(attempt.peak_rss),
    }
    if attempt.elsewhere:
        about |= {"worker": attempt.elsewhere, "peak MB": None}
    return [{**_slice(whole, "program"), "args": about}, *(_slice(s, _kind(s)) for s in steps)]


def _kind(step: Span) -> str:
    """Return the category: "compile" is what history counts."""
    if step.name == RENDER:
        return RENDER
    if step.name in (PLACE, SEND, QUEUE):
        return "wait"
    return LAUNCHER if step.name.startswith(LAUNCHER) else "compile"


def _slice(span: Span, kind: str, label: str = "") -> Event:
    start, end = _microseconds(span.start), _microseconds(span.end)
    found = {"ph": "X", "pid": 1, "name": span.name, "cat": kind}
    found |= {"ts": start, "dur": round(end - start, 3)}
    return found | ({"args": {"program": label}} if label else {})


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _rows(name: str, first: int, found: Iterable[Slices]) -> Iterator[Event]:
    """Yield slices in as few rows as there are at a time, each in the lowest that is free."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    used = 0
    for slices in sorted(found, key=lambda each: each[0]["ts"]):
        start, end = slices[0]["ts"], slices[0]["ts"] + slices[0]["dur"]
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            yield from _row(first + used, f"{name} {used + 1}")
            free, used = [used], used + 1
        row = heapq.heappop(free)
        heapq.heappush(busy, (end, row))
        for each in slices:
            yield {**each, "tid": first + row}


def _row(row: int, name: str) -> Iterator[Event]:
    yield _meta("thread_name", row, {"name": name})
    yield _meta("thread_sort_index", row, {"sort_index": row})


def _meta(what: str, row: int, about: Event) -> Event:
    return {"ph": "M", "pid": 1, "tid": row, "name": what, "args": about}


def _counters(found: BuildTimeline) -> Iterator[Event]:
    """Yield how many compilers run, here and elsewhere, and the memory that they were thought to
    need, at each change, and the memory that is used."""
    changes = []
    for attempt in found.attempts:
        whole, need = _compile(attempt)[0], attempt.predicted or 0
        there = bool(attempt.elsewhere)
        changes.append((whole["ts"], there, 1, need))
        changes.append((whole["ts"] + whole["dur"], there, -1, -need))
    running, predicted = [0, 0], 0
    for at, there, more, need in sorted(changes):
        running[there], predicted = running[there] + more, predicted + need
        name = "compilers elsewhere" if there else "compilers running"
        yield _counter(name, at, running[there])
        yield _counter("memory predicted (MB)", at, _scaled(predicted) or 0)
    for sample in found.used:
        yield _counter("memory used (MB)", _microseconds(sample.at), _scaled(sample.bytes) or 0)


def _counter(name: str, at: float, value: float) -> Event:
    return {"ph": "C", "pid": 1, "tid": 0, "name": name, "ts": at, "args": {"value": value}}


def _scaled(size: int | None) -> float | None:
    return None if size is None else round(size / _MB, 1)
