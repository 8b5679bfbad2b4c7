"""What happens while watching, besides a build's own events.

As in `engine/events.py`, their fields are the JSON that `--json` prints (`docs/watch.md`).
"""

from __future__ import annotations

from typing import ClassVar

from tilusbuild.engine.events import Event


class Watching(Event, frozen=True):
    """At rest: waiting for a change. `ok` is whether everything stands as it is meant to."""

    event: ClassVar[str] = "watching"
    paths: int
    """Files and directories that the plan depends on."""
    ok: bool


class Changed(Event, frozen=True):
    """Something that the plan depends on is not what it was."""

    event: ClassVar[str] = "changed"
    paths: tuple[str, ...]
    """Relative to the project where they lie in it; the first few."""
    more: int
    """How many others."""
    parts: tuple[str, ...]
    """Which scripts that is about: "matmul h100"; or "manifest", "tools", "references"."""


class Replanned(Event, frozen=True):
    """A new plan is made."""

    event: ClassVar[str] = "replanned"
    programs: int
    """In the whole plan."""
    changed: int
    """How many were not in the plan before."""
    renders: int
    """How many templates' renderings that took."""
    seconds: float


class Problem(Event, frozen=True):
    """The manifest or a template is wrong; the last good plan stays until it is mended."""

    event: ClassVar[str] = "problem"
    message: str
    """Several lines, with the places."""


class Rebuilt(Event, frozen=True):
    """What a change came to."""

    event: ClassVar[str] = "rebuilt"
    ok: bool
    programs: int
    """Compiled for it."""
    scripts: tuple[str, ...]
    """Of which scripts they are."""
    seconds: float
    """From the save; in the first build from the start."""
    first: bool


class CommandStarted(Event, frozen=True):
    """What `--exec` runs begins."""

    event: ClassVar[str] = "running"
    command: str


class Printed(Event, frozen=True):
    """A line of what `--exec` runs, as it comes."""

    event: ClassVar[str] = "output"
    line: str
    """Without its end; of one that was written over (`\\r`), what was seen last."""


class CommandEnded(Event, frozen=True):
    """What `--exec` ran has ended, or was ended for a new change."""

    event: ClassVar[str] = "command"
    command: str
    status: int | None
    """Exit status, minus the signal that ended it, or None when we did."""
    seconds: float


LINES = (
    Watching,
    Changed,
    Replanned,
    Problem,
    Rebuilt,
    CommandStarted,
    Printed,
    CommandEnded,
)
"""The events of `watch`, besides those of a build."""
