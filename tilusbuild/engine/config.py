"""How a build is to run: one frozen value, handed from the command line to the build loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line makes a config before it knows that anything is to be built
    from tilusbuild.engine.history import History
    from tilusbuild.engine.resources import Admission, TokenSource


@dataclass(frozen=True, slots=True)
class BuildConfig:
    """The upper part is what a user asks for; the lower part is what a build adds with
    `replace`."""

    jobs: int | None = None
    """Compiles at once; None is every core that this process may use."""
    keep_going: int = 0
    """Stop starting after so many programs did not build in this run; 0 never stops."""
    strict: bool = False
    """Any schedule that does not compile fails its script."""
    dry_run: bool = False
    """Decide, and compile nothing."""
    part: bool = False
    """The jobs are a part of their instances, whose other schedules are built elsewhere: that none
    of an instance builds here says nothing."""

    history: History | None = None
    """How long programs took before; None knows nothing and remembers nothing."""
    admission: Admission | None = None
    """Whether memory and load allow one more compile; None always does."""
    tokens: TokenSource | None = None
    """Who allows compiles beside the first, as make's jobserver; None leaves it to `jobs`."""
    warnings: tuple[str, ...] = ()
    """Emitted if more than one program is to be compiled."""
    clock: Callable[[], float] = time.monotonic
    """Seconds."""
    started_at: float | None = None
    """The time by `clock` from which the summary counts its seconds; None is when the loop
    starts."""
