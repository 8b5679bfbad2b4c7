"""The build loop: one thread decides and reports, the others compile.

The calling thread owns all of the build's state: it looks every program up, hands tickets to idle
workers, takes their answers from one inbox, and emits the events. Workers share nothing with it but
two queues, so it needs no lock, and a reporter sees events in order and on one thread. Signals
arrive in the same inbox. Whatever happens, `build` returns or raises with no worker left. The
states of a program are in `states`; the queue decides which programs are wanted.

The price of threads: a reporter that blocks holds up every decision, and nothing here scales with
cores; compilers do the work, so one thread decides for thousands of programs a second.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from contextlib import suppress
from copy import copy
from functools import partial
from queue import Empty
from typing import Any

from tilusbuild._version import __version__
from tilusbuild.engine import events, results
from tilusbuild.engine.attempt import (
    AttemptResult,
    NoAnswer,
    ProgramAnswer,
    Workers,
    WorkerSaid,
    found,
)
from tilusbuild.engine.events import Reporter, Result
from tilusbuild.engine.history import History
from tilusbuild.engine.inbox import (
    AskedTickets,
    NewPlan,
    Queue,
    Remote,
    RemoteAnswered,
)
from tilusbuild.engine.interfaces import Compiler, Job, Store
from tilusbuild.engine.running import BuildConfig, RunningTickets
from tilusbuild.engine.states import BuildState, ReadyQueue, Ticket, released
from tilusbuild.process.stopping import catch_signals
from tilusbuild.status import RECORDED, Compiled, Status

TICK = 0.1
"""Seconds between two ticks of the reporter while nothing else happens."""
_SHORTEST_WAIT = 0.005
"""Seconds. What could be tried again may have to wait for memory, and must not make us spin."""


def build(
    jobs: Iterable[Job],
    store: Store,
    compiler: Compiler,
    reporter: Reporter,
    config: BuildConfig | None = None,
) -> Result:
    """Find every program in the store, or compile and publish it there.

    Returns also when the build was interrupted or could not go on: see `summary.exit_status`.
    What `jobs` raises, and an error that is our own, is raised after the workers have ended.
    """
    queue = Queue(jobs)
    loop = BuildLoop(queue, store, compiler, reporter, config or BuildConfig())
    with catch_signals(queue.inbox.put):
        return loop.run()


def build_changing(
    queue: Queue,
    store: Store,
    compiler: Compiler,
    reporter: Reporter,
    config: BuildConfig,
) -> Result:
    """Build the plan of `queue`, which another thread may exchange; not for the main thread, as it
    catches no signals."""
    try:
        return BuildLoop(queue, store, compiler, reporter, config).run()
    finally:
        queue.end(now=True)


class BuildLoop:
    """One build's state. Everything here runs on the calling thread."""

    def __init__(
        self,
        queue: Queue,
        store: Store,
        compiler: Compiler,
        reporter: Reporter,
        config: BuildConfig,
    ) -> None:
        self.queue = queue
        self.store = store
        self.compiler = compiler
        self.reporter = reporter
        self.config = config
        self.started_at = config.clock() if config.started_at is None else config.started_at
        self.history = config.history or History(None)
        self.remote = config.remote or Remote()
        self.end = results.Ending()
        self.warned: set[str] = set()
        """The warnings that were emitted."""
        self.workers = Workers(store, compiler, queue.inbox, self.end.stopped.is_set)
        self.tickets: dict[str, Ticket] = {}
        """Of every program that is wanted now and has no answer, by hash."""
        self.ready = ReadyQueue()
        """Those of `tickets` that wait."""
        self.asked = AskedTickets(self.remote, queue.inbox.put, config.clock)
        """Those of `tickets` that a remote may have."""
        self.held: list[Ticket] = []
        """Those of `tickets` that are READY but for programs that they need."""
        self.running = RunningTickets(config, self.history, partial(queue.inbox.put, None))
        self.results = results.Results(store)

    def run(self) -> Result:
        self.reporter.emit(events.BuildStarted(self.config.places, __version__))
        try:
            self._loop()
            stopped = self.end.stopped.is_set()
        finally:
            self._end_workers()
            self.running.close()
            self.history.save()
        if self.end.internal is not None:
            raise self.end.internal
        summary = self.results.summary(
            self.config.clock() - self.started_at,
            strict=self.config.strict,
            part=self.config.part,
            stopped=stopped,
            error=self.end.error,
            signal=self.end.signal,
            remote=self.remote.summary(),
        )
        self.reporter.emit(summary)
        return Result(summary, self.results.statuses)

    def _loop(self) -> None:
        while True:
            # All that has come, before anything starts: a signal during a long plan starts nothing.
            while not self.queue.inbox.empty():
                self._take(self.queue.inbox.get())
            self._dispatch()
            if not self._waits() and self.queue.end(now=self.end.stopped.is_set()):
                return
            self._take(self._next_message())

    def _waits(self) -> bool:
        """Return whether something is still to be done, under way, or to be taken note of."""
        busy = self.running or self.ready or self.asked or self.remote.busy()
        return bool(busy or not self.queue.inbox.empty())

    # Which programs are wanted.

    def _plan(self, jobs: Iterable[Job]) -> None:
        """Look everything up; what is not there gets a ticket, or keeps the one that it has."""
        self._drain()
        before, self.tickets = self.tickets, {}
        self.results = results.Results(self.store, self.results.attempts)
        statuses = self.results.statuses
        for number, job in enumerate(jobs):
            if (shared := self.tickets.get(job.hash)) is not None:
                shared.duplicates.append(job)
            elif job.hash in statuses:
                self.results.add_to_script(job, statuses[job.hash])
            elif (ticket := before.pop(job.hash, None)) is not None:
                # Not looked up: a compile of ours may have published it whose end is still in the
                # inbox, and a program must not be settled twice.
                ticket.job, ticket.number, ticket.duplicates = job, number, []
                self.tickets[job.hash] = ticket
            elif (answer := self._known(job)) is not None:
                self.results.settle([job], answer)
            else:
                self.tickets[job.hash] = Ticket(job, number)
        for ticket in before.values():
            ticket.move(BuildState.UNWANTED if ticket in self.running else BuildState.DROPPED)
        self._announce_plan()
        self.compiler.expect(ticket.job for ticket in self.tickets.values())
        self.asked.keep(self.tickets)
        elsewhere = {*self.running, *self.asked.tickets}
        waiting = [ticket for ticket in self.tickets.values() if ticket not in elsewhere]
        for ticket in waiting:
            if ticket.state is not BuildState.READY:
                ticket.move(BuildState.READY)
        self.held = [ticket for ticket in waiting if ticket.job.needs]
        free = [ticket for ticket in waiting if not ticket.job.needs]
        self.ready = ReadyQueue(free if self.config.dry_run else self.asked.ask(free))
        self._release()
        for instance in self.results.instances:
            self._hold_back(instance)
        if self.config.dry_run:
            self._pretend()
        if self.end.stopped.is_set():
            self._skip_waiting()

    def _announce_plan(self) -> None:
        """Estimate what is to be compiled, and emit the plan."""
        expected = 0.0
        for ticket in self.tickets.values():
            ticket.estimate = self.history.estimate(ticket.job)
            expected += ticket.estimate.seconds or 0.0
        self.results.to_compile = len(self.tickets)
        self.reporter.emit(
            self.results.planned(self.results.to_compile, expected, dry_run=self.config.dry_run)
        )
        compiles = self.results.to_compile > 1 and not self.config.dry_run
        for message in (*self.config.notices, *(self.config.warnings if compiles else ())):
            if message not in self.warned:  # a watch plans many times
                self.warned.add(message)
                self.reporter.emit(events.Warned(message))

    def _start_ahead(self, jobs: Iterable[Job]) -> None:
        """Start programs before their plan is looked up, which takes 30 ms for 1,000 programs."""
        for job in jobs:
            if not (job.needs or job.hash in self.tickets or self._known(job) is not None):
                ticket = self.tickets[job.hash] = Ticket(job, len(self.tickets))
                ticket.estimate = self.history.estimate(job)
                self.ready.add(ticket)
        self._dispatch()

    def _known(self, job: Job) -> ProgramAnswer | None:
        """Return a program's answer, of this build or of the store."""
        if (answer := self.queue.known(job)) is not None:
            return answer
        try:
            entry = self.store.lookup(job.hash)
        except OSError as error:
            self._fail(error)
            return None
        return found(entry) if entry is not None and entry.status in RECORDED else None

    def _pretend(self) -> None:
        for ticket in self._drain():
            job = ticket.job
            self.reporter.emit(events.WouldCompile(job.hash, job.label, job.script, job.index))
            self._skip(ticket)

    # Starting.

    def _release(self) -> None:
        """Make ready what waited for programs that have an answer now; what needs one that was not
        built is skipped, and so is what needs that."""
        held, self.held = self.held, []
        free, hopeless, self.held = released(held, self.tickets, self.results.statuses)
        for ticket in hopeless:
            self.results.to_compile -= 1
            self._skip(ticket)
        # Not before: the store never has a program without those that it was made of.
        made_of_others = [each for each in free if each.job.needs and not each.asked]
        if made_of_others and not self.config.dry_run:
            self.asked.ask(made_of_others)
        for ticket in free:
            if ticket.state is BuildState.READY:
                self.ready.add(ticket)

    def _drain(self) -> list[Ticket]:
        """Take out everything that waits."""
        held, self.held = self.held, []
        return [*self.ready.drain(), *held]

    def _dispatch(self) -> None:
        while not self.end.stopped.is_set() and self.running.has_room():
            if self.running.is_alone():
                return
            ticket = self.ready.next(self.config.clock(), self.running.fits, not self.running)
            if ticket is None:
                return
            self._start(ticket)

    def _start(self, ticket: Ticket) -> None:
        ticket.move(BuildState.RUNNING)
        ticket.attempted = copy(ticket.job)
        self.running.add(ticket)
        try:
            self.workers.start(ticket, len(self.running))
        except OSError as error:
            self.running.remove(ticket)
            self._skip(ticket)
            self._fail(error)

    # Messages.

    def _next_message(self) -> Any:
        while True:
            timeout = TICK
            if (wake := self.ready.wake()) is not None and self.running.has_room():
                timeout = min(TICK, max(_SHORTEST_WAIT, wake - self.config.clock()))
            try:
                return self.queue.inbox.get(timeout=timeout)
            except Empty:
                self.reporter.tick()
                self._cancel_again()
                room = not self.ready and self.running.has_room()
                if room and (late := self.asked.overdue()):
                    self._ready_after_all(late)
                self._dispatch()
                if not self._waits():
                    return None

    def _take(self, message: Any) -> None:
        match message:
            case int():
                self.end.signal = message
                self._stop("interrupted", signal.Signals(message).name)
                self.compiler.cancel()
            case NewPlan(jobs, ahead):
                self._start_ahead(ahead)
                self._plan(jobs)
            case WorkerSaid(ticket, NoAnswer.STARTED):
                self.results.attempts += 1
                job, seconds = ticket.job, ticket.estimate.seconds
                begun = events.Started(job.hash, job.label, job.script, job.index, seconds)
                self.reporter.emit(begun)
            case WorkerSaid(ticket, NoAnswer.ENDED):
                if ticket.state is not BuildState.UNWANTED:
                    ticket.move(BuildState.PUBLISHING)
                self.running.give_tokens_back()
            case RemoteAnswered(program, answer):
                self._remote_answered(self.asked.take(program), answer)
            case events.Event():
                self.reporter.emit(message)
            case WorkerSaid(ticket, result):
                self.running.ended(ticket)
                self._ended(ticket, result)
        self.running.cancel_unwanted(self.compiler)
        self.reporter.tick()

    def _cancel_again(self) -> None:
        """Cancel once more: a compile that began just before it was to be killed missed that."""
        if self.end.signal is not None:
            self.compiler.cancel()
        self.running.cancel_unwanted(self.compiler)

    # Answers.

    def _ended(self, ticket: Ticket, result: AttemptResult) -> None:
        if ticket.state is BuildState.UNWANTED:
            ticket.move(BuildState.DROPPED)
            self.reporter.emit(events.Dropped(ticket.job.hash, ticket.job.label))
            return
        match result:
            case ProgramAnswer(compiled, cached):
                self._answered(ticket, compiled, cached=cached)
            case NoAnswer.LOCKED:
                self._wait_for_lock(ticket)
            case NoAnswer.ABORTED:
                self._skip(ticket)
            case BaseException():
                self._skip(ticket)
                self._fail(result)

    def _ready_after_all(self, ticket: Ticket) -> None:
        ticket.move(BuildState.READY)
        # What it needs may have come from a remote that turned out to be wrong.
        self.held.append(ticket)
        self._release()

    def _remote_answered(self, ticket: Ticket | None, answer: ProgramAnswer | None) -> None:
        if ticket is not None and answer is not None:
            self._finish(ticket, answer)
        elif ticket is not None:
            self._ready_after_all(ticket)

    def _wait_for_lock(self, ticket: Ticket) -> None:
        if self.end.stopped.is_set():
            self._skip(ticket)
            return
        if not ticket.not_before:
            self.reporter.emit(events.Waiting(ticket.job.hash, ticket.job.label))
        ticket.move(BuildState.LOCKED)
        self.ready.add_locked(ticket, self.config.clock())

    def _answered(self, ticket: Ticket, compiled: Compiled, *, cached: bool) -> None:
        job = ticket.job
        if compiled.status == Status.KILLED:
            self.history.killed_at(job, compiled.peak_rss)
        if self.running.wants_retry(ticket, compiled) and not self.end.stopped.is_set():
            self.reporter.emit(events.Retried(job.hash, job.label, compiled.reason))
            ticket.accident = compiled
            ticket.move(BuildState.ISOLATED)
            self.ready.add_isolated(ticket)
            return
        if compiled.status in RECORDED and not cached:
            self.history.record(job, compiled.seconds, compiled.peak_rss)
            self.remote.built(job, compiled)
        self._finish(ticket, ProgramAnswer(compiled, cached))

    def _finish(self, ticket: Ticket, answer: ProgramAnswer) -> None:
        job, compiled = ticket.job, answer.compiled
        ticket.move(BuildState.DONE)
        del self.tickets[job.hash]
        self.results.finished += 1
        self.queue.answered(job, answer)
        self.results.settle(ticket.jobs, answer)
        self._release()
        self.reporter.emit(
            results.finished_event(ticket, answer, self.results, verbose=self.config.verbose)
        )
        if compiled.status == Status.FAILED:
            self._hold_back(job.instance)
        if self.config.keep_going and self.results.unbuilt >= self.config.keep_going:
            self._stop("failures", f"{self.results.unbuilt} did not build")

    def _hold_back(self, instance: tuple[str, ...]) -> None:
        """Leave out what waits of an instance when its schedules seem to fail all alike."""
        if self.config.keep_going is not None or self.config.dry_run:
            return
        shared = self.results.shared_error(instance)
        if shared is None:
            return
        default, error = shared
        held = self.ready.take(lambda each: all(job.instance == instance for job in each.jobs))
        for ticket in held:
            self._skip(ticket)
        if held:
            self.results.to_compile -= len(held)
            self.reporter.emit(events.HeldBack(default.label, instance, len(held), error))

    # Stopping.

    def _fail(self, error: BaseException) -> None:
        """Something other than a program is wrong; what runs may end, nothing more is started."""
        if (told := results.in_words(error)) is not None:
            self.end.error = self.end.error or told
        elif self.end.internal is None:
            self.end.internal = error
            self.compiler.cancel()
        self._stop("error", (self.end.error or repr(error)).splitlines()[0])

    def _stop(self, why: str, message: str) -> None:
        if not self.end.stopped.is_set():
            self.end.stopped.set()
            self.reporter.emit(events.Stopping(why, message, len(self.running)))
            self._skip_waiting()

    def _skip_waiting(self) -> None:
        self.remote.stop()
        for ticket in (*self._drain(), *self.asked.drain()):
            self._skip(ticket)

    def _skip(self, ticket: Ticket) -> None:
        ticket.move(BuildState.SKIPPED)
        self.tickets.pop(ticket.job.hash, None)
        self.results.settle(ticket.jobs, ProgramAnswer(Compiled(Status.SKIPPED)))
        self._release()

    def _end_workers(self) -> None:
        """End the workers: mostly they are idle; after an exception their compilers are killed."""
        self.end.stopped.set()
        self.remote.stop()
        if self.running:
            with suppress(Exception):
                self.compiler.cancel()
        self.workers.end()
