"""The engine's seams to what is built: a job, its heavy side, and what compiles it.

The engine knows nothing of manifests, templates, nvcc or the cache tree's layout: it sees jobs with
a hash, and interfaces (`store`, `admission` and `events` hold the others). A `Compiler` is called
from several threads at once, a `Job` from one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tilusbuild.engine.store import Stage
from tilusbuild.status import Cause, Status


class Work(Protocol):
    """A job's heavy side, alive only while it compiles: the texts that its hash is made of, and
    whatever else the compiler wants."""

    @property
    def program_txt(self) -> str: ...
    @property
    def options_txt(self) -> str: ...


W = TypeVar("W", bound=Work)
W_co = TypeVar("W_co", bound=Work, covariant=True)
W_contra = TypeVar("W_contra", bound=Work, contravariant=True)


class Job(Protocol[W_co]):
    """A program to have: light, because there may be a hundred thousand of them."""

    @property
    def hash(self) -> str:
        """The program's hash. Two jobs with one hash are one program, built once."""
        ...

    @property
    def label(self) -> str:
        """What a person calls it, in one line: "matmul/12 sm_90a"."""
        ...

    @property
    def script(self) -> str: ...

    @property
    def instance(self) -> tuple[str, ...]:
        """Script, constants and target, as words: what shares a verdict and a history."""
        ...

    @property
    def index(self) -> int:
        """Which schedule of its instance."""
        ...

    @property
    def is_default(self) -> bool: ...

    def render(self) -> W_co:
        """Render. Raises `TilusbuildError` when an input is no longer there."""
        ...

    def changed_input(self) -> str | None:
        """The name of an input that is not what the plan read, or None: looked at by `stat`."""
        ...

    def readable(self, log: str, /) -> str:
        """A compiler's log with the template's own places and lines, for people."""
        ...


@dataclass(frozen=True, slots=True)
class Compiled:
    """What came of one run of the compiler."""

    status: Status
    """One of `RECORDED` is published; the others are accidents: the next build tries again."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The entry's meta.json, but for what the store itself writes there."""
    log: str = ""
    reason: str = ""
    """One line for people: why it is not "built". For a failure best its first error."""
    cause: Cause | None = None
    """What the engine decides by, where the status alone does not say enough."""
    seconds: float = 0.0
    peak_rss: int = 0
    """Bytes."""


class Compiler(Protocol[W_contra]):
    """Fills a stage."""

    def compile(self, job: Job[Any], work: W_contra, stage: Stage, /) -> Compiled:
        """Raises `process.base.Cancelled` after `cancel`, `OSError` when nothing can be started."""
        ...

    def cancel(self) -> None:
        """Kill what runs; may be called again while something still does."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """How to build."""

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
