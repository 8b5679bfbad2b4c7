"""What comes into a build from outside: plans, signals, programs from elsewhere.

The build loop takes its messages from a queue's inbox, a new plan being one of them, and asks the
queue two things: what it knows of a program from before, and whether the build may end. So there is
one loop for `build`, which has one plan, and for `watch`, which exchanges the plan as it runs.

A remote is asked for what the store has not, and answers in the same inbox, each program once: it
is in the store now, or it is to be compiled here. Nothing here waits for a network. While cores
have nothing to do and no answer has come for the remote's `patience`, a program that was asked for
is compiled all the same; an answer that comes after that is ignored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from queue import SimpleQueue
from typing import Any

from msgspec import Struct

from tilusbuild.engine.attempt import ProgramAnswer
from tilusbuild.engine.events import RemoteSummary
from tilusbuild.engine.interfaces import Job
from tilusbuild.engine.states import BuildState, Ticket
from tilusbuild.status import Compiled, Status


class NewPlan(Struct, frozen=True):
    """These programs, and no others."""

    jobs: Iterable[Job]
    ahead: Sequence[Job] = ()
    """Those of them that are new: started before the others are looked up."""


class RemoteAnswered(Struct, frozen=True):
    """Message of a remote: a program is in the store now; without an answer, compile it here."""

    program: str
    answer: ProgramAnswer | None


class PlanQueue:
    """One plan, or several that another thread exchanges while the build runs, as `watch` does.

    A compiler that works for a program that is still wanted is never disturbed; one whose program
    is not is killed, alone; what waits is sorted again. The build ends with the programs of its
    latest plan. `replace_jobs` and `stop_build` may be called from any thread, the others on the
    build's.
    """

    def __init__(self, jobs: Iterable[Job], ahead: Sequence[Job] = ()) -> None:
        """Begin with the plan of these `jobs`, which are asked for when the build has begun.
        `ahead` is as in `NewPlan`."""
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        """Brings the messages above; workers and signals put their own. None is nothing new, but
        look again: the loop may end now, or there is a token for a compile."""
        self._guard = threading.Lock()
        self._ended = False
        self._answers: dict[str, ProgramAnswer] = {}
        self.inbox.put(NewPlan(jobs, ahead))

    def replace_jobs(self, jobs: Iterable[Job], ahead: Sequence[Job] = ()) -> bool:
        """Want these programs and no others; `ahead` as in `NewPlan`. Return False when the build
        has ended: then they are for a new one."""
        with self._guard:
            if not self._ended:
                self.inbox.put(NewPlan(tuple(jobs), ahead))
            return not self._ended

    def stop_build(self, signal: int) -> None:
        """Kill what runs and end, as for this signal."""
        self.inbox.put(signal)

    def find_answer(self, job: Job) -> ProgramAnswer | None:
        """Return the answer that this build gave to a program of a plan before."""
        return self._answers.get(job.hash)

    def record_answer(self, job: Job, answer: ProgramAnswer) -> None:
        """Take note of an answer."""
        # A program whose input changed may well build under the next plan.
        if answer.compiled.status != Status.CHANGED:
            self._answers[job.hash] = answer

    def try_end(self, *, now: bool) -> bool:
        """Return whether the build ends, asked when it has nothing to do. With `now` it does."""
        # The guard and the check of the inbox make `replace_jobs` and this exclude each other: a
        # plan is either taken by this build, or its sender learns that it is too late.
        with self._guard:
            self._ended = now or self.inbox.empty()
            return self._ended


class Remote:
    """Where programs may be had, and where those that were compiled here are sent. The methods are
    called on the build's thread, do not wait, and raise nothing. This one has none."""

    @property
    def patience(self) -> float:
        """Seconds without an answer after which cores that are idle do not wait any longer."""
        return 0.0

    def ask(self, jobs: Sequence[Job], listen: Callable[[Any], None], /) -> Collection[str]:
        """Begin to ask for programs, if there are any; return the hashes of those that `listen`
        will get a `RemoteAnswered` for. It gets events, too, and None to have the loop look
        again."""
        return ()

    def add_built(self, job: Job, compiled: Compiled, /) -> None:
        """Take note of a program that was compiled for this build and is in the store."""

    def is_busy(self) -> bool:
        """Return whether something is still on its way there that is worth waiting for."""
        return False

    def stop(self) -> None:
        """Ask and send nothing more."""

    def summary(self) -> RemoteSummary | None:
        """Return what it came to; None when it was not needed."""
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
        """Forget those of which the program is wanted no more."""
        self._by_hash = {key: value for key, value in self._by_hash.items() if key in hashes}

    def ask_remote(self, tickets: Sequence[Ticket]) -> list[Ticket]:
        """Ask for those that are READY and never were asked for; return the others."""
        candidates = [
            each
            for each in tickets
            if each.state is BuildState.READY and not (each.was_asked or each.job.kept_here)
        ]
        requested_hashes = self._remote.ask([each.job for each in candidates], self._listen)
        self._last_answer_at = self._clock()
        for ticket in candidates:
            if ticket.job.hash in requested_hashes:
                ticket.was_asked = True
                ticket.move_to(BuildState.ASKED)
                self._by_hash[ticket.job.hash] = ticket
        return [each for each in tickets if each.state is not BuildState.ASKED]

    def pop_answered(self, program: str) -> Ticket | None:
        """Take out the ticket that was answered; None for one that is not waited for any more."""
        self._last_answer_at = self._clock()
        return self._by_hash.pop(program, None)

    def pop_overdue(self) -> Ticket | None:
        """Take out one to compile here, when nothing was heard for long: the one asked for last."""
        if not self._by_hash or self._clock() - self._last_answer_at < self._remote.patience:
            return None
        return self._by_hash.popitem()[1]

    def drain_tickets(self) -> list[Ticket]:
        """Take all out."""
        tickets = list(self._by_hash.values())
        self._by_hash.clear()
        return tickets
