"""Whether one more compile may start beside those that run: memory, load, and tokens.

An `Admission` asks the machine: `MemoryLimit` so that a build never meets the OOM killer,
`LoadLimit` for `--load-average`. A `TokenSource`, as make's jobserver, shares the right to compile
with other processes; `JobTokens` is what a build holds of it. All are used by the build's thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

from tilusbuild.process.machine import Machine

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


class Admission(Protocol):
    """Decides whether one more compile may start."""

    def admits(self, need: int | None, running: list[int], /) -> bool:
        """`need` and `running` are predicted peaks in bytes (0 or None: unknown). Not asked when
        nothing runs: one compile may always."""
        ...


class Unlimited:
    """Never refuses."""

    def admits(self, need: int | None, running: list[int], /) -> bool:
        return True


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
        self._at_start = self._machine.free_memory()
        self._free_now = 0.0
        self._checked = float("-inf")

    def admits(self, need: int | None, running: list[int], /) -> bool:
        if self._at_start is None:
            return True
        wanted = _reckoned(need)
        total = wanted + sum(_reckoned(each) for each in running)
        return total <= self._at_start * (1 - _RESERVE) and wanted <= self._free()

    def _free(self) -> float:
        """Return bytes that may be used now; none while memory is pressed."""
        if (now := self._clock()) - self._checked >= _CHECK_EVERY:
            pressed = self._machine.memory_pressure() >= _PRESSED
            free = 0 if pressed else self._machine.free_memory() or 0
            self._free_now, self._checked = free * (1 - _RESERVE), now
        return self._free_now


def _reckoned(need: int | None) -> float:
    return need * _MARGIN if need else UNKNOWN_PEAK


class LoadLimit:
    """Refuses at a load average of `limit` or more."""

    def __init__(
        self, limit: float, average: Callable[[], tuple[float, float, float]] = os.getloadavg
    ) -> None:
        self._limit = limit
        self._average = average

    def admits(self, need: int | None, running: list[int], /) -> bool:
        try:
            average = self._average()[0]
        except OSError:  # the system does not say
            average = 0.0
        # The average follows what happens with a delay of a minute, so compiles of ours count as a
        # load of one each, whatever it says yet: a build never starts more than its limit at once.
        return max(average, len(running)) < self._limit


class AllOf:
    """Admits what all of several admissions admit."""

    def __init__(self, *admissions: Admission) -> None:
        self._admissions = admissions

    def admits(self, need: int | None, running: list[int], /) -> bool:
        return all(each.admits(need, running) for each in self._admissions)


class TokenSource(Protocol):
    """Gives the right to compile. The first compile at a time needs no token; each further one has
    one, from before it starts until its compiler has ended."""

    def try_acquire(self) -> bool:
        """Take one token if there is one now; never wait."""
        ...

    def release(self) -> None:
        """Give one token back that was taken."""
        ...

    def notify_when_available(self, callback: Callable[[], None], /) -> None:
        """Call `callback`, once and from any thread, when `try_acquire` may succeed. A second
        request before that changes nothing."""
        ...

    def idle(self) -> None:
        """None of this build's compilers runs, and no token is held."""
        ...


class NoJobserver:
    """Gives every token: only `-j` counts."""

    def try_acquire(self) -> bool:
        return True

    def release(self) -> None: ...

    def notify_when_available(self, callback: Callable[[], None], /) -> None: ...

    def idle(self) -> None: ...


class TokensBeside:
    """The tokens of a source, and so many more for compiles on other machines. `here` are those
    that are held of the source: compiles on this one."""

    def __init__(self, source: TokenSource, more: int) -> None:
        self._source = source
        self._more = more
        self._beside = 0
        self.here = 0

    def try_acquire(self) -> bool:
        if self._source.try_acquire():
            self.here += 1
            return True
        if self._beside < self._more:
            self._beside += 1
            return True
        return False

    def release(self) -> None:
        if self._beside:
            self._beside -= 1
        else:
            self.here -= 1
            self._source.release()

    def notify_when_available(self, callback: Callable[[], None], /) -> None:
        self._source.notify_when_available(callback)

    def idle(self) -> None:
        self._source.idle()


class JobTokens:
    """The tokens that a build holds: at least one less than there are compiles, and no more for
    long."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._held = 0

    def try_acquire(self, compiles: int, on_available: Callable[[], None]) -> bool:
        """Return whether so many may run at once, one more than do; takes the token that this
        needs. If not, `on_available` is called when it may be otherwise."""
        if self._held >= compiles - 1:
            return True
        if self._source.try_acquire():
            self._held += 1
            return True
        self._source.notify_when_available(on_available)
        return False

    def shrink(self, compiles: int) -> None:
        """Give back what is more than so many compiles need. A token that was taken for a program
        that another builder turned out to have goes back so, too."""
        while self._held > max(0, compiles - 1):
            self._held -= 1
            self._source.release()
        if not compiles:
            self._source.idle()
