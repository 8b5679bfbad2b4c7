"""What to start next: the waiting programs, as a pure structure without threads or clocks.

Default schedules come first, because a script without its default has failed and everybody wants to
know soon. Then the longest expected, so that the last to finish is a short one; without a history,
and among equals, plan order. A program that another builder holds goes to the side and comes back
when it may be free; one that was killed for memory comes last, when nothing else runs.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic

from tilusbuild.engine.base import Job, W
from tilusbuild.engine.history import NOTHING, Estimate

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.5
_WINDOW = 32
"""How far down the line to look for a program that fits when the first does not."""


@dataclass(slots=True, eq=False)
class Ticket(Generic[W]):
    """A program that has no answer yet."""

    job: Job[W]
    number: int
    """Its place in the plan."""
    estimate: Estimate = NOTHING
    twins: list[Job[Any]] = field(default_factory=list)
    """Further jobs with the same hash."""
    alone: bool = False
    """Was killed for memory once: runs when nothing else does."""
    pause: float = FIRST_PAUSE
    not_before: float = 0.0

    @property
    def rank(self) -> tuple[bool, float, int]:
        """What sorts tickets into the order of compiling."""
        return (not self.job.is_default, -(self.estimate.seconds or 0.0), self.number)


class Line(Generic[W]):
    """Tickets that wait."""

    def __init__(self, tickets: Iterable[Ticket[W]]) -> None:
        self._ready = deque(sorted(tickets, key=lambda ticket: ticket.rank))
        self._held: list[Ticket[W]] = []
        self._alone: deque[Ticket[W]] = deque()

    def __len__(self) -> int:
        return len(self._ready) + len(self._held) + len(self._alone)

    def add(self, ticket: Ticket[W]) -> None:
        """One more, at the place that its rank gives it."""
        insort(self._ready, ticket, key=lambda each: each.rank)

    def remove(self, ticket: Ticket[W]) -> None:
        """Take one out that waits here."""
        for waiting in (self._ready, self._held, self._alone):
            if ticket in waiting:
                waiting.remove(ticket)
                return

    def hold(self, ticket: Ticket[W], now: float) -> None:
        """Another builder has it: look again after a pause that grows."""
        ticket.not_before = now + ticket.pause
        ticket.pause = min(2 * ticket.pause, LONGEST_PAUSE)
        self._held.append(ticket)

    def isolate(self, ticket: Ticket[W]) -> None:
        """Try it once more when nothing else runs."""
        ticket.alone = True
        self._alone.append(ticket)

    def next(self, now: float, fits: Callable[[Ticket[W]], bool], idle: bool) -> Ticket[W] | None:
        """The one to start, or None when none may start now; `idle` when nothing runs."""
        for position in range(min(_WINDOW, len(self._ready))):
            if fits(self._ready[position]):
                ticket = self._ready[position]
                del self._ready[position]
                return ticket
        if self._ready:
            return None
        for position, ticket in enumerate(self._held):
            if ticket.not_before <= now and fits(ticket):
                del self._held[position]
                return ticket
        if not self._held and idle and self._alone:
            return self._alone.popleft()
        return None

    def wake(self) -> float | None:
        """When the first of the held may be tried again; None when there is no need to look."""
        if self._ready or not self._held:
            return None
        return min(ticket.not_before for ticket in self._held)

    def drain(self) -> list[Ticket[W]]:
        """Everything that waits, taken out."""
        tickets = [*self._ready, *self._held, *self._alone]
        self._ready.clear()
        self._held.clear()
        self._alone.clear()
        return tickets
