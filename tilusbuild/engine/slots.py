"""The engine's seam to who allows compiles beside each other: make's jobserver, or nobody.

The first compile at a time needs no leave. Each further one holds one, from before it starts until
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
