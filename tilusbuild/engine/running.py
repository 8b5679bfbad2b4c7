"""How a build is to run, and whether one more compile may start beside those that run.

Room is counted in places for compilers: what has ended and is being published waits for the disk,
and takes none. Then a program needs memory for what it is expected to take, a token of
the jobserver, and, in a unit of which no program has been compiled, that no other one of it is
being compiled: what they share is made once. An `Admission` asks the machine: `MemoryLimit` so that
a build never meets the OOM killer, `make_load_limit` for `--load-average`. A `TokenSource`, as
make's jobserver, shares the right to compile with other processes. All are used by the build's
thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from msgspec import Struct

from tilusbuild.engine.history import History
from tilusbuild.engine.inbox import Remote
from tilusbuild.engine.interfaces import Compiler
from tilusbuild.engine.states import BuildState, Ticket
from tilusbuild.process.machine import Machine, count_usable_cores
from tilusbuild.status import Cause, Compiled, Status

UNKNOWN_PEAK = 2 << 30
"""Bytes reckoned for a compile that nothing is known of. nvcc takes 200 MB for a small kernel and
3 to 5 GB for a heavy one: this is little enough to use what machines have, some 2 to 4 GB a core,
until the first compile of a build has ended and says more."""
_MARGIN = 1.1
"""A compile may need this much more than the last time."""
_RESERVE = 0.05
"""The part of what is free that is left alone."""
_CHECK_EVERY = 0.05
"""Seconds. Many programs are asked about when none fits; a check reads a dozen files."""
_PRESSED = 0.1
"""The share of time without progress for want of memory from which memory counts as pressed."""
_PUBLISHING = 3
"""How many may be on their way into the store, for each that may compile: they wait for the disk,
and the cores are free meanwhile."""
_RETRIED = (Status.CRASHED, Status.NO_OUTPUT)
"""Not `TIMED_OUT`, which would take as long again."""
_MAX_RETRIES = 4
"""Of a build: they run one at a time, and hundreds of crashes would take hours."""
_PERMANENT = (Cause.OUTSIDE, Cause.TOOL)
"""A file outside that a source names, a tool that does not start: the same a second later."""


Admission: TypeAlias = Callable[[int | None, list[int]], bool]
"""Decides whether one more compile may start, of its predicted peak in bytes and those of what runs
(0 or None: unknown). Not asked when nothing runs: one compile may always."""


class MemoryLimit:
    """Admits what memory has room for. Make it before the build starts anything.

    Each running compile is reckoned with its predicted peak, however little it holds yet. The sum
    must stay within what was free when nothing of ours ran, and the newcomer must fit what is free
    now, so that other programs on the machine, and compiles that take more than was predicted,
    count too. While memory is pressed, nothing is started beside what runs.
    """

    def __init__(
        self, machine: Machine | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._machine = machine or Machine()
        self._clock = clock
        self._at_start = self._machine.measure_free_memory()
        self._free_now = 0.0
        self._checked = float("-inf")

    def can_start(self, need: int | None, running: list[int]) -> bool:
        """As an `Admission`."""
        if self._at_start is None:
            return True
        needed = _reserve_for(need)
        total = needed + sum(_reserve_for(each) for each in running)
        return total <= self._at_start * (1 - _RESERVE) and needed <= self._measure_free()

    def _measure_free(self) -> float:
        """Return bytes that may be used now; none while memory is pressed."""
        if (now := self._clock()) - self._checked >= _CHECK_EVERY:
            is_pressed = self._machine.measure_memory_pressure() >= _PRESSED
            free = 0 if is_pressed else self._machine.measure_free_memory() or 0
            self._free_now, self._checked = free * (1 - _RESERVE), now
        return self._free_now


def _reserve_for(need: int | None) -> float:
    return need * _MARGIN if need else UNKNOWN_PEAK


def make_load_limit(
    limit: float, average: Callable[[], tuple[float, float, float]] = os.getloadavg
) -> Admission:
    """Return what refuses at a load average of `limit` or more."""

    def can_start(need: int | None, running: list[int]) -> bool:
        try:
            load = average()[0]
        except OSError:  # the system does not say
            load = 0.0
        # The average follows what happens with a delay of a minute, so compiles of ours count as a
        # load of one each, whatever it says yet: a build never starts more than its limit at once.
        return max(load, len(running)) < limit

    return can_start


class TokenSource(Protocol):
    """Gives the right to compile. The first compile at a time needs no token; each further one has
    one, from before it starts until its compiler has ended."""

    def try_acquire(self) -> bool:
        """Take one token if there is one now; never wait."""

    def release(self) -> None:
        """Give one token back that was taken."""

    def notify_when_available(self, callback: Callable[[], None], /) -> None:
        """Call `callback`, once and from any thread, when `try_acquire` may succeed. A second
        request before that changes nothing."""


class SharedTokens:
    """The tokens for `own` compiles on this machine, from a source if there is one, and for so many
    more on other machines. `local_tokens` are those that are held of the first."""

    def __init__(self, source: TokenSource | None, own: int, more: int) -> None:
        self._source = source
        self._own = own
        self._more = more
        self._remote_tokens = 0
        self.local_tokens = 0

    def try_acquire(self) -> bool:
        if self.local_tokens < self._own and (self._source is None or self._source.try_acquire()):
            self.local_tokens += 1
            return True
        if self._remote_tokens < self._more:
            self._remote_tokens += 1
            return True
        return False

    def release(self) -> None:
        if self._remote_tokens:
            self._remote_tokens -= 1
        else:
            self.local_tokens -= 1
            if self._source is not None:
                self._source.release()

    def notify_when_available(self, callback: Callable[[], None], /) -> None:
        if self._source is not None:
            self._source.notify_when_available(callback)


class BuildConfig(Struct, frozen=True):
    """How a build is to run: what a user asks for, and what a build adds with `replace`."""

    jobs: int | None = None
    """Compiles at once; None is every core that this process may use."""
    keep_going: int | None = None
    """Stop starting after so many programs did not build in this run; 0 never stops. None does not
    stop either, but leaves out the schedules of an instance whose error they all seem to share."""
    strict: bool = False
    """Any schedule that does not compile fails its script."""
    dry_run: bool = False
    """Decide, and compile nothing."""
    verbose: int = 0
    """1: `Finished` has the command lines of what was compiled; 2: what the compilers said, too."""
    part: bool = False
    """The jobs are a part of their instances, whose other schedules are built elsewhere: that none
    of an instance builds here says nothing."""

    history: History | None = None
    """How long programs took before; None knows nothing and remembers nothing."""
    admissions: tuple[Admission, ...] = ()
    """Whether memory and load allow one more compile: all of them must."""
    tokens: TokenSource | None = None
    """Who allows compiles beside the first, as make's jobserver; None leaves it to `jobs`."""
    remote: Remote | None = None
    """The remote cache for what is missing in the store; None for no remote cache."""
    warnings: tuple[str, ...] = ()
    """Emitted if more than one program is to be compiled."""
    notices: tuple[str, ...] = ()
    """Warnings that are emitted whatever is to be compiled."""
    clock: Callable[[], float] = time.monotonic
    """Seconds."""
    started_at: float | None = None
    """The time by `clock` from which the summary counts; None is when the loop starts."""

    @property
    def slots(self) -> int:
        """How many compiles run here at once."""
        return max(1, self.jobs or count_usable_cores())


