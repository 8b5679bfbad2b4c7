"""The build loop: one thread decides and reports, the others compile.

The calling thread owns all of the build's state: it looks every program up, hands tickets to idle
workers, takes their answers from one inbox, and emits the events. Workers share nothing with it but
two queues, so it needs no lock, and a reporter sees events in order and on one thread. Signals
arrive in the same inbox. Whatever happens, `build_jobs` returns or raises with no worker left. The
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
    AttemptState,
    ProgramAnswer,
    WorkerMessage,
    Workers,
    make_answer,
)
from tilusbuild.engine.events import Reporter, Result
from tilusbuild.engine.history import History
from tilusbuild.engine.inbox import (
    AddedJobs,
    AskedTickets,
    NewPlan,
    PlanQueue,
    Remote,
    RemoteAnswered,
)
from tilusbuild.engine.interfaces import Compiler, Job, Store
from tilusbuild.engine.running import BuildConfig, RunningTickets
from tilusbuild.engine.states import BuildState, ReadyQueue, Ticket, split_blocked
from tilusbuild.process.stopping import catch_signals, raise_signals
from tilusbuild.status import RECORDED, Compiled, Status

# Seconds between two ticks of the reporter while nothing else happens.
TICK = 0.1
# Seconds. A locked program that is due may have to wait for memory, and must not make us spin.
_SHORTEST_WAIT = 0.005


def build_jobs(
    jobs: Iterable[Job] | PlanQueue,
    store: Store,
    compiler: Compiler,
    reporter: Reporter,
    config: BuildConfig | None = None,
) -> Result:
    """Find every program in the store, or compile and publish it there. Return the result. Another
    thread may change the plan of a `PlanQueue` meanwhile.

    A build that was interrupted or could not go on returns, too: see `summary.exit_status`. Raises
    what iterating `jobs` raises, and an error of our own, after the workers have ended.
    """
    queue = jobs if isinstance(jobs, PlanQueue) else PlanQueue(jobs)
    loop = BuildLoop(queue, store, compiler, reporter, config or BuildConfig())
    with catch_signals(queue.inbox.put):
        return loop.run()


class BuildLoop:
    """The state of one build, of the plan of `queue`, which another thread may replace.

    All methods run on the calling thread. No signals are caught: the main thread calls
    `build_jobs`.
    """

    def __init__(
        self,
        queue: PlanQueue,
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
        self.ending = results.Ending()
        self.warned: set[str] = set()
        """The warnings that were emitted."""
        self.workers = Workers(store, compiler, queue.inbox, self.ending.stopped.is_set)
        self.tickets: dict[str, Ticket] = {}
        """By hash, one for each program of the plan that has no answer."""
        self.ready = ReadyQueue()
        """Those of `tickets` that wait for a worker."""
        self.asked_tickets = AskedTickets(self.remote, queue.inbox.put, config.clock)
        """Those of `tickets` that a remote was asked for."""
        self.blocked: list[Ticket] = []
        """Those of `tickets` whose job needs programs that have no answer."""
        self.running = RunningTickets(config, self.history, partial(queue.inbox.put, None))
        self.results = results.Results(store)

    def run(self) -> Result:
        """Build until nothing is left to do. Emit the summary, and return the result.

        At the end, also after an exception, no worker is left and the history is saved. Raises what
        iterating a plan raises, and a bug of our own, after that.
        """
        self.reporter.emit(events.BuildStarted(self.config.slots, __version__))
        try:
            self._handle_messages()
        except BaseException:
            # The workers begin nothing more, and end. This exception is the one that counts.
            self.ending.stopped.set()
            with suppress(Exception):
                self.compiler.cancel()
            raise
        finally:
            self.remote.stop()
            self.workers.join_threads()
            # Also after an exception: else a plan that another thread puts would wait for ever.
            self.queue.try_end(now=True)
            self.running.close()
            self.history.save()
        if self.ending.internal is not None:
            raise self.ending.internal
        seconds = self.config.clock() - self.started_at
        summary = self.results.make_summary(
            seconds, self.config, self.ending, self.remote.summary()
        )
        self.reporter.emit(summary)
        return Result(summary, self.results.statuses)

    def _handle_messages(self) -> None:
        """Handle messages and start tickets, until nothing is left to do and no plan may come."""
        while True:
            # All messages are handled before anything starts: one of them may be a signal that came
            # during a long plan, and nothing may start after it.
            while not self.queue.inbox.empty():
                self._handle_message(self.queue.inbox.get())
            self._start_ready()
            # Another thread may have put a plan into the inbox meanwhile: then `try_end` returns
            # False, and the plan is handled next.
            if not self._has_work() and self.queue.try_end(now=self.ending.stopped.is_set()):
                return
            self._handle_message(self._work_until_message())

    def _has_work(self) -> bool:
        """Return whether a ticket, a remote or a message is left to handle."""
        busy = self.running or self.ready or self.asked_tickets or self.remote.is_busy()
        return bool(busy or not self.queue.inbox.empty())

    # Plans.

    def _take_plan(self, plan: NewPlan) -> None:
        """Make a plan if it is not made, and build its first jobs meanwhile; replace the plan."""
        if callable(plan.jobs):
            with raise_signals():
                jobs = plan.jobs(self._build_ahead)
            self._apply_plan(jobs, self.results.finished)
        else:
            self._start_ahead(plan.ahead)
            self._apply_plan(plan.jobs)

    def _apply_plan(self, jobs: Iterable[Job], finished: int = 0) -> None:
        """Replace the plan: look its programs up, and emit the plan. `finished` of them were
        compiled while the plan was made.

        Each program without an answer has a ticket then, which waits, is with a worker or is asked
        of the remote. Other tickets are dropped. In a dry run, and when the build has stopped, the
        waiting tickets are skipped.
        """
        self._drain_waiting()
        self.results = results.Results(self.store, self.results.attempts)
        self._replace_tickets(jobs)
        self.results.finished = finished
        self._announce_plan()
        self.asked_tickets.keep_only(self.tickets)
        # Tickets of an earlier plan may be LOCKED or ISOLATED: a new plan tries them at once.
        busy_tickets = {*self.running, *self.asked_tickets.tickets}
        waiting = [ticket for ticket in self.tickets.values() if ticket not in busy_tickets]
        for ticket in waiting:
            if ticket.state is not BuildState.READY:
                ticket.move_to(BuildState.READY)
        self.blocked = [ticket for ticket in waiting if ticket.job.needs]
        unblocked = [ticket for ticket in waiting if not ticket.job.needs]
        # A dry run asks no remote: the answer would be "fetched", and nothing may be fetched.
        self.ready = ReadyQueue(
            unblocked if self.config.dry_run else self.asked_tickets.ask_remote(unblocked)
        )
        self._release_blocked()
        for instance in self.results.instances:
            self._hold_back(instance)
        if self.config.dry_run:
            for ticket in self._drain_waiting():
                job = ticket.job
                self.reporter.emit(events.WouldCompile(job.hash, job.label, job.script, job.index))
                self._skip_ticket(ticket)
        if self.ending.stopped.is_set():
            self._skip_waiting()

    def _replace_tickets(self, jobs: Iterable[Job]) -> None:
        """Set `tickets` to one for each program without an answer; record the other answers.

        A program of the earlier plan keeps its ticket. The tickets of all other programs become
        UNWANTED if a worker has them, else DROPPED.
        """
        earlier_tickets, self.tickets = self.tickets, {}
        statuses = self.results.statuses
        for number, job in enumerate(jobs):
            if (first_ticket := self.tickets.get(job.hash)) is not None:
                # An earlier job of this plan has the same program, which has no answer yet.
                first_ticket.duplicates.append(job)
            elif job.hash in statuses:
                # An earlier job of this plan has the same program, which has an answer.
                self.results.add_to_script(job, statuses[job.hash])
            elif (kept_ticket := earlier_tickets.pop(job.hash, None)) is not None:
                # The earlier plan has the program, too. It is not looked up in the store again: a
                # worker may have published it while its message is still in the inbox, and then
                # the program would be counted twice.
                kept_ticket.job, kept_ticket.number, kept_ticket.duplicates = job, number, []
                self.tickets[job.hash] = kept_ticket
            elif (answer := self._find_answer(job)) is not None:
                self.results.record_answer([job], answer)
            else:
                self.tickets[job.hash] = Ticket(job, number)
        for ticket in earlier_tickets.values():
            ticket.move_to(BuildState.UNWANTED if ticket in self.running else BuildState.DROPPED)

    def _announce_plan(self) -> None:
        """Set the tickets' estimates and `results.to_compile`. Emit the plan, and each warning that
        was not emitted before."""
        expected = 0.0
        for ticket in self.tickets.values():
            ticket.estimate = self.history.estimate_job(ticket.job)
            expected += ticket.estimate.seconds or 0.0
        self.results.to_compile = len(self.tickets) + self.results.finished
        self.reporter.emit(self.results.make_plan_event(expected, dry_run=self.config.dry_run))
        compiles = self.results.to_compile > 1 and not self.config.dry_run
        warnings = self.config.warnings if compiles else ()
        for message in warnings:
            if message not in self.warned:  # a watch plans many times
                self.warned.add(message)
                self.reporter.emit(events.Warned(message))

    def _start_ahead(self, jobs: Iterable[Job]) -> None:
        """Make tickets for those of `jobs` that need no other program and have no answer, and start
        them: to look up the whole plan first takes 30 ms for 1,000 programs."""
        for job in jobs:
            if job.needs or job.hash in self.tickets or self._find_answer(job) is not None:
                continue
            ticket = Ticket(job, len(self.tickets), self.history.estimate_job(job))
            self.tickets[job.hash] = ticket
            self.ready.add_ready(ticket)
        self._start_ready()

    def _build_ahead(self, job: Job) -> None:
        """Add a job of a plan that is being made, start what is ready, and handle the messages."""
        self._add_jobs([job])
        self._start_ready()
        while not self.queue.inbox.empty():
            self._handle_message(self.queue.inbox.get())

    def _add_jobs(self, jobs: Iterable[Job]) -> None:
        """Add to the plan those of `jobs` that are not in it, which need no other program; ask the
        remote for those without an answer, or queue them. In a stopped build they are skipped."""
        tickets: list[Ticket] = []
        for job in jobs:
            if job.hash in self.tickets or job.hash in self.results.statuses:
                continue
            if (answer := self._find_answer(job)) is not None:
                self.results.record_answer([job], answer)
                continue
            number = self.results.to_compile + len(self.results.statuses)
            ticket = Ticket(job, number, self.history.estimate_job(job))
            self.tickets[job.hash] = ticket
            self.results.to_compile += 1
            tickets.append(ticket)
        for ticket in self.asked_tickets.ask_remote(tickets):
            self.ready.add_ready(ticket)
        for instance in {ticket.job.instance for ticket in tickets}:
            self._hold_back(instance)
        if self.ending.stopped.is_set():
            self._skip_waiting()

    def _find_answer(self, job: Job) -> ProgramAnswer | None:
        """Return the answer of this build or of the store; None when the program is to be compiled.
        Stop the build when the store cannot be read."""
        if (answer := self.queue.find_answer(job)) is not None:
            return answer
        try:
            entry = self.store.find_entry(job.hash)
        except OSError as error:
            self._stop_for_error(error)
            return None
        return make_answer(entry) if entry is not None and entry.status in RECORDED else None

    # Starting.

    def _release_blocked(self) -> None:
        """Queue the blocked tickets whose programs are built now. Skip those that need a program
        which was not built; skipping calls this method again for the tickets that need these."""
        blocked, self.blocked = self.blocked, []
        unblocked, unbuildable, self.blocked = split_blocked(
            blocked, self.tickets, self.results.statuses
        )
        for ticket in unbuildable:
            self.results.to_compile -= 1
            self._skip_ticket(ticket)
        # The store may not hold a library without its objects. So a remote is asked for a library
        # only now that they are built. `ask_remote` moves the tickets that it asks for to ASKED.
        libraries = [ticket for ticket in unblocked if ticket.job.needs and not ticket.was_asked]
        if libraries and not self.config.dry_run:
            self.asked_tickets.ask_remote(libraries)
        for ticket in unblocked:
            if ticket.state is BuildState.READY:
                self.ready.add_ready(ticket)

    def _drain_waiting(self) -> list[Ticket]:
        """Remove and return all tickets that wait for a worker or for other programs."""
        blocked, self.blocked = self.blocked, []
        return [*self.ready.drain_tickets(), *blocked]

    def _start_ready(self) -> None:
        """Start queued tickets while slots, memory and tokens last."""
        while not self.ending.stopped.is_set() and self.running.has_room():
            ticket = self.ready.pop_next(
                self.config.clock(), self.running.try_admit, not self.running
            )
            if ticket is None:
                return
            self._start_ticket(ticket)

    def _start_ticket(self, ticket: Ticket) -> None:
        """Hand a ticket to a worker; stop the build when there is no thread for it."""
        ticket.move_to(BuildState.RUNNING)
        # A copy, by which this attempt is cancelled: the program may get another ticket meanwhile.
        ticket.attempted = copy(ticket.job)
        self.running.add_ticket(ticket)
        try:
            self.workers.start_attempt(ticket, len(self.running))
        except OSError as error:  # no thread could be started, and none is there
            self.running.remove_ticket(ticket)
            self._skip_ticket(ticket)
            self._stop_for_error(error)

    # Messages.

    def _work_until_message(self) -> Any:
        """Return the next message; None when nothing is left to do. Every `TICK`, or when a locked
        ticket may be tried again, call `_work_meanwhile`."""
        while True:
            timeout = TICK
            if (wake_time := self.ready.find_wake_time()) is not None and self.running.has_room():
                timeout = min(TICK, max(_SHORTEST_WAIT, wake_time - self.config.clock()))
            try:
                return self.queue.inbox.get(timeout=timeout)
            except Empty:
                self._work_meanwhile()
                if not self._has_work():
                    return None

    def _work_meanwhile(self) -> None:
        """Tick the reporter, cancel what is of no more use, stop waiting for a remote that does not
        answer, and start tickets."""
        self.reporter.tick()
        # Cancelled again, since a compile that began during the first cancel was missed.
        if self.ending.signal is not None:
            self.compiler.cancel()
        self.running.cancel_unwanted(self.compiler)
        if not self.ready and self.running.has_room():
            overdue_ticket = self.asked_tickets.pop_overdue()
            if overdue_ticket is not None:
                self._compile_after_all(overdue_ticket)
        # The load, the memory or the tokens may be others than at the last message.
        self._start_ready()

    def _handle_message(self, message: Any) -> None:
        """Handle a message of the inbox, of a type that `PlanQueue.inbox` lists; None is ignored.
        Then cancel the UNWANTED compiles and tick the reporter."""
        match message:
            case int():  # a signal
                self.ending.signal = message
                self._stop_build("interrupted", signal.Signals(message).name)
                self.compiler.cancel()
            case NewPlan():
                self._take_plan(message)
            case AddedJobs(jobs):
                self._add_jobs(jobs)
            case WorkerMessage(ticket, AttemptState.STARTED):
                self.results.attempts += 1
                job, seconds = ticket.job, ticket.estimate.seconds
                event = events.Started(job.hash, job.label, job.script, job.index, seconds)
                self.reporter.emit(event)
            case WorkerMessage(ticket, AttemptState.ENDED):
                if ticket.state is not BuildState.UNWANTED:
                    ticket.move_to(BuildState.PUBLISHING)
                self.running.release_tokens()
            case RemoteAnswered(program, answer):
                # A ticket that was overdue, and is compiled here, no longer waits for the answer.
                if (asked_ticket := self.asked_tickets.pop_answered(program)) is not None:
                    if answer is not None:
                        self._finish_ticket(asked_ticket, answer)
                    else:
                        self._compile_after_all(asked_ticket)
            case events.Event():
                self.reporter.emit(message)
            case WorkerMessage(ticket, result):
                self.running.end_ticket(ticket)
                self._handle_result(ticket, result)
        self.running.cancel_unwanted(self.compiler)
        self.reporter.tick()

    # Answers.

    def _handle_result(self, ticket: Ticket, result: AttemptResult) -> None:
        """Finish, retry or skip the ticket of an ended attempt, or drop it if it is UNWANTED. An
        error that the program did not cause stops the build."""
        if ticket.state is BuildState.UNWANTED:
            ticket.move_to(BuildState.DROPPED)
            self.reporter.emit(events.Dropped(ticket.job.hash, ticket.job.label))
            return
        match result:
            case ProgramAnswer(compiled, cached):
                self._handle_answer(ticket, compiled, cached=cached)
            case AttemptState.LOCKED:
                self._requeue_locked(ticket)
            case AttemptState.ABORTED:
                self._skip_ticket(ticket)
            case BaseException():
                self._skip_ticket(ticket)
                self._stop_for_error(result)

    def _compile_after_all(self, ticket: Ticket) -> None:
        """Compile here a program that no remote has sent."""
        ticket.move_to(BuildState.READY)
        # It does not go into `ready` at once, as a program that it needs may have no answer yet.
        self.blocked.append(ticket)
        self._release_blocked()

    def _requeue_locked(self, ticket: Ticket) -> None:
        """Queue a ticket again whose program another builder has locked; skip it when the build has
        stopped. The first time emit `Waiting`."""
        if self.ending.stopped.is_set():
            self._skip_ticket(ticket)
            return
        # Only the first time is reported; a ticket that was locked before has a time to wait for.
        if not ticket.not_before:
            self.reporter.emit(events.Waiting(ticket.job.hash, ticket.job.label))
        ticket.move_to(BuildState.LOCKED)
        self.ready.add_locked(ticket, self.config.clock())

    def _handle_answer(self, ticket: Ticket, compiled: Compiled, *, cached: bool) -> None:
        """Finish a ticket, or queue its compile once more after an accident, to run alone.

        The history gets the time and memory of a compile, and the remote a program that was
        compiled here.
        """
        job = ticket.job
        if compiled.status == Status.KILLED:
            self.history.record_kill(job, compiled.peak_rss)
        if self.running.should_retry(ticket, compiled) and not self.ending.stopped.is_set():
            self.reporter.emit(events.Retried(job.hash, job.label, compiled.reason))
            ticket.accident = compiled
            ticket.move_to(BuildState.ISOLATED)
            self.ready.add_isolated(ticket)
            return
        if compiled.status in RECORDED and not cached:
            self.history.record_compile(job, compiled.seconds, compiled.peak_rss)
            self.remote.add_built(job, compiled)
        self._finish_ticket(ticket, ProgramAnswer(compiled, cached))

    def _finish_ticket(self, ticket: Ticket, answer: ProgramAnswer) -> None:
        """Record and emit a program's answer, and queue the tickets that waited for the program.

        A failure may have the other schedules of its instance skipped; after `keep_going` of them
        the build stops.
        """
        job, compiled = ticket.job, answer.compiled
        ticket.move_to(BuildState.DONE)
        del self.tickets[job.hash]
        self.results.finished += 1
        self.queue.record_answer(job, answer)
        self.results.record_answer(ticket.jobs, answer)
        self._release_blocked()
        self.reporter.emit(
            results.make_finished_event(ticket, answer, self.results, verbose=self.config.verbose)
        )
        if compiled.status == Status.FAILED:
            self._hold_back(job.instance)
        if self.config.keep_going and self.results.unbuilt >= self.config.keep_going:
            self._stop_build("failures", f"{self.results.unbuilt} did not build")

    def _hold_back(self, instance: tuple[str, ...]) -> None:
        """Skip the waiting schedules of an instance, and emit `HeldBack`, if its schedules seem to
        share an error (`ScriptTally.find_shared_error` has the rules). Do nothing in a dry run or
        with a `keep_going`."""
        if self.config.keep_going is not None or self.config.dry_run:
            return
        if (shared_error := self.results.find_shared_error(instance)) is None:
            return
        default_job, error = shared_error
        # A program that another instance shares is still wanted there.
        tickets = self.ready.pop_matching(
            lambda ticket: all(job.instance == instance for job in ticket.jobs)
        )
        for ticket in tickets:
            self._skip_ticket(ticket)
        if tickets:
            self.results.to_compile -= len(tickets)
            self.reporter.emit(events.HeldBack(default_job.label, instance, len(tickets), error))

    # Stopping.

    def _stop_for_error(self, error: BaseException) -> None:
        """Stop for an error that no program caused. Keep the first one of each kind: the message of
        a user's mistake or the machine's trouble, and a bug of ours, which also kills what runs."""
        message = results.describe_error(error)
        if message is not None:
            self.ending.error = self.ending.error or message
        elif self.ending.internal is None:
            self.ending.internal = error
            self.compiler.cancel()
        self._stop_build("error", (self.ending.error or repr(error)).splitlines()[0])

    def _stop_build(self, why: str, message: str) -> None:
        """Start nothing more, and skip what waits; what runs goes on. `why` as in `Stopping`."""
        if not self.ending.stopped.is_set():
            self.ending.stopped.set()
            self.reporter.emit(events.Stopping(why, message, len(self.running)))
            self._skip_waiting()

    def _skip_waiting(self) -> None:
        """Skip all tickets that no worker has."""
        self.remote.stop()
        for ticket in (*self._drain_waiting(), *self.asked_tickets.drain_tickets()):
            self._skip_ticket(ticket)

    def _skip_ticket(self, ticket: Ticket) -> None:
        """Leave a program without an answer, and those that need it."""
        ticket.move_to(BuildState.SKIPPED)
        self.tickets.pop(ticket.job.hash, None)
        self.results.record_answer(ticket.jobs, ProgramAnswer(Compiled(Status.SKIPPED)))
        self._release_blocked()
