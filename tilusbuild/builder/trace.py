"""A timeline as Chrome trace events, which Perfetto and chrome://tracing open.

A row is a compiler's place: no attempt shares one with another at the same time, and there are as
many as compilers ran at once. What another machine compiled has rows of its own, with what it
waited for, and so has publishing, because a place is free by then.
Slices of a row nest and never cross, as the format asks. Times are microseconds.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from tilusbuild.builder.timeline import BuildTimeline
from tilusbuild.engine.timeline import (
    LAUNCHER,
    PLACE,
    PUBLISH,
    QUEUE,
    RENDER,
    SEND,
    AttemptRecord,
    Span,
)

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