class RunningTickets:
    """Those that a worker has, also when they are no longer wanted."""

    def __init__(
        self,
        config: BuildConfig,
        history: History,
        token_available: Callable[[], None],
    ) -> None:
        """`token_available` is called, on any thread, when one that was refused can be had."""
        self._slots = config.slots
        self._history = history
        self._admissions = config.admissions
        self._tokens = config.tokens
        self._held_tokens = 0
        """Tokens: at least one less than there are compiles, and no more for long."""
        self._token_available = token_available
        self._tickets: set[Ticket] = set()
        self._begun_units: set[str] = set()
        """The units of which a program has been compiled."""
        self._accidents = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._tickets

    def add_ticket(self, ticket: Ticket) -> None:
        """Take note that a worker is about to have it."""
        self._tickets.add(ticket)

    def remove_ticket(self, ticket: Ticket) -> None:
        """Take note that no worker got it."""
        self._tickets.remove(ticket)

    def end_ticket(self, ticket: Ticket) -> None:
        """Take note that its worker is idle again."""
        self._tickets.remove(ticket)
        self._begun_units.add(ticket.job.unit)
        self.release_tokens()

    def release_tokens(self) -> None:
        """Keep the tokens of those whose compiler has not ended. One that was taken for a program
        that another builder turned out to have goes back so, too."""
        self._keep_tokens_for(len(self._list_compiling()))

    def close(self) -> None:
        """Give every token back."""
        self._keep_tokens_for(0)

    def has_room(self) -> bool:
        """Return whether there is a place for one more."""
        compiling = len(self._list_compiling())
        publishing = len(self._tickets) - compiling
        return compiling < self._slots and publishing <= _PUBLISHING * self._slots

    def is_alone(self) -> bool:
        """Return whether one runs beside which nothing may: it was killed for want of memory."""
        return any(ticket.is_exclusive for ticket in self._tickets)

    def try_admit(self, ticket: Ticket) -> bool:
        """Return whether this one may start; then a token is taken for it."""
        # Estimated again, because what ran meanwhile may have taught us something.
        ticket.estimate = self._history.estimate_job(ticket.job)
        if not self._tickets:
            return True
        compiling = self._list_compiling()
        unit = ticket.job.unit
        if unit and unit not in self._begun_units and unit in {each.job.unit for each in compiling}:
            return False  # what it shares is being made
        peaks = [other.estimate.peak_rss or 0 for other in compiling]
        # Memory first: a token that is taken for nothing is kept from others until something ends.
        need = ticket.estimate.peak_rss
        admitted = all(each(need, peaks) for each in self._admissions)
        return admitted and self._try_take_token(len(compiling) + 1)

    def cancel_unwanted(self, compiler: Compiler) -> None:
        """Have those end that are no longer wanted."""
        for ticket in self._tickets:
            if ticket.state is BuildState.UNWANTED:
                # A program that is dropped and wanted again has a second ticket, which may compile
                # while the end of the first one is still in the inbox. So not by its hash.
                compiler.cancel_job(ticket.attempted)

    def should_retry(self, ticket: Ticket, compiled: Compiled) -> bool:
        """Return whether a compile that ended so is tried once more. Called once for each end."""
        if ticket.accident is not None:
            return False
        if compiled.status == Status.KILLED:
            return True  # how much memory it takes says nothing of another program
        accident = compiled.status in _RETRIED and compiled.cause not in _PERMANENT
        self._accidents += accident
        return accident and self._accidents <= _MAX_RETRIES

    def _try_take_token(self, compiles: int) -> bool:
        """Return whether so many may run at once, one more than do; take the token that this
        needs. If not, `token_available` is called when it may be otherwise."""
        if self._tokens is None or self._held_tokens >= compiles - 1:
            return True
        if self._tokens.try_acquire():
            self._held_tokens += 1
            return True
        self._tokens.notify_when_available(self._token_available)
        return False

    def _keep_tokens_for(self, compiles: int) -> None:
        """Give back what is more than so many compiles need."""
        if self._tokens is None:
            return
        while self._held_tokens > max(0, compiles - 1):
            self._held_tokens -= 1
            self._tokens.release()

    def _list_compiling(self) -> list[Ticket]:
        """Return those whose compiler has not ended, as far as is known."""
        return [each for each in self._tickets if each.state is not BuildState.PUBLISHING]
