"""Builds the programs that a tuning asks for, while others are measured.

The build loop (`engine/build.py`) runs on a thread, with an open queue: without a budget it gets
all programs at once, else those that the search wants next. A thread that waits for a program
passes the build's events on meanwhile.

On the cpu target the compilers would disturb a measurement, so they stand still during each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from msgspec import structs

from tilusbuild.builder.build import BuildRequest, build_request
from tilusbuild.builder.project import Project
from tilusbuild.builder.publish import publish_plan
from tilusbuild.cache.entries import lookup_entry
from tilusbuild.engine import events
from tilusbuild.engine.events import Reporter
from tilusbuild.engine.inbox import PlanQueue
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import TilusbuildError
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.planner import Plan, iterate_jobs
from tilusbuild.process.base import CancelledError, start_thread
from tilusbuild.runtime.regular import sha256_file
from tilusbuild.status import RECORDED, STATUS_WORDS, Status
from tilusbuild.tune.bench.work import Candidate, ProgramSource

# Seconds until a thread that waits for a program looks again.
_TICK = 0.1


class ProgramBuilder(ProgramSource, Reporter):
    """Builds the programs of a plan: with `builds_all` all of them, else those that are asked for.

    `reporter` gets the build's events on the threads that take programs, one at a time. Use as a
    context manager: leaving it ends the compiles that nothing waits for, and publishes the scripts
    of the plan.
    """

    def __init__(
        self,
        project: Project,
        plan: Plan,
        selection: PlanSelection,
        reporter: Reporter,
        *,
        builds_all: bool,
    ) -> None:
        self._project = project
        self._plan = plan
        self._selection = selection
        self._config = BuildConfig(jobs=project.settings.jobs.value)
        self._reporter = reporter
        self._jobs = {job.hash: job for job in iterate_jobs(plan)}
        self._statuses: dict[str, Status] = {}
        self._contents: dict[str, str] = {}
        missing = (digest for digest in self._jobs if self._find_status(digest) is None)
        self._pending = set(missing) if builds_all else set[str]()
        """The programs that are being built."""
        self._queue = PlanQueue(self._jobs.values() if builds_all else (), is_open=True)
        self._changed = threading.Condition()
        self._reporting = threading.Lock()
        self._events: list[events.Event] = []
        self._error: BaseException | None = None
        self._has_ended = self._is_cancelled = False
        self._is_published = False
        self.ahead = self._config.slots

    def __enter__(self) -> ProgramBuilder:
        self._thread = start_thread(self._run_build)
        return self

    def __exit__(self, *raised: object) -> None:
        # The plan is replaced by what has an answer: all other compiles are killed.
        self._queue.replace_jobs([self._jobs[digest] for digest in self._statuses])
        self._queue.close()
        self._thread.join()
        self._pass_events()
        if self._error is not None and raised[0] is None:
            raise self._error

    def build_ahead(
        self, programs: Iterable[Candidate], limit: float, on_build: Callable[[list[str]], None]
    ) -> None:
        missing: list[str] = []
        with self._changed:
            for program in programs:
                if len(missing) >= limit:
                    break
                if program.hash not in self._pending and self._find_status(program.hash) is None:
                    missing.append(program.hash)
            self._pending.update(missing)
        if missing:
            on_build(missing)
            self._queue.add_jobs([self._jobs[digest] for digest in missing])

    def take_program(self, program: Candidate) -> tuple[Candidate | None, str]:
        """Raises `TilusbuildError` when the build stops, or an input has changed."""
        while (status := self._find_status(program.hash)) is None:
            self._wait_for_events()
        if status == Status.BUILT:
            if program.hash not in self._contents:
                self._contents[program.hash] = sha256_file(program.library)
            return replace(program, content=self._contents[program.hash]), ""
        label = self._jobs[program.hash].label
        if status == Status.CHANGED:
            raise TilusbuildError(f"{label} {STATUS_WORDS[status]}\n  tune again")
        return None, STATUS_WORDS.get(status, status)

    def order_built(self, programs: Sequence[Candidate]) -> Iterable[Candidate]:
        waiting = {program.index: program for program in programs}
        while waiting:
            answered = [p for p in waiting.values() if p.hash in self._statuses]
            for program in answered:
                yield waiting.pop(program.index)
            # A program that another process has built comes without an event.
            if not answered and self._find_status(next(iter(waiting.values())).hash) is None:
                self._wait_for_events()

    @contextmanager
    def cancel_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with self._changed:
                self._is_cancelled = True
                self._changed.notify_all()
            raise

    @contextmanager
    def pause_builds(self) -> Iterator[None]:
        is_cpu = self._plan.instances[0].target.kind == "cpu"
        with self._project.runner.pause() if is_cpu and self._pending else nullcontext():
            yield

    def publish_scripts(self) -> None:
        """Publish the scripts of the plan with the programs that are built so far. Raises
        `CacheError` and `InputError`."""
        if not self._is_published:
            self._is_published = True
            publish_plan(self._project, self._plan, self._selection, dispatchers=False)

    def _find_status(self, digest: str) -> Status | None:
        """Return the status of a program with an answer, of this build or in the store."""
        if digest not in self._statuses:
            entry = lookup_entry(self._project.cache, digest)
            if entry is not None and entry.status in RECORDED:
                self._statuses[digest] = entry.status
        return self._statuses.get(digest)

    def _wait_for_events(self) -> None:
        """Wait for an event of the build, but at most `_TICK`, and pass events on. Raises
        `TilusbuildError` if the build has ended, and `CancelledError`."""
        with self._changed:
            if not self._events:
                self._changed.wait(_TICK)
            has_ended = self._has_ended
        if self._is_cancelled:
            raise CancelledError
        self._pass_events()
        if has_ended:
            raise self._error or TilusbuildError("the build stopped")

    def _pass_events(self) -> None:
        """Pass the events so far to the reporter."""
        with self._reporting:
            with self._changed:
                passed, self._events = self._events, []
            for event in passed:
                self._reporter.emit(event)
            self._reporter.tick()

    def _run_build(self) -> None:
        """Build until the queue is closed, and publish the scripts. Runs on the build's thread."""
        request = BuildRequest(self._plan, self._selection, queue=self._queue)
        try:
            result = build_request(self._project, request, self._config, self)
            if result.summary.error is not None:
                self._error = TilusbuildError(f"the build stopped: {result.summary.error}")
        except BaseException as error:
            self._error = error
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def emit(self, event: events.Event, /) -> None:
        """Take the status of a program from an event, and keep the event. Runs on the build's
        thread."""
        with self._changed:
            match event:
                case events.BuildStarted(jobs=jobs):
                    self.ahead = jobs  # with those of other machines
                case events.Finished():
                    self._set_status(event.hash, event.status)
                case events.HeldBack():
                    for digest, job in self._jobs.items():
                        if job.instance == event.instance and digest not in self._statuses:
                            self._set_status(digest, Status.SKIPPED)
                case events.Summary():
                    event = structs.replace(event, error=None)  # `_wait_for_events` raises it
            self._events.append(event)
            self._changed.notify_all()

    def _set_status(self, digest: str, status: Status) -> None:
        self._statuses[digest] = status
        self._pending.discard(digest)
        self._is_published = False
