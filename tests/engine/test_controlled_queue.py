"""A build whose programs change while it runs, against doubles."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from support.fake_engine import FakeCompiler, FakeJob, FakeStore, Listener, built, failed
from support.processes import wait_until
from tilusbuild.engine.build import BuildLoop
from tilusbuild.engine.events import Result
from tilusbuild.engine.inbox import PlanQueue
from tilusbuild.engine.interfaces import Job
from tilusbuild.engine.running import BuildConfig
from tilusbuild.process.base import CancelledError
from tilusbuild.status import Compiled


class Compiler(FakeCompiler):
    """Compiles when it is let: `let(text)`; ends with `CancelledError` when its job is
    cancelled."""

    def __init__(self) -> None:
        super().__init__(self._wait)
        self.begun: dict[str, threading.Event] = {}
        self._let: set[str] = set()
        self._working: list[Job] = []
        self._killed: list[Job] = []
        self._changed = threading.Condition()
        self.fails: set[str] = set()
        self.misses = 0
        """How many times it is asked to kill a job before it does, as one that had not begun."""
        self.asked: Counter[str] = Counter()

    def _begun(self, text: str) -> threading.Event:
        with self._changed:
            return self.begun.setdefault(text, threading.Event())

    def _is_killed(self, job: Job) -> bool:
        return any(job is killed for killed in self._killed)

    def _wait(self, job: Job) -> Compiled:
        text = job.render().program_txt
        self._begun(text).set()
        with self._changed:
            self._working.append(job)
            over = lambda: text in self._let or self._is_killed(job)  # noqa: E731
            assert self._changed.wait_for(over, 60)
            if self._is_killed(job):
                raise CancelledError
        return failed() if text in self.fails else built()

    def let(self, *texts: str) -> None:
        with self._changed:
            self._let.update(texts)
            self._changed.notify_all()

    def wait_for(self, text: str) -> None:
        assert self._begun(text).wait(60)

    def cancel_job(self, job: Job) -> None:
        text = job.render().program_txt
        self.asked[text] += 1
        if self.asked[text] <= self.misses:
            return
        with self._changed:
            self._killed.append(job)
            self._changed.notify_all()

    def cancel(self) -> None:
        for job in list(self._working):
            self.cancel_job(job)


class Running:
    """A build on a thread, which begins with these programs."""

    def __init__(self, *texts: str, is_open: bool = False) -> None:
        self.store, self.compiler, self.listener = FakeStore(), Compiler(), Listener()
        self.control = PlanQueue(jobs(*texts), is_open=is_open)
        self.results: list[Result] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        options = BuildConfig(jobs=2)
        loop = BuildLoop(self.control, self.store, self.compiler, self.listener, options)
        self.results.append(loop.run())

    def result(self) -> Result:
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.results[0]


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def begin(*texts: str, is_open: bool = False) -> Running:
        started.append(Running(*texts, is_open=is_open))
        return started[-1]

    yield begin
    for build in started:
        build.control.stop_build(2)
        build.thread.join(60)


def jobs(*texts: str) -> list[FakeJob]:
    return [FakeJob(text, index=index) for index, text in enumerate(texts)]


def test_what_is_still_wanted_goes_on_and_the_rest_is_killed(start: Callable[..., Running]) -> None:
    running = start("keep", "drop", "waits")
    running.compiler.wait_for("keep")
    running.compiler.wait_for("drop")
    assert running.control.replace_jobs(jobs("new", "keep"))
    running.compiler.wait_for("new")
    running.compiler.let("keep", "new")
    result = running.result()
    assert not running.control.replace_jobs(jobs("c")), "too late"
    assert result.summary.exit_status == 0
    assert set(result.statuses) == {FakeJob("new").hash, FakeJob("keep").hash}
    assert running.compiler.runs == {"keep": 1, "drop": 1, "new": 1}
    assert [event.label for event in running.listener.named("dropped")] == ["matmul/1 sm_90a"]
    assert (result.summary.compiled, result.summary.attempts) == (2, 3)
    assert set(running.store.entries) == set(result.statuses), "nothing of the other is published"
    assert not any(stage.open for stage in running.store.stages)


def test_a_compile_that_misses_that_it_is_killed_is_killed_again(
    start: Callable[..., Running],
) -> None:
    running = start("a")
    running.compiler.misses = 5
    running.compiler.wait_for("a")
    running.control.replace_jobs(())
    assert running.result().summary.programs == 0
    assert running.compiler.asked["a"] > 5


def test_killed_and_wanted_again_is_compiled_again(start: Callable[..., Running]) -> None:
    running = start("a", "other")
    running.compiler.wait_for("a")
    running.compiler.wait_for("other")
    running.control.replace_jobs(jobs("other"))
    while not running.listener.named("dropped"):
        running.thread.join(0.001)
    running.compiler.let("a")
    running.control.replace_jobs(jobs("a"))
    summary = running.result().summary
    assert (summary.compiled, summary.attempts, summary.exit_status) == (1, 3, 0)


def test_failures_of_this_build_are_not_tried_again_in_its_next_plan(
    start: Callable[..., Running],
) -> None:
    running = start("bad", "other")
    running.compiler.fails.add("bad")
    running.compiler.let("bad")
    while not running.listener.named("finished"):
        running.thread.join(0.001)
    running.compiler.let("good")
    running.control.replace_jobs(jobs("bad", "good"))
    summary = running.result().summary
    assert (summary.failed, summary.compiled) == (1, 1)
    assert running.compiler.runs["bad"] == 1


def test_a_signal_kills_what_runs(start: Callable[..., Running]) -> None:
    running = start("a", "b", "c")
    running.compiler.wait_for("a")
    running.control.stop_build(2)
    summary = running.result().summary
    assert (summary.exit_status, summary.skipped) == (130, 3)


def test_an_open_queue_takes_jobs_until_it_is_closed(start: Callable[..., Running]) -> None:
    running = start(is_open=True)
    running.control.add_jobs(jobs("a"))
    running.compiler.let("a", "c")
    running.compiler.wait_for("a")
    running.control.add_jobs(jobs("a", "b", "c"))
    running.compiler.wait_for("b")
    running.compiler.wait_for("c")
    # As when a tuning ends that has no use for the rest.
    running.control.replace_jobs(jobs("a", "c"))
    running.control.close()
    result = running.result()
    assert set(result.statuses.values()) == {"built"}
    assert (result.summary.programs, result.summary.attempts) == (2, 3)
    assert running.compiler.runs == {"a": 1, "b": 1, "c": 1}


def test_jobs_that_are_added_to_a_failing_instance_are_held_back(
    start: Callable[..., Running],
) -> None:
    running = start(is_open=True)
    running.compiler.fails = {"default", "other"}
    running.compiler.let("default", "other")
    running.control.add_jobs([FakeJob("default", is_default=True), FakeJob("other", index=1)])
    wait_until(lambda: len(running.listener.named("finished")) == 2)
    running.control.add_jobs([FakeJob("later", index=2)])
    running.control.close()
    assert running.result().statuses[FakeJob("later").hash] == "skipped"
    assert len(running.listener.named("held_back")) == 1
