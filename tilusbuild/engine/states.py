"""The life of a program in a build: its states, who may change them, and where it waits.

A `Ticket` stands for a program that is wanted and has no answer. A program that the store has gets
none: of a hundred thousand that are up to date nothing is kept but their status.

The build loop (`build.BuildLoop`) makes all changes on its one thread, for these events:

    a worker is free: RUNNING                     a worker's message: PUBLISHING, DONE, LOCKED,
    a remote's answer: DONE, READY                                    ISOLATED, SKIPPED
    a new plan: READY, ASKED, UNWANTED, DROPPED   the programs that it needs: ASKED, SKIPPED
                                                  the build stops: SKIPPED

A worker never changes a state. DONE, SKIPPED and DROPPED are final: a program that is wanted again
gets a new ticket. `Ticket.move_to` raises on a change that is not in `TRANSITIONS`, so that a
mistake ends the build instead of compiling a program twice.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from enum import Enum

from msgspec import Struct, field

from tilusbuild.engine.history import NOTHING, Estimate
from tilusbuild.engine.interfaces import Job
from tilusbuild.status import Compiled, Status

# Seconds until a locked program is tried again: at first, and at most after doubling.
FIRST_PAUSE = 0.02
MAX_PAUSE = 0.5
# Tickets of the queue that are tried when the first does not fit, so that a try stays cheap.
_MAX_TRIED_TICKETS = 32


class BuildState(Enum):
    """The state of a ticket. `TRANSITIONS` has the changes."""

    # A remote was asked whether it has the program.
    ASKED = "asked"
    # Waits for a worker, a token and memory.
    READY = "ready"
    # Another builder has the program's lock: retried later.
    LOCKED = "locked"
    # The compile was an accident: retried when nothing else runs.
    ISOLATED = "isolated"
    # A worker has it: lock, look up again, render, compile.
    RUNNING = "running"
    # The compiler has ended and holds no token; the worker writes the program to the store.
    PUBLISHING = "publishing"
    # A worker has it, and the plan has changed: its compiler is being killed.
    UNWANTED = "unwanted"
    # Has its answer: built, failed, crashed, …
    DONE = "done"
    # Has no answer: the build stopped, or a dry run.
    SKIPPED = "skipped"
    # Was wanted by an earlier plan.
    DROPPED = "dropped"


_S = BuildState
_ENDS_WITHOUT_ANSWER = {_S.SKIPPED, _S.DROPPED}
TRANSITIONS: dict[BuildState, set[BuildState]] = {
    _S.ASKED: {_S.READY, _S.DONE, *_ENDS_WITHOUT_ANSWER},
    _S.READY: {_S.ASKED, _S.RUNNING, *_ENDS_WITHOUT_ANSWER},
    _S.LOCKED: {_S.RUNNING, _S.READY, *_ENDS_WITHOUT_ANSWER},
    _S.ISOLATED: {_S.RUNNING, _S.READY, *_ENDS_WITHOUT_ANSWER},
    _S.RUNNING: {_S.PUBLISHING, _S.DONE, _S.LOCKED, _S.ISOLATED, _S.SKIPPED, _S.UNWANTED},
    _S.PUBLISHING: {_S.DONE, _S.SKIPPED, _S.UNWANTED},
    _S.UNWANTED: {_S.DROPPED},
    _S.DONE: set(),
    _S.SKIPPED: set(),
    _S.DROPPED: set(),
}


class Ticket(Struct, eq=False):
    """A program that is wanted and has no answer yet."""

    job: Job
    number: int
    """The position in the plan."""
    estimate: Estimate = NOTHING
    duplicates: list[Job] = field(default_factory=list)
    """Further jobs with the same hash."""
    state: BuildState = BuildState.READY
    accident: Compiled | None = None
    """The first compile, when it ended by accident. The retry runs alone, and is the last."""
    attempted: Job | None = None
    """A copy of the job for one attempt, by which that attempt is cancelled."""
    pause: float = FIRST_PAUSE
    was_asked: bool = False
    """Whether a remote was asked for the program. It is asked once."""
    not_before: float = 0.0
    """When a locked program may be tried again, by the build's clock; 0 was never locked."""

    @property
    def rank(self) -> tuple[bool, float, int]:
        """The sort key of the order of compiling."""
        # Default schedules come first: a script fails without its default, which should show soon.
        # The longest compiles come next, so that the last one to finish is short.
        seconds = self.estimate.seconds or 0.0
        return (not self.job.is_default, -seconds, self.number)

    @property
    def jobs(self) -> list[Job]:
        """Every job that shares this program."""
        return [self.job, *self.duplicates]

    def move_to(self, state: BuildState) -> None:
        """Change the state. Raises `RuntimeError` for a change that is not in the table."""
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"{self.job.label}: from {self.state.name} to {state.name}")
        self.state = state


