"""The timeline of a build: whose steps, who waited for what, and what is too much to keep."""

import time
from typing import Any

from support.fake_engine import FakeCompiler, FakeJob, FakeStore, Listener, built
from tilusbuild.engine import timeline as timelines
from tilusbuild.engine.build import build
from tilusbuild.engine.interfaces import Job
from tilusbuild.engine.running import BuildConfig
from tilusbuild.engine.timeline import LOCK, MEMORY, PUBLISH, RENDER, Timeline
from tilusbuild.status import Compiled


def jobs(count: int) -> list[FakeJob]:
    return [FakeJob(f"s{number}") for number in range(count)]


def test_an_attempt_has_its_own_steps_and_what_came_of_it() -> None:
    timeline = Timeline()

    def work(job: Job) -> Compiled:
        with timeline.step(f"nvcc of {job.label}"):
            return built(seconds=2.0, peak_rss=7)

    wanted = jobs(6)
    config = BuildConfig(jobs=3, timeline=timeline)
    build(wanted, FakeStore(), FakeCompiler(work), Listener(), config)
    assert {each.hash for each in timeline.attempts} == {job.hash for job in wanted}
    for each in timeline.attempts:
        names = [step.name for step in each.steps]
        assert names == [RENDER, f"nvcc of {each.label}", PUBLISH]
        assert all(step.start <= step.end for step in each.steps)
        assert (each.status, each.seconds, each.peak_rss) == ("built", 2.0, 7)


def test_a_lock_that_another_builder_holds_is_waited_for() -> None:
    timeline, store, listener = Timeline(), FakeStore(), Listener()
    (job,) = jobs(1)
    store.held.add(job.hash)

    def release(event: Any) -> None:
        if event.event == "waiting":
            time.sleep(0.01)
            store.held.discard(job.hash)

    listener.react = release
    build([job], store, FakeCompiler(), listener, BuildConfig(jobs=1, timeline=timeline))
    (wait,) = timeline.waits
    assert (wait.name, wait.label) == (LOCK, job.label)
    assert wait.end - wait.start >= 0.01


def test_what_memory_holds_back_is_waited_for() -> None:
    def work(job: Job) -> Compiled:
        time.sleep(0.01)
        return built()

    timeline = Timeline()
    config = BuildConfig(jobs=2, admissions=(lambda need, running: not running,), timeline=timeline)
    build(jobs(3), FakeStore(), FakeCompiler(work), Listener(), config)
    assert {wait.name for wait in timeline.waits} == {MEMORY}
    assert len(timeline.waits) >= 2


def test_a_timeline_that_is_full_keeps_what_it_has(monkeypatch: Any) -> None:
    monkeypatch.setattr(timelines, "MAX_KEPT", 2)
    timeline = Timeline()
    config = BuildConfig(jobs=1, timeline=timeline)
    build(jobs(4), FakeStore(), FakeCompiler(), Listener(), config)
    assert len(timeline.attempts) == 2


def test_memory_is_sampled_now_and_then_as_what_is_used_more_than_at_first() -> None:
    now, free = [0.0], [100]
    timeline = Timeline(clock=lambda: now[0], memory=lambda: free[0])
    for moment, left in ((0.0, 100), (0.1, 10), (1.0, 30), (2.0, 120), (3.0, 110)):
        now[0], free[0] = moment, left
        timeline.sample()
    assert [(each.at, each.bytes) for each in timeline.used] == [
        (0.0, 0), (1.0, 70), (2.0, 0), (3.0, 10),
    ]  # fmt: skip
