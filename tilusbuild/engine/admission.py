"""Whether memory has room for one more compile, so that a build never meets the OOM killer.

Each running compile is reckoned with its predicted peak, however little it holds yet. The sum must
stay within what was free when nothing of ours ran, and the newcomer must fit what is free now, so
that other programs on the machine, and compiles that take more than was predicted, count too. While
memory is pressed, nothing is started beside what runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from tilusbuild.process.machine import Machine

UNKNOWN = 2 << 30
"""Bytes reckoned for a compile that nothing is known of. nvcc takes 200 MB for a small kernel and
3 to 5 GB for a heavy one: this is little enough to use what machines have, some 2 to 4 GB a core,
until the first compile of a build has ended and tells more."""
_MARGIN = 1.1
"""A compile may need this much more than the last time."""
_RESERVE = 0.05
"""The part of what is free that is left alone."""
_LOOK_EVERY = 0.05
"""Seconds. Many programs are asked about when none fits; a look reads a dozen files."""
_PRESSED = 0.1
"""The share of time without progress for want of memory from which memory counts as pressed."""


class Admission(Protocol):
    """Decides whether one more compile may start."""

    def admits(self, need: int | None, running: list[int], /) -> bool:
        """`need` and `running` are predicted peaks in bytes (0 or None: unknown). Not asked when
        nothing runs: one compile may always."""
        ...


class Unlimited:
    """An admission that never refuses."""

    def admits(self, need: int | None, running: list[int], /) -> bool:
        return True


class Memory:
    """The real one. Make it before the build starts anything."""

    def __init__(
        self, machine: Machine | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._machine = machine or Machine()
        self._clock = clock
        self._at_start = self._machine.free_memory()
        self._free_now = 0.0
        self._looked = float("-inf")

    def admits(self, need: int | None, running: list[int], /) -> bool:
        if self._at_start is None:
            return True
        wanted = _reckoned(need)
        total = wanted + sum(_reckoned(each) for each in running)
        return total <= self._at_start * (1 - _RESERVE) and wanted <= self._free()

    def _free(self) -> float:
        """Bytes that may be used now; none while memory is pressed."""
        if (now := self._clock()) - self._looked >= _LOOK_EVERY:
            pressed = self._machine.memory_pressure() >= _PRESSED
            free = 0 if pressed else self._machine.free_memory() or 0
            self._free_now, self._looked = free * (1 - _RESERVE), now
        return self._free_now


def _reckoned(need: int | None) -> float:
    return need * _MARGIN if need else UNKNOWN
