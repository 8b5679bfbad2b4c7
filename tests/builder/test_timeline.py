"""The timeline of a build, recorded from its events."""

import pytest

from support.build_story import Clock, Story
from tilusbuild.builder import timeline as timelines
from tilusbuild.builder.timeline import TimelineRecorder
from tilusbuild.engine.events import Event, Retried


def record(*events: Event) -> TimelineRecorder:
    """Record the events, the first at 1 s, the next at 2 s, …, by a clock that shows 5 at first."""
    clock = Clock()
    clock.time = 5.0
    recorder = TimelineRecorder(clock, 5.0)
    for event in events:
        clock.time += 1
        recorder.emit(event)
    return recorder


def test_a_compile_lasts_from_its_start_to_its_answer() -> None:
    story = Story(3, jobs=7)
    ends = (story.finished(1, "failed", reason="no"), story.finished(0, worker="w1"))
    cached = story.finished(2, cached=True)
    assert record(story.start, story.plan, cached).make_timeline() is None
    recorder = record(story.start, story.plan, story.started(0), story.started(1), *ends, cached)
    timeline = recorder.make_timeline()
    assert timeline is not None
    assert (timeline.jobs, timeline.planned, timeline.seconds) == (7, 2.0, 7.0)
    attempts = [(a.label, a.start, a.end, a.status, a.reason) for a in timeline.attempts]
    assert attempts == [
        ("matmul/1 sm_90a", 4.0, 5.0, "failed", "no"),
        ("matmul/0 sm_90a", 3.0, 6.0, "built", ""),
    ]
    assert [attempt.elsewhere for attempt in timeline.attempts] == ["", "w1"]


def test_a_compile_that_is_retried_begins_with_its_last_start() -> None:
    story = Story(1)
    start = story.started(0)
    retried = Retried(start.hash, start.label, "killed")
    timeline = record(start, retried, start, story.finished(0)).make_timeline()
    assert timeline is not None
    assert [(attempt.start, attempt.end) for attempt in timeline.attempts] == [(3.0, 4.0)]


def test_a_timeline_that_is_full_keeps_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "MAX_ATTEMPTS", 1)
    story = Story(2)
    both = (event for index in (0, 1) for event in (story.started(index), story.finished(index)))
    timeline = record(*both).make_timeline()
    assert timeline is not None
    assert [attempt.hash for attempt in timeline.attempts] == [f"{0:064x}"]
