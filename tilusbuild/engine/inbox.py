"""The inbox of a build: plans, signals, and programs of a remote cache.

The build loop takes its messages from the inbox of a `PlanQueue`. A new plan is a message, so one
loop serves `build`, which has one plan, and `watch`, which replaces the plan while it runs.

A `Remote` is asked for programs that the store does not have. It answers for each program once, in
the same inbox. Nothing here waits for a network: when cores are idle and no answer came for the
remote's `patience` seconds, a program is compiled here, and a later answer is ignored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, TypeAlias

from msgspec import Struct

from tilusbuild.engine.attempt import ProgramAnswer
from tilusbuild.engine.events import RemoteSummary
from tilusbuild.engine.interfaces import Job
from tilusbuild.engine.states import BuildState, Ticket
from tilusbuild.status import Compiled, Status

PlanMaker: TypeAlias = Callable[[Callable[[Job], None]], Iterable[Job]]
"""Makes a plan, and returns its jobs. It may call its argument with a job of the plan, once that is
known: the build starts it ahead of the others."""


class NewPlan(Struct, frozen=True):
    """Message: build these programs, and no others."""

    jobs: Iterable[Job] | PlanMaker
    ahead: Sequence[Job] = ()
    """The new ones among `jobs`, which start before the others are looked up."""


class AddedJobs(Struct, frozen=True):
    """Message: build these programs, too."""

    jobs: Sequence[Job]


class RemoteAnswered(Struct, frozen=True):
    """Message of a remote: the store has the program now; without an answer, compile it here."""

    program: str
    answer: ProgramAnswer | None


class PlanQueue:
    """The plan of a build, which another thread may replace while the build runs.

    A compile of a program that the new plan has, too, goes on; that of another program is killed.
    The build ends with the programs of its latest plan; one of an open queue waits for further jobs
    then, until the queue is closed. Any thread may call `replace_jobs`, `add_jobs`, `close` and
    `stop_build`, only the build's thread the other methods.
    """

    def __init__(
        self, jobs: Iterable[Job] | PlanMaker, ahead: Sequence[Job] = (), *, is_open: bool = False
    ) -> None:
        """Begin with the plan of `jobs`, which the build's thread iterates or makes. `ahead` is as
        in `NewPlan`."""
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        """The messages above, those of workers, events, and signals by number. None has the loop
        look again: the build may end now, or a token is free."""
        self._guard = threading.Lock()
        self._ended = False
        self._is_open = is_open
        self._answers: dict[str, ProgramAnswer] = {}
        self.inbox.put(NewPlan(jobs, ahead))

    def replace_jobs(self, jobs: Iterable[Job], ahead: Sequence[Job] = ()) -> bool:
        """Replace the plan; `ahead` is as in `NewPlan`. Return False when the build has ended, so
        that the caller begins a new one."""
        with self._guard:
            if not self._ended:
                self.inbox.put(NewPlan(tuple(jobs), ahead))
            return not self._ended

    def add_jobs(self, jobs: Sequence[Job]) -> None:
        """Add programs to the plan of an open queue."""
        self.inbox.put(AddedJobs(jobs))

    def close(self) -> None:
        """Have the build end with the programs that it has."""
        self._is_open = False
        self.inbox.put(None)

    def stop_build(self, signal: int) -> None:
        """Have the build kill its compilers and end, as for this signal."""
        self.inbox.put(signal)

    def find_answer(self, job: Job) -> ProgramAnswer | None:
        """Return the answer that a program got in this build, under any plan; None without one."""
        return self._answers.get(job.hash)

    def record_answer(self, job: Job, answer: ProgramAnswer) -> None:
        """Keep an answer for later plans of this build."""
        # CHANGED is not kept: the next plan reads the changed input, and may build the program.
        if answer.compiled.status != Status.CHANGED:
            self._answers[job.hash] = answer

    def try_end(self, *, now: bool) -> bool:
        """End the build if `now` is set, or if the queue is not open and the inbox is empty. Return
        whether it has ended; then `replace_jobs` returns False."""
        # `replace_jobs` puts its plan under the same guard. So either the plan is in the inbox by
        # now and this build takes it, or its sender learns that it is too late.
        with self._guard:
            self._ended = now or (not self._is_open and self.inbox.empty())
            return self._ended


class Remote:
    """A remote cache: fetches programs, and gets those that were compiled here. This one is empty.

    All methods are called on the build's thread, do not wait, and raise nothing.
    """

    @property
    def patience(self) -> float:
        """Seconds without an answer after which idle cores compile what was asked for."""
        return 0.0

    def ask(self, jobs: Sequence[Job], listen: Callable[[Any], None], /) -> Collection[str]:
        """Begin to ask for programs. Return the hashes of those for which `listen` will be called
        with a `RemoteAnswered`. `listen` is also called with events, and with None to have the loop
        look again."""
        return ()

    def add_built(self, job: Job, compiled: Compiled, /) -> None:
        """Send a program that was compiled here and is in the store, if the remote takes any."""

    def is_busy(self) -> bool:
        """Return whether the build has to wait for programs that are being sent."""
        return False

    def stop(self) -> None:
        """Ask and send nothing more."""

    def summary(self) -> RemoteSummary | None:
        """Return the sums of the build; None when the remote was not used."""
        return None


class AskedTickets:
    """The tickets that a remote has not answered yet: those that are ASKED."""

    def __init__(
        self, remote: Remote, listen: Callable[[Any], None], clock: Callable[[], float]
    ) -> None:
        self._remote = remote
        self._listen = listen
        self._clock = clock
        self._by_hash: dict[str, Ticket] = {}
        self._last_answer_at = 0.0

    def __len__(self) -> int:
        return len(self._by_hash)

    @property
    def tickets(self) -> Collection[Ticket]:
        return self._by_hash.values()

    def keep_only(self, hashes: Collection[str]) -> None:
        """Forget the tickets of all other programs."""
        self._by_hash = {
            program: ticket for program, ticket in self._by_hash.items() if program in hashes
        }

    def ask_remote(self, tickets: Sequence[Ticket]) -> list[Ticket]:
        """Ask the remote for the READY tickets that it was not asked for before. Move those that it
        will answer to ASKED, and return the other tickets."""
        ready = [ticket for ticket in tickets if ticket.state is BuildState.READY]
        candidates = [ticket for ticket in ready if not (ticket.was_asked or ticket.job.kept_here)]
        requested_hashes = self._remote.ask([ticket.job for ticket in candidates], self._listen)
        self._last_answer_at = self._clock()
        for ticket in candidates:
            if ticket.job.hash in requested_hashes:
                ticket.was_asked = True
                ticket.move_to(BuildState.ASKED)
                self._by_hash[ticket.job.hash] = ticket
        return [ticket for ticket in tickets if ticket.state is not BuildState.ASKED]

    def pop_answered(self, program: str) -> Ticket | None:
        """Remove and return the ticket of a program; None when it does not wait any more."""
        self._last_answer_at = self._clock()
        return self._by_hash.pop(program, None)

    def pop_overdue(self) -> Ticket | None:
        """Remove and return the ticket that was asked for last, when the remote's patience is over;
        else None."""
        if not self._by_hash or self._clock() - self._last_answer_at < self._remote.patience:
            return None
        # `popitem` removes the ticket that was asked for last, whose program is the least likely to
        # be on its way already.
        _, ticket = self._by_hash.popitem()
        return ticket

    def drain_tickets(self) -> list[Ticket]:
        """Remove and return all tickets."""
        tickets = list(self._by_hash.values())
        self._by_hash.clear()
        return tickets
