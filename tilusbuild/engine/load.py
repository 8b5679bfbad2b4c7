"""`--load-average`: no further compile starts while the machine has enough to do.

The load average follows what happens with a delay of a minute, so compiles of ours that run count
as load of one each, whatever it says yet: a build never starts more than its limit at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from tilusbuild.engine.admission import Admission


class LoadLimit:
    """An admission that refuses at a load of `limit` or more."""

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
        return max(average, len(running)) < self._limit


class Each:
    """Admits what all of several admissions admit."""

    def __init__(self, *admissions: Admission) -> None:
        self._admissions = admissions

    def admits(self, need: int | None, running: list[int], /) -> bool:
        return all(each.admits(need, running) for each in self._admissions)
