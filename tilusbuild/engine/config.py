"""How a build is to run, as a value: what a user asks for, and what a build adds to it."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from tilusbuild.engine.history import History
from tilusbuild.engine.remote import Remote
from tilusbuild.engine.resources import Admission, TokenSource
from tilusbuild.engine.timeline import Timeline
from tilusbuild.process.machine import usable_cores


class BuildConfig(Struct, frozen=True):
    """How a build is to run: above what a user asks for, below what a build adds with
    `replace`."""

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
    admission: Admission | None = None
    """Whether memory and load allow one more compile; None always does."""
    tokens: TokenSource | None = None
    """Who allows compiles beside the first, as make's jobserver; None leaves it to `jobs`."""
    remote: Remote | None = None
    """The remote cache for what is missing in the store; None for no remote cache."""
    warnings: tuple[str, ...] = ()
    """Emitted if more than one program is to be compiled."""
    timeline: Timeline | None = None
    """Where it is recorded when everything began and ended."""
    notices: tuple[str, ...] = ()
    """Warnings that are emitted whatever is to be compiled."""
    clock: Callable[[], float] = time.monotonic
    """Seconds."""
    started_at: float | None = None
    """The time by `clock` from which the summary counts its seconds; None is when the loop
    starts."""

    @property
    def places(self) -> int:
        """How many compiles run here at once."""
        return max(1, self.jobs or usable_cores())
