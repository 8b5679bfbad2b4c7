"""A build whose programs change while it runs: what is not wanted any more is dropped.

Another thread says through a `Control` what is wanted now. A compiler that works for a program that
is still wanted is never disturbed; one whose program is not is killed, alone; what waits is sorted
anew. What this build did counts as done by it, in whichever plan the program appears next. With
nothing left to do the build waits for as long as its control is open.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, Protocol

from tilusbuild.engine.admission import Admission
from tilusbuild.engine.attempt import Answer, Gone
from tilusbuild.engine.base import Compiled, Compiler, Job, Options, W, W_contra
from tilusbuild.engine.build import BuildLoop
from tilusbuild.engine.events import Dropped, Reporter, Result
from tilusbuild.engine.history import History
from tilusbuild.engine.ledger import Ledger
from tilusbuild.engine.order import Ticket
from tilusbuild.engine.slots import Slots
from tilusbuild.engine.store import Store


class SingleCompiler(Compiler[W_contra], Protocol[W_contra]):
    """A compiler that can be stopped for one program."""

    def cancel_job(self, job: Job[Any]) -> None:
        """Kill what runs for this program; may be called again, also when nothing does."""
        ...


@dataclass(frozen=True, slots=True)
class _Want(Generic[W]):
    job: Job[W]
    instead: str | None


@dataclass(frozen=True, slots=True)
class _Replace(Generic[W]):
    jobs: tuple[Job[W], ...]


@dataclass(frozen=True, slots=True)
class _Look:
    """Nothing new, but the loop may end now."""


class Control(Generic[W]):
    """Says what a build is to have; every method may be called from any thread.

    `want` and `replace` return False when the build has ended: then it is for a new one.
    """

    def __init__(self) -> None:
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self._guard = threading.Lock()
        self._open = True
        self._ended = False

    def want(self, job: Job[W], instead: str | None = None) -> bool:
        """This program too, ahead of a whole plan; the one with the hash `instead` no more."""
        return self._send(_Want(job, instead))

    def replace(self, jobs: Iterable[Job[W]], *, last: bool = True) -> bool:
        """These programs and no others. The build ends with them when they are the `last`."""
        return self._send(_Replace(tuple(jobs)), keep_open=not last)

    def close(self) -> None:
        """End when all is done."""
        self._send(_Look(), keep_open=False)

    def stop(self, signal: int) -> None:
        """Kill what runs and end, as for this signal."""
        self.inbox.put(signal)

    def end(self, *, now: bool) -> bool:
        """Asked by the build when it has nothing to do: whether it ends. With `now` it does."""
        with self._guard:
            self._ended = now or (not self._open and self.inbox.empty())
            return self._ended

    def _send(self, message: object, *, keep_open: bool = True) -> bool:
        with self._guard:
            if self._ended:
                return False
            self._open = keep_open
            self.inbox.put(message)
            return True


def build_changing(
    control: Control[W],
    store: Store,
    compiler: SingleCompiler[W],
    reporter: Reporter,
    options: Options,
    *,
    history: History | None = None,
    admission: Admission | None = None,
    slots: Slots | None = None,
    warnings: Sequence[str] = (),
    began: float | None = None,
) -> Result:
    """As `build.build`, with the jobs that `control` names; not for the main thread, as it catches
    no signals."""
    loop = _Changing(
        control, store, compiler, reporter, options, history, admission, slots, warnings
    )
    try:
        return loop.build((), time.monotonic() if began is None else began)
    finally:
        control.end(now=True)


class _Changing(BuildLoop[W]):
    """The state of such a build. `_tickets` are those of the programs wanted now that have no
    answer; a running ticket that is not among them is being killed."""

    compiler: SingleCompiler[W]

    def __init__(
        self,
        control: Control[W],
        store: Store,
        compiler: SingleCompiler[W],
        reporter: Reporter,
        options: Options,
        history: History | None,
        admission: Admission | None,
        slots: Slots | None,
        warnings: Sequence[str],
    ) -> None:
        super().__init__(
            store,
            compiler,
            reporter,
            options,
            history,
            admission,
            slots,
            warnings,
            time.monotonic,
        )
        self._control = control
        self.inbox = control.inbox
        self._tickets: dict[str, Ticket[W]] = {}
        self._answers: dict[str, tuple[Compiled, bool]] = {}
        self._kept: dict[str, Ticket[W]] = {}
        """Tickets of the plan before, while a new one is made."""

    def _plan(self, jobs: Iterable[Job[W]]) -> None:
        """Nothing is known yet; the control will tell."""

    def _loop(self) -> None:
        while True:
            self._dispatch()
            idle = not self.running and not len(self.line)
            if idle and self._control.end(now=self.stopped.is_set()):
                return
            self._take(self._next_message())

    def _take(self, message: Any) -> None:
        if isinstance(message, _Want):
            self._want(message.job)
            if message.instead is not None:
                self._drop(message.instead)
        elif isinstance(message, _Replace):
            self._replace(message.jobs)
        elif not isinstance(message, _Look):
            super()._take(message)
        self._kill_useless()

    def _kill_again(self) -> None:
        super()._kill_again()
        self._kill_useless()

    def _kill_useless(self) -> None:
        for ticket in self.running:
            if self._tickets.get(ticket.job.hash) is not ticket:
                self.compiler.cancel_job(ticket.job)

    # What is wanted.

    def _want(self, job: Job[W]) -> None:
        if job.hash in self._tickets or self.stopped.is_set() or self._known(job) is not None:
            return
        ticket = self._tickets[job.hash] = Ticket(job, self.to_compile)
        ticket.estimate = self.history.estimate(job)
        self.to_compile += 1
        self.line.add(ticket)

    def _drop(self, program: str) -> None:
        ticket = self._tickets.pop(program, None)
        if ticket is not None and ticket not in self.running:
            self.line.remove(ticket)

    def _replace(self, jobs: tuple[Job[W], ...]) -> None:
        self.line.drain()
        before = self.ledger
        self.ledger = Ledger(self.store)
        self.ledger.attempts = before.attempts
        self.done = 0
        self._kept, self._tickets = self._tickets, {}
        super()._plan(jobs)
        self._kept = {}
        if self.stopped.is_set():
            self._skip_line()

    def _known(self, job: Job[W]) -> tuple[Compiled, bool] | None:
        if job.hash in self._kept:
            # Published, perhaps, by a compile of ours whose end was not told yet.
            return None
        return self._answers.get(job.hash) or super()._known(job)

    def _ticket(self, job: Job[W], number: int) -> Ticket[W]:
        ticket = self._kept.get(job.hash)
        if ticket is None:
            ticket = Ticket(job, number)
        ticket.job, ticket.number, ticket.twins = job, number, []
        self._tickets[job.hash] = ticket
        return ticket

    # What came of it.

    def _answered(self, ticket: Ticket[W], answer: Answer) -> None:
        if self._tickets.get(ticket.job.hash) is not ticket:
            self.reporter.emit(Dropped(ticket.job.hash, ticket.job.label))
            return
        if isinstance(answer, Gone) and not self.stopped.is_set():
            # It was killed for a plan before this one, and is wanted again.
            self.line.add(ticket)
            return
        super()._answered(ticket, answer)

    def _finish(self, ticket: Ticket[W], compiled: Compiled, cached: bool = False) -> None:
        self._tickets.pop(ticket.job.hash, None)
        if compiled.status != "changed":
            self._answers[ticket.job.hash] = compiled, cached
        super()._finish(ticket, compiled, cached)

    def _skip(self, ticket: Ticket[W]) -> None:
        self._tickets.pop(ticket.job.hash, None)
        super()._skip(ticket)
