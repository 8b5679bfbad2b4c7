"""When everything of a build began and ended: attempts with their steps, phases, waits, memory.

Workers record the steps of what they attempt, the build's thread everything else. What is recorded
decides nothing. Times are seconds since the timeline was made. A timeline that is full keeps what
it has: a session may last for days.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from tilusbuild.engine.interfaces import Job
from tilusbuild.status import Compiled

MAX_KEPT = 50_000
"""Attempts, and as many of everything else."""
_SAMPLE_EVERY = 0.25
"""Seconds. A look at the memory reads a dozen files."""
SHORTEST_WAIT = 0.001
"""Seconds. Something is refused now and then between two that start, and waits for nothing."""
RENDER, PUBLISH = "render", "publish"
LAUNCHER = "launcher"
"""Begins the name of a step that is a script's and not its program's: history leaves it out."""
MEMORY, TOKEN, LOCK = "wait for memory", "wait for a token", "wait for a lock"
PLACE, SEND, QUEUE = "wait for a core", "send", "wait for a worker"
"""Steps of an attempt that other machines may take part in."""


class Span(Struct, frozen=True):
    """Something that took from `start` to `end`."""

    name: str
    start: float
    end: float
    label: str = ""
    """The program that it is about; "" when it is about none."""


class MemorySample(Struct, frozen=True):
    """How many bytes were in use beyond those of the start."""

    at: float
    bytes: int


class AttemptRecord(Struct):
    """One attempt at a program. A step is named by its tool, or `RENDER` or `PUBLISH`."""

    hash: str
    label: str
    predicted: int | None
    """Bytes that it was thought to need."""
    status: str = "skipped"
    reason: str = ""
    seconds: float = 0.0
    """Of the compiler, as history has them."""
    peak_rss: int = 0
    elsewhere: str = ""
    """The worker that compiled it, or its server; "" when this machine did."""
    steps: list[Span] = field(default_factory=list)

    def ended(self, compiled: Compiled) -> None:
        """Note what came of it."""
        self.status, self.reason = compiled.status, compiled.reason
        self.seconds, self.peak_rss = compiled.seconds, compiled.peak_rss
        self.elsewhere = compiled.elsewhere.name if compiled.elsewhere else ""


class Timeline:
    """What was recorded. `memory` returns the bytes that are free."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        memory: Callable[[], int | None] | None = None,
    ) -> None:
        self.attempts: list[AttemptRecord] = []
        self.phases: list[Span] = []
        self.waits: list[Span] = []
        self.used: list[MemorySample] = []
        self.began = time.time()
        """In seconds since 1970."""
        self._clock = clock
        self._zero = clock()
        self._memory = memory
        self._free_at_first: int | None = None
        self._sampled = float("-inf")
        self._open: dict[str, tuple[float, str, str]] = {}
        self._mine = threading.local()

    def now(self) -> float:
        """Return the seconds since the timeline was made."""
        return self._clock() - self._zero

    @contextmanager
    def attempt(self, job: Job, predicted: int | None) -> Iterator[AttemptRecord]:
        """Record what this thread does in the block as an attempt, if it takes any step."""
        record = self._mine.record = AttemptRecord(job.hash, job.label, predicted)
        try:
            yield record
        finally:
            self._mine.record = None
            if record.steps and len(self.attempts) < MAX_KEPT:
                self.attempts.append(record)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Record the block: of the attempt that this thread makes, or as a phase of the build."""
        start = self.now()
        try:
            yield
        finally:
            self.add(name, start, self.now())

    def add(self, name: str, start: float, end: float) -> None:
        """Record what has ended, as `step` does."""
        record: AttemptRecord | None = getattr(self._mine, "record", None)
        into = self.phases if record is None else record.steps
        if record is not None or len(into) < MAX_KEPT:
            into.append(Span(name, start, end))

    def wait(self, key: str, name: str, label: str = "") -> None:
        """Note that something waits, known by `key`, unless that is known."""
        self._open.setdefault(key, (self.now(), name, label))

    def waited(self, key: str) -> None:
        """Note that it does not wait any more."""
        start, name, label = self._open.pop(key, (0.0, "", ""))
        if name and self.now() - start >= SHORTEST_WAIT and len(self.waits) < MAX_KEPT:
            self.waits.append(Span(name, start, self.now(), label))

    def sample(self) -> None:
        """Look at the memory, unless it was looked at a moment ago."""
        if self._memory is None or self.now() - self._sampled < _SAMPLE_EVERY:
            return
        self._sampled = self.now()
        if (free := self._memory()) is not None and len(self.used) < MAX_KEPT:
            self._free_at_first = max(free, self._free_at_first or 0)
            self.used.append(MemorySample(self._sampled, self._free_at_first - free))
