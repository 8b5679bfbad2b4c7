"""The configuration of a build, and whether one more compile may start beside those that run.

A compile needs a slot; a compile that has ended and is being published has none. Then it needs
memory for its expected peak, and a token of the jobserver. Programs of one unit share a first step,
so until one of them has been compiled only one is. An `Admission` asks the machine: `MemoryLimit`
keeps a build from the OOM killer, `make_load_limit` serves `--load-average`. A `TokenSource`, as
make's jobserver, shares the right to compile with other processes. The build's thread calls all.
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

# Bytes reserved for a compile without a history. nvcc takes 200 MB for a small kernel, 3 to 5 GB
# for a large one; machines have 2 to 4 GB a core. The first compile that ends gives an estimate.
UNKNOWN_PEAK = 2 << 30
# A compile may need this factor of its last peak.
_PEAK_MARGIN = 1.1
# The part of the free memory that is not used.
_RESERVED_SHARE = 0.05
# Seconds between measurements: each reads a dozen files, and up to 32 programs ask in a row.
_MEASURE_INTERVAL = 0.05
# The share of time without progress for want of memory from which memory counts as pressed.
_MAX_PRESSURE = 0.1
# Programs being published for each slot: they wait for the disk and leave the cores free.
_MAX_PUBLISHING_PER_SLOT = 3
# Not `TIMED_OUT`, which would take as long again.
_RETRIED_STATUSES = (Status.CRASHED, Status.NO_OUTPUT)
# Retries of crashes in a build. Retries run alone, so hundreds would take hours.
_MAX_RETRIES = 4
# Causes that a retry meets again: an include outside, a tool that does not start.
_PERMANENT_CAUSES = (Cause.OUTSIDE, Cause.TOOL)


Admission: TypeAlias = Callable[[int | None, list[int]], bool]
"""Decides whether one more compile may start, of its predicted peak in bytes and those of what runs
(0 or None: unknown). Not asked when nothing runs: one compile may always."""


class MemoryLimit:
    """Admits a compile when memory has room. Create it before the build starts a compile.

    Each running compile counts with its predicted peak, however little it holds yet. The sum must
    stay within the memory that was free at the start. The new compile must also fit the memory that
    is free now, so that other processes and wrong predictions count. Under memory pressure nothing
    is admitted.
    """

    def __init__(
        self, machine: Machine | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._machine = machine or Machine()
        self._clock = clock
        self._free_at_start = self._machine.measure_free_memory()
        self._free_now = 0.0
        self._measured_at = float("-inf")

    def can_start(self, need: int | None, running: list[int]) -> bool:
        """Return whether a compile of `need` bytes may start beside compiles of `running` bytes;
        None or 0 bytes are unknown. This is an `Admission`."""
        if self._free_at_start is None:
            return True
        reserved = _reserve_for(need)
        total_reserved = reserved + sum(map(_reserve_for, running))
        fits_start = total_reserved <= self._free_at_start * (1 - _RESERVED_SHARE)
        return fits_start and reserved <= self._measure_free()

    def _measure_free(self) -> float:
        """Return the free bytes without the reserve; 0 under memory pressure. A result is returned
        again for `_MEASURE_INTERVAL` seconds."""
        now = self._clock()
        if now - self._measured_at >= _MEASURE_INTERVAL:
            is_pressed = self._machine.measure_memory_pressure() >= _MAX_PRESSURE
            free = 0 if is_pressed else self._machine.measure_free_memory() or 0
            self._free_now = free * (1 - _RESERVED_SHARE)
            self._measured_at = now
        return self._free_now


def _reserve_for(need: int | None) -> float:
    return need * _PEAK_MARGIN if need else UNKNOWN_PEAK


def make_load_limit(
    limit: float, average: Callable[[], tuple[float, float, float]] = os.getloadavg
) -> Admission:
    """Return an admission that refuses at a load average of `limit` or more."""

    def can_start(need: int | None, running: list[int]) -> bool:
        try:
            load = average()[0]
        except OSError:
            load = 0.0  # An unknown load counts as none: then only our own compiles count.
        # The average lags by a minute, and does not show the compiles that were started just now.
        # Each of ours counts as a load of one, so that a build never starts more than the limit.
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
    """Tokens for `local_limit` compiles on this machine, from a source if there is one, and for
    `remote_limit` compiles on other machines. `local_tokens` counts those held for this machine."""

    def __init__(self, source: TokenSource | None, local_limit: int, remote_limit: int) -> None:
        self._source = source
        self._local_limit = local_limit
        self._remote_limit = remote_limit
        self._remote_tokens = 0
        self.local_tokens = 0

    def try_acquire(self) -> bool:
        """Take a token for this machine, or else one for other machines. Return False without
        one."""
        has_local = self.local_tokens < self._local_limit
        if has_local and (self._source is None or self._source.try_acquire()):
            self.local_tokens += 1
            return True
        if self._remote_tokens < self._remote_limit:
            self._remote_tokens += 1
            return True
        return False

    def release(self) -> None:
        """Give back a token for other machines, or else one for this machine."""
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
    clock: Callable[[], float] = time.monotonic
    """Seconds."""
    started_at: float | None = None
    """The time by `clock` from which the summary counts; None is when the loop starts."""

    @property
    def slots(self) -> int:
        """How many compiles run here at once."""
        return max(1, self.jobs or count_usable_cores())


class RunningTickets:
    """The tickets that workers have, UNWANTED ones too."""

    def __init__(
        self, config: BuildConfig, history: History, token_available: Callable[[], None]
    ) -> None:
        """`token_available` is called on any thread when a token may be free after a refusal."""
        self._slots = config.slots
        self._history = history
        self._admissions = config.admissions
        self._tokens = config.tokens
        # One less than there are compilers, as the first needs none. Only between the end of a
        # compiler and the release of its token are there more.
        self._held_tokens = 0
        self._token_available = token_available
        self._tickets: set[Ticket] = set()
        self._compiled_units: set[str] = set()
        """The units of which a program has been compiled."""
        self._crash_count = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._tickets

    def add_ticket(self, ticket: Ticket) -> None:
        """Add a ticket that a worker is about to get."""
        self._tickets.add(ticket)

    def remove_ticket(self, ticket: Ticket) -> None:
        """Remove a ticket that no worker got."""
        self._tickets.remove(ticket)

    def end_ticket(self, ticket: Ticket) -> None:
        """Remove a ticket whose worker is idle again, and release its token."""
        self._tickets.remove(ticket)
        self._compiled_units.add(ticket.job.unit)
        self.release_tokens()

    def release_tokens(self) -> None:
        """Release the tokens that the running compilers do not need. The first compiler needs none,
        and a program that another builder had compiled has no compiler."""
        needed = max(0, len(self._list_compiling()) - 1)
        while self._tokens is not None and self._held_tokens > needed:
            self._held_tokens -= 1
            self._tokens.release()

    def close(self) -> None:
        """Release every token. The workers have ended."""
        self._tickets.clear()
        self.release_tokens()

    def has_room(self) -> bool:
        """Return whether a slot is free, and not too many programs are being published."""
        # A ticket with an accident is a retry, beside which nothing runs.
        if any(ticket.accident is not None for ticket in self._tickets):
            return False
        compiling = len(self._list_compiling())
        publishing = len(self._tickets) - compiling
        return compiling < self._slots and publishing <= _MAX_PUBLISHING_PER_SLOT * self._slots

    def try_admit(self, ticket: Ticket) -> bool:
        """Return whether a ticket may start beside those that run. Estimate it again; if it may
        start and is not the first, a token is held for it.

        A ticket may start if no other one runs; or if no running compile makes the first step that
        it shares with the ticket, every admission agrees, and a token is free.
        """
        # Estimated again: compiles that ended meanwhile may have changed the estimate.
        ticket.estimate = self._history.estimate_job(ticket.job)
        # One compile may always run, whatever it needs: else the build would never end.
        if not self._tickets:
            return True
        compiling = self._list_compiling()
        unit = ticket.job.unit
        running_units = {running_ticket.job.unit for running_ticket in compiling}
        if unit and unit in running_units and unit not in self._compiled_units:
            # Another program of the unit is making the step that both share.
            return False
        peak = ticket.estimate.peak_rss
        running_peaks = [running_ticket.estimate.peak_rss or 0 for running_ticket in compiling]
        # The memory is checked before a token is taken: a token that is held in vain is missing in
        # other processes until a compile ends.
        is_admitted = all(admit(peak, running_peaks) for admit in self._admissions)
        return is_admitted and self._try_take_token(len(compiling) + 1)

    def cancel_unwanted(self, compiler: Compiler) -> None:
        """Cancel the compiles of UNWANTED tickets."""
        for ticket in self._tickets:
            if ticket.state is BuildState.UNWANTED:
                # The compile is named by its copy of the job and not by the hash: a program that is
                # wanted again has a second ticket with the same hash, which may already compile.
                compiler.cancel_job(ticket.attempted)

    def should_retry(self, ticket: Ticket, compiled: Compiled) -> bool:
        """Return whether to compile the ticket's program again, and count its crash if it crashed.

        A program is retried at most once: after its compiler was killed, or after it crashed or
        wrote nothing, unless the cause is one of `_PERMANENT_CAUSES`. A build retries at most
        `_MAX_RETRIES` crashes.
        """
        if ticket.accident is not None:
            return False
        # A killed compile is not counted as a crash: the machine was short of memory, which says
        # nothing of other programs.
        if compiled.status == Status.KILLED:
            return True
        if compiled.status not in _RETRIED_STATUSES or compiled.cause in _PERMANENT_CAUSES:
            return False
        self._crash_count += 1
        return self._crash_count <= _MAX_RETRIES

    def _try_take_token(self, compiles: int) -> bool:
        """Take one token if the held ones do not suffice for this number of compiles. Return False
        when none is free; `token_available` is called when one may be."""
        # One compile needs no token: make has counted this process, as it counts each of its jobs.
        if self._tokens is None or self._held_tokens >= compiles - 1:
            return True
        if self._tokens.try_acquire():
            self._held_tokens += 1
            return True
        self._tokens.notify_when_available(self._token_available)
        return False

    def _list_compiling(self) -> list[Ticket]:
        """Return the tickets whose compiler is not known to have ended."""
        return [ticket for ticket in self._tickets if ticket.state is not BuildState.PUBLISHING]
