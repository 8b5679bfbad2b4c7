"""The build loop: one thread decides and tells, the others compile.

The calling thread owns all of the build's state: it looks every program up, hands tickets to idle
workers, takes their answers from one inbox, and tells the reporter. Workers share nothing with it
but two queues, so there is no lock of ours, and a reporter sees events in order and on one thread.
Signals arrive in the same inbox. Whatever happens, `build` returns or raises with no worker left.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic

from tilusbuild import __version__
from tilusbuild.engine import events, signals
from tilusbuild.engine.admission import Admission, Unlimited
from tilusbuild.engine.attempt import Answer, Busy, Changed, Done, Found, Gone, Trouble, attempt
from tilusbuild.engine.base import Compiled, Compiler, Job, Options, W
from tilusbuild.engine.events import Reporter, Result
from tilusbuild.engine.history import History
from tilusbuild.engine.ledger import Ledger
from tilusbuild.engine.messages import Began, Ended, SlotFree, Through
from tilusbuild.engine.order import Line, Ticket
from tilusbuild.engine.slots import Leave, Slots, Unasked
from tilusbuild.engine.store import Entry, Store
from tilusbuild.errors import TilusbuildError
from tilusbuild.process.machine import usable_cores
from tilusbuild.status import RECORDED, Status

TICK = 0.1
"""Seconds between two ticks of the reporter while nothing else happens."""
_PUBLISHING = 3
"""How many may be on their way into the store, for each that may compile: they wait for the disk,
and the cores are free meanwhile."""
_SHORTEST_WAIT = 0.005
"""Seconds. What could be tried again may have to wait for memory, and must not make us spin."""


def build(
    jobs: Iterable[Job[W]],
    store: Store,
    compiler: Compiler[W],
    reporter: Reporter,
    options: Options | None = None,
    *,
    history: History | None = None,
    admission: Admission | None = None,
    slots: Slots | None = None,
    warnings: Sequence[str] = (),
    clock: Callable[[], float] = time.monotonic,
    began: float | None = None,
) -> Result:
    """Have every program: found in the store, or compiled and published there.

    `warnings` are told if anything is to be compiled beside something else. `began` is the time by
    `clock` from which the summary counts its seconds, when not from now.
    Returns also when the build was interrupted or could not go on; `summary.exit_status` tells.
    What `jobs` raises, and an error that is our own, is raised after the workers have ended.
    """
    run = BuildLoop(
        store, compiler, reporter, options or Options(), history, admission, slots, warnings, clock
    )
    with signals.caught(run.inbox.put):
        return run.build(jobs, clock() if began is None else began)


class BuildLoop(Generic[W]):
    """One build's state. Everything but `_work` runs on the calling thread."""

    def __init__(
        self,
        store: Store,
        compiler: Compiler[W],
        reporter: Reporter,
        options: Options,
        history: History | None,
        admission: Admission | None,
        slots: Slots | None,
        warnings: Sequence[str],
        clock: Callable[[], float],
    ) -> None:
        self.store = store
        self.compiler = compiler
        self.reporter = reporter
        self.options = options
        self.history = history or History(None)
        self.admission = admission or Unlimited()
        self.leave = Leave(slots or Unasked())
        self.warnings = warnings
        self.clock = clock
        self.width = max(1, options.jobs or usable_cores())
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.tasks: SimpleQueue[Ticket[W] | None] = SimpleQueue()
        self.workers: list[threading.Thread] = []
        self.stopped = threading.Event()
        self.running: dict[Ticket[W], int] = {}
        self.publishing: set[Ticket[W]] = set()
        """Those of `running` whose compiler is through."""
        self.line: Line[W] = Line(())
        self.ledger = Ledger(store)
        self.done = 0
        self.to_compile = 0
        self.signal: int | None = None
        self.error: str | None = None
        self.bug: BaseException | None = None

    def build(self, jobs: Iterable[Job[W]], began: float) -> Result:
        self.reporter.emit(events.BuildStarted(self.width, __version__))
        try:
            self._plan(jobs)
            self._loop()
            stopped = self.stopped.is_set()
        finally:
            self._end_workers()
            self.leave.keep(0)
            self.history.save()
        if self.bug is not None:
            raise self.bug
        summary = self.ledger.summary(
            self.clock() - began,
            strict=self.options.strict,
            part=self.options.part,
            stopped=stopped,
            error=self.error,
            signal=self.signal,
        )
        self.reporter.emit(summary)
        return Result(summary, self.ledger.statuses)

    # Deciding.

    def _plan(self, jobs: Iterable[Job[W]]) -> None:
        """Look everything up; what is not there gets a ticket."""
        tickets: dict[str, Ticket[W]] = {}
        statuses = self.ledger.statuses
        for number, job in enumerate(jobs):
            if (twin := tickets.get(job.hash)) is not None:
                twin.twins.append(job)
            elif job.hash in statuses:
                self.ledger.again(job, statuses[job.hash])
            elif (known := self._known(job)) is not None:
                self.ledger.settle([job], known[0], cached=known[1])
            else:
                tickets[job.hash] = self._ticket(job, number)
        counts = self.ledger.counts
        expected = 0.0
        for ticket in tickets.values():
            ticket.estimate = self.history.estimate(ticket.job)
            expected += ticket.estimate.seconds or 0.0
        self.to_compile = len(tickets)
        self.line = Line(ticket for ticket in tickets.values() if ticket not in self.running)
        self.reporter.emit(
            events.Planned(
                programs=len(statuses) + len(tickets),
                cached=counts["cached"],
                failed=counts["failed"],
                pruned=counts["pruned"],
                to_compile=len(tickets),
                expected_seconds=expected or None,
                dry_run=self.options.dry_run,
            )
        )
        if len(tickets) > 1 and not self.options.dry_run:
            for message in self.warnings:
                self.reporter.emit(events.Warned(message))
            self.warnings = ()

    def _known(self, job: Job[W]) -> tuple[Compiled, bool] | None:
        """A program's answer and whether it is from before, or None."""
        entry = self._lookup(job)
        return None if entry is None else (_answer_of(entry), True)

    def _ticket(self, job: Job[W], number: int) -> Ticket[W]:
        """What stands for a program that has no answer."""
        return Ticket(job, number)

    def _lookup(self, job: Job[W]) -> Entry | None:
        try:
            entry = self.store.lookup(job.hash)
        except OSError as error:
            self._trouble(error)
            return None
        return entry if entry is not None and entry.status in RECORDED else None

    # Running.

    def _loop(self) -> None:
        if self.options.dry_run:
            self._pretend()
        while not self.inbox.empty():
            self._take(self.inbox.get())
        if self.stopped.is_set():
            self._skip_line()
        self._dispatch()
        while self.running or len(self.line):
            self._take(self._next_message())
            self._dispatch()

    def _pretend(self) -> None:
        for ticket in self.line.drain():
            job = ticket.job
            self.reporter.emit(events.WouldCompile(job.hash, job.label, job.script, job.index))
            self._skip(ticket)

    def _dispatch(self) -> None:
        while not self.stopped.is_set() and self._has_room():
            if any(ticket.alone for ticket in self.running):
                return
            ticket = self.line.next(self.clock(), self._fits, not self.running)
            if ticket is None:
                return
            self.running[ticket] = ticket.estimate.peak_rss or 0
            if len(self.workers) < len(self.running):
                self._hire()
            self.tasks.put(ticket)

    def _has_room(self) -> bool:
        """Whether one more may compile."""
        return self._compiling < self.width and len(self.publishing) <= _PUBLISHING * self.width

    @property
    def _compiling(self) -> int:
        return len(self.running) - len(self.publishing)

    def _fits(self, ticket: Ticket[W]) -> bool:
        # Asked anew, because what ran meanwhile may have taught us something.
        ticket.estimate = self.history.estimate(ticket.job)
        if not self.running:
            return True
        peaks = [peak for other, peak in self.running.items() if other not in self.publishing]
        return self.admission.admits(ticket.estimate.peak_rss, peaks) and self.leave.extends(
            self._compiling + 1, partial(self.inbox.put, SlotFree())
        )

    def _hire(self) -> None:
        # A daemon, so that a second Ctrl-C need not wait for it; else `_end_workers` does.
        name = f"tilusbuild-worker-{len(self.workers)}"
        worker = threading.Thread(target=self._work, name=name, daemon=True)
        self.workers.append(worker)
        worker.start()

    def _work(self) -> None:
        while (ticket := self.tasks.get()) is not None:
            answer = attempt(
                ticket.job,
                self.store,
                self.compiler,
                began=partial(self.inbox.put, Began(ticket)),
                through=partial(self.inbox.put, Through(ticket)),
                stopped=self.stopped.is_set,
            )
            self.inbox.put(Ended(ticket, answer))

    def _next_message(self) -> Any:
        while True:
            timeout = TICK
            if (wake := self.line.wake()) is not None and self._has_room():
                timeout = min(TICK, max(_SHORTEST_WAIT, wake - self.clock()))
            try:
                return self.inbox.get(timeout=timeout)
            except Empty:
                self.reporter.tick()
                self._kill_again()
                self._dispatch()

    def _kill_again(self) -> None:
        """A compile that began just before it was to be killed may have missed that."""
        if self.signal is not None:
            self.compiler.cancel()

    def _take(self, message: Any) -> None:
        if isinstance(message, int):
            self.signal = message
            self._stop("interrupted", signal.Signals(message).name)
            self.compiler.cancel()
        elif isinstance(message, Began):
            self.ledger.attempts += 1
            job, seconds = message.ticket.job, message.ticket.estimate.seconds
            self.reporter.emit(events.Started(job.hash, job.label, job.script, job.index, seconds))
        elif isinstance(message, Through):
            self.publishing.add(message.ticket)
            self.leave.keep(self._compiling)
        elif isinstance(message, Ended):
            del self.running[message.ticket]
            self.publishing.discard(message.ticket)
            self.leave.keep(self._compiling)
            self._answered(message.ticket, message.answer)
        self.reporter.tick()

    # Answers.

    def _answered(self, ticket: Ticket[W], answer: Answer) -> None:
        if isinstance(answer, Busy):
            self._hold(ticket)
        elif isinstance(answer, Found):
            self._finish(ticket, _answer_of(answer.entry), cached=True)
        elif isinstance(answer, Done):
            self._compiled(ticket, answer.compiled)
        elif isinstance(answer, Changed):
            reason = f"{answer.name} changed while it was built; build again"
            self._finish(ticket, Compiled(Status.CHANGED, reason=reason))
        elif isinstance(answer, Gone):
            self._skip(ticket)
        elif isinstance(answer, Trouble):
            self._skip(ticket)
            self._trouble(answer.error)

    def _hold(self, ticket: Ticket[W]) -> None:
        if self.stopped.is_set():
            self._skip(ticket)
            return
        if not ticket.not_before:
            self.reporter.emit(events.Waiting(ticket.job.hash, ticket.job.label))
        self.line.hold(ticket, self.clock())

    def _compiled(self, ticket: Ticket[W], compiled: Compiled) -> None:
        if compiled.status == Status.KILLED:
            self.history.at_least(ticket.job, compiled.peak_rss)
        if compiled.status == Status.KILLED and not ticket.alone and not self.stopped.is_set():
            self.reporter.emit(events.Retried(ticket.job.hash, ticket.job.label, compiled.reason))
            self.line.isolate(ticket)
            return
        if compiled.status in RECORDED:
            self.history.record(ticket.job, compiled.seconds, compiled.peak_rss)
        self._finish(ticket, compiled)

    def _finish(self, ticket: Ticket[W], compiled: Compiled, cached: bool = False) -> None:
        job = ticket.job
        self.done += 1
        self.ledger.settle([job, *ticket.twins], compiled, cached=cached)
        self.reporter.emit(
            events.Finished(
                hash=job.hash,
                label=job.label,
                script=job.script,
                instance=job.instance,
                index=job.index,
                status=compiled.status,
                cached=cached,
                reason=compiled.reason,
                seconds=compiled.seconds,
                peak_rss=compiled.peak_rss,
                expected_seconds=ticket.estimate.seconds,
                done=self.done,
                to_compile=self.to_compile,
            )
        )
        if self.options.keep_going and self.ledger.unbuilt >= self.options.keep_going:
            self._stop("failures", f"{self.ledger.unbuilt} did not build")

    # Stopping.

    def _trouble(self, error: BaseException) -> None:
        """Something other than a program is wrong; what runs may end, nothing more is started."""
        if isinstance(error, TilusbuildError):
            self.error = self.error or error.render()
        elif isinstance(error, OSError):
            where = f": {error.filename}" if error.filename else ""
            self.error = self.error or f"{error.strerror or error}{where}"
        elif self.bug is None:
            self.bug = error
            self.compiler.cancel()
        self._stop("error", (self.error or repr(error)).splitlines()[0])

    def _stop(self, why: str, message: str) -> None:
        if not self.stopped.is_set():
            self.stopped.set()
            self.reporter.emit(events.Stopping(why, message, len(self.running)))
            self._skip_line()

    def _skip_line(self) -> None:
        for ticket in self.line.drain():
            self._skip(ticket)

    def _skip(self, ticket: Ticket[W]) -> None:
        self.ledger.settle([ticket.job, *ticket.twins], Compiled(Status.SKIPPED), cached=False)

    def _end_workers(self) -> None:
        """On the ordinary way they are idle; after an exception their compilers are killed."""
        self.stopped.set()
        if self.running:
            with suppress(Exception):
                self.compiler.cancel()
        for _ in self.workers:
            self.tasks.put(None)
        for worker in self.workers:
            worker.join()


def _answer_of(entry: Entry) -> Compiled:
    return Compiled(entry.status, reason=str(entry.meta.get("reason") or ""))