class ReadyQueue:
    """The tickets that wait (READY, LOCKED, ISOLATED), and which of them is started next.

    Default schedules come first, then the longest expected; without a history, and among equals,
    plan order. LOCKED ones come back when nothing else can start, and ISOLATED ones last. Holds no
    threads or clocks, and changes no state.
    """

    def __init__(self, tickets: Iterable[Ticket] = ()) -> None:
        self._ready = deque(sorted(tickets, key=lambda ticket: ticket.rank))
        self._locked: list[Ticket] = []
        self._isolated: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._ready) + len(self._locked) + len(self._isolated)

    def add_ready(self, ticket: Ticket) -> None:
        """Add a READY ticket, ordered by its rank."""
        insort(self._ready, ticket, key=lambda waiting: waiting.rank)

    def add_locked(self, ticket: Ticket, now: float) -> None:
        """Add a ticket whose program another builder has locked, to be tried again after a pause,
        which doubles each time up to `MAX_PAUSE`."""
        ticket.not_before = now + ticket.pause
        ticket.pause = min(2 * ticket.pause, MAX_PAUSE)
        self._locked.append(ticket)

    def add_isolated(self, ticket: Ticket) -> None:
        """Add a ticket that is retried when nothing else runs."""
        self._isolated.append(ticket)

    def pop_next(
        self, now: float, try_admit: Callable[[Ticket], bool], idle: bool
    ) -> Ticket | None:
        """Remove and return the first ticket that `try_admit` accepts; None when none may start.

        A LOCKED ticket is tried when none is READY and its pause is over by `now`. An ISOLATED one
        is returned, without `try_admit`, when `idle` says that nothing runs and none is LOCKED.
        """
        for position in range(min(_MAX_TRIED_TICKETS, len(self._ready))):
            ticket = self._ready[position]
            if try_admit(ticket):
                del self._ready[position]
                return ticket
        if self._ready:
            return None
        for position, ticket in enumerate(self._locked):
            if ticket.not_before <= now and try_admit(ticket):
                del self._locked[position]
                return ticket
        # An isolated program runs alone, so it waits for the locked ones, which may start at any
        # moment.
        if not self._locked and idle and self._isolated:
            return self._isolated.popleft()
        return None

    def pop_matching(self, matches: Callable[[Ticket], bool]) -> list[Ticket]:
        """Remove and return the waiting tickets for which `matches` is true. The others keep their
        order."""
        popped: list[Ticket] = []
        others: list[Ticket] = []
        for ticket in self.drain_tickets():
            if matches(ticket):
                popped.append(ticket)
            else:
                others.append(ticket)
        # `drain_tickets` has emptied the queues: each of the others goes back into that of its
        # state, in the order in which it came out.
        queues = {BuildState.LOCKED: self._locked, BuildState.ISOLATED: self._isolated}
        for ticket in others:
            queues.get(ticket.state, self._ready).append(ticket)
        return popped

    def find_wake_time(self) -> float | None:
        """Return when the first locked ticket may be tried; None when a READY one comes first."""
        if self._ready or not self._locked:
            return None
        return min(ticket.not_before for ticket in self._locked)

    def drain_tickets(self) -> list[Ticket]:
        """Remove and return all tickets."""
        tickets = [*self._ready, *self._locked, *self._isolated]
        self._ready.clear()
        self._locked.clear()
        self._isolated.clear()
        return tickets


def split_blocked(
    blocked: Iterable[Ticket], unanswered: Container[str], statuses: Mapping[str, Status]
) -> tuple[list[Ticket], list[Ticket], list[Ticket]]:
    """Split tickets by the programs that they need, as a library needs its objects.

    Return those whose programs are all built, those with a program that was not built, and those
    with a program in `unanswered`.
    """
    unblocked: list[Ticket] = []
    unbuildable: list[Ticket] = []
    waiting: list[Ticket] = []
    for ticket in blocked:
        needed_programs = ticket.job.needs
        if any(program in unanswered for program in needed_programs):
            waiting.append(ticket)
            continue
        # A program without a status is not in this plan, and counts as built.
        needed_statuses = [statuses.get(program, Status.BUILT) for program in needed_programs]
        if all(status == Status.BUILT for status in needed_statuses):
            unblocked.append(ticket)
        else:
            unbuildable.append(ticket)
    return unblocked, unbuildable, waiting
