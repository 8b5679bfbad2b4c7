"""The engine's seam to who allows compiles beside each other, and what a build holds of it.

The first compile at a time needs no leave. Each further one has one, from before it starts until
its compiler is through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Slots(Protocol):
    """Used by the build's thread only."""

    def take(self) -> bool:
        """Leave for one compile more, if it is given now; never waits."""
        ...

    def give(self) -> None:
        """Give one leave back that was taken."""
        ...

    def when_some(self, tell: Callable[[], None], /) -> None:
        """Have `tell` called, once and from any thread, when `take` may succeed. Asked again before
        that, it changes nothing."""
        ...

    def idle(self) -> None:
        """None of this build's compilers runs, and nothing is held."""
        ...


class Unasked:
    """Where only `-j` counts."""

    def take(self) -> bool:
        return True

    def give(self) -> None: ...

    def when_some(self, tell: Callable[[], None], /) -> None: ...

    def idle(self) -> None: ...


class Leave:
    """What a build has taken: at least one less than there are compiles, and no more for long."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._held = 0

    def extends(self, compiles: int, tell: Callable[[], None]) -> bool:
        """Whether so many may run at once, one more than do; takes what that needs. If not, `tell`
        is called when it may be otherwise."""
        if self._held >= compiles - 1:
            return True
        if self._slots.take():
            self._held += 1
            return True
        self._slots.when_some(tell)
        return False

    def keep(self, compiles: int) -> None:
        """So many run now: what is more than they need goes back."""
        while self._held > max(0, compiles - 1):
            self._held -= 1
            self._slots.give()
        if not compiles:
            self._slots.idle()
