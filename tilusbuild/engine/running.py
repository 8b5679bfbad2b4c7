"""The tickets that workers have, and whether one more may join them.

Room is counted in places for compilers: what has ended and is being published waits for the disk,
and takes none. Then a program needs memory for what it is expected to take, a token of who shares
out the machine, and, in a unit of which no program has been compiled, that no other one of it is
being compiled: what they share is made once. Everything here runs on the build's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilusbuild.engine.config import BuildConfig
from tilusbuild.engine.history import History
from tilusbuild.engine.interfaces import Compiler
from tilusbuild.engine.resources import JobTokens, NoJobserver, Unlimited
from tilusbuild.engine.states import BuildState, ReadyQueue, Ticket
from tilusbuild.engine.timeline import MEMORY, TOKEN, Timeline
from tilusbuild.status import Compiled, Status

_PUBLISHING = 3
"""How many may be on their way into the store, for each that may compile: they wait for the disk,
and the cores are free meanwhile."""


class RunningTickets:
    """Those that a worker has, also when they are no longer wanted."""

    def __init__(
        self,
        config: BuildConfig,
        history: History,
        timeline: Timeline,
        token_available: Callable[[], None],
    ) -> None:
        """`token_available` is called, on any thread, when one that was refused can be had."""
        self._places = config.places
        self._history = history
        self._timeline = timeline
        self._admission = config.admission or Unlimited()
        self._tokens = JobTokens(config.tokens or NoJobserver())
        self._token_available = token_available
        self._tickets: set[Ticket] = set()
        self._begun: set[str] = set()
        """The units of which a program has been compiled."""

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._tickets

    def add(self, ticket: Ticket) -> None:
        """Take note that a worker is about to have it."""
        for wait in (MEMORY, TOKEN):
            self._timeline.waited(wait)
        self._tickets.add(ticket)

    def remove(self, ticket: Ticket) -> None:
        """Take note that no worker got it."""
        self._tickets.remove(ticket)

    def ended(self, ticket: Ticket) -> None:
        """Take note that its worker is idle again."""
        self._tickets.remove(ticket)
        self._begun.add(ticket.job.unit)
        self.give_tokens_back()

    def give_tokens_back(self) -> None:
        """Keep the tokens of those whose compiler has not ended."""
        self._tokens.shrink(len(self._compiling()))

    def close(self) -> None:
        """Give every token back."""
        self._tokens.shrink(0)

    def has_room(self) -> bool:
        """Return whether there is a place for one more."""
        compiling = len(self._compiling())
        publishing = len(self._tickets) - compiling
        return compiling < self._places and publishing <= _PUBLISHING * self._places

    def is_alone(self) -> bool:
        """Return whether one runs beside which nothing may: it was killed for want of memory."""
        return any(ticket.alone for ticket in self._tickets)

    def fits(self, ticket: Ticket) -> bool:
        """Return whether this one may start; then a token is taken for it."""
        # Estimated again, because what ran meanwhile may have taught us something.
        ticket.estimate = self._history.estimate(ticket.job)
        if not self._tickets:
            return True
        compiling = self._compiling()
        unit = ticket.job.unit
        if unit and unit not in self._begun and unit in {each.job.unit for each in compiling}:
            return False  # what it shares is being made
        peaks = [other.estimate.peak_rss or 0 for other in compiling]
        # Memory first: a token that is taken for nothing is kept from others until something ends.
        short_of = None
        if not self._admission.admits(ticket.estimate.peak_rss, peaks):
            short_of = MEMORY
        elif not self._tokens.try_acquire(len(compiling) + 1, self._token_available):
            short_of = TOKEN
        if short_of is not None:
            self._timeline.wait(short_of, short_of)
        return short_of is None

    def cancel_unwanted(self, compiler: Compiler) -> None:
        """Have those end that are no longer wanted."""
        for ticket in self._tickets:
            if ticket.state is BuildState.UNWANTED:
                # A program that is dropped and wanted again has a second ticket, which may compile
                # while the end of the first one is still in the inbox. So not by its hash.
                compiler.cancel_job(ticket.attempted)

    def _compiling(self) -> list[Ticket]:
        """Return those whose compiler has not ended, as far as is known."""
        return [each for each in self._tickets if each.state is not BuildState.PUBLISHING]


_RETRIED = (Status.KILLED, Status.CRASHED, Status.NO_OUTPUT)
"""Not `TIMED_OUT`, which would take as long again."""
_MAX_IN_VAIN = 8
"""After so many retries in a row that were accidents again, those that wait for theirs are reported
as they are, but for those killed for want of memory: one at a time, hundreds of crashes would take
hours."""


class Retries:
    """Counts what retries came to. Used by the build's thread."""

    def __init__(self) -> None:
        self._in_vain = 0

    def wants(self, ticket: Ticket, compiled: Compiled) -> bool:
        """Return whether a compile that ended so is tried once more. Called once for each end."""
        accident = compiled.status in _RETRIED
        if ticket.alone:
            self._in_vain = self._in_vain + 1 if accident else 0
            return False
        return accident and (compiled.status == Status.KILLED or not self._are_useless())

    def given_up(self, ready: ReadyQueue) -> list[tuple[Ticket, Compiled]]:
        """Take out those that are not tried once more after all, with how they ended."""
        return ready.take_isolated(_RETRIED[1:]) if self._are_useless() else []

    def _are_useless(self) -> bool:
        return self._in_vain >= _MAX_IN_VAIN
