"""When to look: after a change, once it has been quiet for a moment, but not later than some time.

Pure: time comes in with each call, in seconds of any clock.
"""

from __future__ import annotations

from dataclasses import dataclass

QUIET = 0.03
"""Seconds. An editor that writes beside and renames is done in a few milliseconds."""
LONGEST = 1.0
"""Seconds after which it is looked although it never was quiet."""


@dataclass(slots=True)
class Debounce:
    """Gathers what happens in quick succession."""

    quiet: float = QUIET
    longest: float = LONGEST
    first: float | None = None
    """When the first of what is gathered happened."""
    _last: float = 0.0

    def touch(self, now: float) -> None:
        """Something happened."""
        if self.first is None:
            self.first = now
        self._last = now

    @property
    def due(self) -> float | None:
        """When to look; None while there is nothing to look for."""
        if self.first is None:
            return None
        return min(self._last + self.quiet, self.first + self.longest)

    def take(self, now: float) -> float | None:
        """When it began, if it is time to look: then what was gathered is taken. Else None."""
        if self.due is None or now < self.due:
            return None
        first, self.first = self.first, None
        return first
