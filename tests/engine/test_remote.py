"""The seam for programs from elsewhere: asked once, answered once, and never waited for in vain."""

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

from support.fake_engine import FakeCompiler, FakeJob, FakeStore, Listener, failed
from tilusbuild.cache.entries import Entry
from tilusbuild.engine.attempt import ProgramAnswer
from tilusbuild.engine.build import build_jobs
from tilusbuild.engine.events import Warned
from tilusbuild.engine.inbox import Remote, RemoteAnswered
from tilusbuild.engine.interfaces import Job
from tilusbuild.engine.running import BuildConfig
from tilusbuild.status import Compiled, Status

HIT = ProgramAnswer(Compiled(Status.BUILT), cached=True, remote=True)


class FakeRemote(Remote):
    """Answers as `script` says, on another thread; None never does."""

    patience = 0.0

    def __init__(self, script: Callable[[Job], str | None], patience: float = 60.0) -> None:
        self.patience = patience
        self.asked: list[str] = []
        self.sent: list[str] = []
        self.stops = 0
        self.owed = 0
        self._script = script

    def ask(self, jobs: Sequence[Job], tell: Callable[[Any], None], /) -> Collection[str]:
        self.asked += [job.label for job in jobs]

        def answer() -> None:
            tell(Warned("slow today"))
            for job in jobs:
                if (verdict := self._script(job)) is not None:
                    tell(RemoteAnswered(job.hash, HIT if verdict == "hit" else None))

        threading.Thread(target=answer).start()
        return {job.hash for job in jobs}

    def add_built(self, job: Job, compiled: Compiled, /) -> None:
        self.sent.append(job.hash)

    def is_busy(self) -> bool:
        self.owed -= 1
        return self.owed > 0

    def stop(self) -> None:
        self.stops += 1


JOBS = [FakeJob(f"text {index}", index=index) for index in range(6)]


def run(remote: FakeRemote, compiler: FakeCompiler | None = None, **config: Any) -> Any:
    listener = Listener()
    store = FakeStore()
    store.entries[JOBS[0].hash] = Entry(JOBS[0].hash, "", Status.BUILT, {})
    settings = BuildConfig(jobs=2, remote=remote, **config)
    build_jobs(JOBS, store, compiler or FakeCompiler(), listener, settings)
    return listener


def test_a_hit_is_not_compiled_and_a_miss_is() -> None:
    remote = FakeRemote(lambda job: "hit" if job.index % 2 else "miss")
    compiler = FakeCompiler()
    listener = run(remote, compiler)
    summary = listener.named("summary")[0]
    assert (summary.compiled, summary.cached, summary.exit_status) == (2, 4, 0)
    assert sorted(compiler.runs) == ["text 2", "text 4"]
    assert [event.remote for event in listener.named("finished")].count(True) == 3
    assert [event.message for event in listener.named("warning")] == ["slow today"]


def test_only_what_the_store_has_not_is_asked_for_and_nothing_in_a_dry_run() -> None:
    remote = FakeRemote(lambda job: "hit")
    run(remote, dry_run=True)
    assert remote.asked == []
    run(remote)
    assert remote.asked == [job.label for job in JOBS[1:]]


def test_only_results_that_were_compiled_here_are_sent() -> None:
    remote = FakeRemote(lambda job: "hit" if job.index < 4 else "miss")
    killed = FakeCompiler(lambda job: failed(status=Status.TIMED_OUT))
    run(remote, killed)
    assert remote.sent == []
    run(remote, FakeCompiler(lambda job: failed()))
    assert remote.sent == [JOBS[4].hash, JOBS[5].hash]


def test_cores_that_are_idle_do_not_wait_for_ever() -> None:
    remote = FakeRemote(lambda job: None, patience=0.0)
    compiler = FakeCompiler()
    assert run(remote, compiler).named("summary")[0].compiled == 5
    assert set(compiler.runs.values()) == {1}


def test_the_end_waits_for_what_is_on_its_way() -> None:
    remote = FakeRemote(lambda job: "hit")
    remote.owed = 5
    run(remote)
    assert remote.owed <= 0


def test_a_stop_skips_what_was_asked_for() -> None:
    remote = FakeRemote(lambda job: "miss" if job.index == 1 else None)
    compiler = FakeCompiler(lambda job: failed())
    summary = run(remote, compiler, keep_going=1).named("summary")[0]
    assert (summary.failed, summary.skipped) == (1, 4)
    assert remote.stops


def library(**kwargs: Any) -> list[FakeJob]:
    """Two objects, and what is made of them."""
    objects = [FakeJob(f"object {index}", index=index, is_part=True) for index in range(2)]
    needs = tuple(job.hash for job in objects)
    return [FakeJob("link", script="link", needs=needs, is_part=True, **kwargs), *objects]


def build_library(remote: FakeRemote, jobs: list[FakeJob], compiler: FakeCompiler) -> Any:
    listener, store = Listener(), FakeStore()
    build_jobs(jobs, store, compiler, listener, BuildConfig(jobs=2, remote=remote))
    return listener.named("summary")[0]


def test_what_needs_others_is_asked_for_when_they_are_there() -> None:
    jobs = library()
    remote = FakeRemote(lambda job: "miss" if job.index else "hit")
    compiler = FakeCompiler()
    summary = build_library(remote, jobs, compiler)
    assert (summary.compiled, summary.cached) == (1, 2)
    assert compiler.runs == {"object 1": 1}
    assert remote.asked == [jobs[1].label, jobs[2].label, jobs[0].label]


def test_what_needs_one_that_does_not_compile_is_asked_for_nowhere() -> None:
    remote = FakeRemote(lambda job: "miss")
    summary = build_library(remote, library(), FakeCompiler(lambda job: failed()))
    assert (summary.failed, summary.skipped) == (2, 1)
    assert len(remote.asked) == 2


def test_what_is_kept_here_is_asked_for_nowhere() -> None:
    jobs = library(kept_here="it is linked by name")
    remote = FakeRemote(lambda job: "hit")
    compiler = FakeCompiler()
    build_library(remote, jobs, compiler)
    assert compiler.runs == {"link": 1}
    assert remote.asked == [jobs[1].label, jobs[2].label]
