"""Doubles of the engine's seams: a store in memory, a compiler that does as it is told, a listener.

They keep the seams' promises (one holder a lock, an entry whole or absent) and count what was asked
of them, so that a test can say "compiled exactly once".
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tilusbuild.cache.entries import Entry
from tilusbuild.engine.events import Event
from tilusbuild.engine.interfaces import Job, ProgramStage
from tilusbuild.state.files import sha256_text
from tilusbuild.status import Cause, Compiled, Status

OPTIONS = "tilusbuild options 1\n"


@dataclass(frozen=True, slots=True)
class FakeRendered:
    """The texts that a fake job's hash is made of."""

    program_txt: str
    options_txt: str = OPTIONS


@dataclass(slots=True)
class FakeJob:
    """A job whose `text` is its only input; change `text` later to play an edit."""

    text: str
    script: str = "matmul"
    target: str = "sm_90a"
    index: int = 0
    is_default: bool = False
    is_part: bool = False
    needs: tuple[str, ...] = ()
    kept_here: str = ""
    unit: str = ""
    hash: str = field(init=False)

    def __post_init__(self) -> None:
        self.hash = sha256_text(self.text + OPTIONS)

    @property
    def label(self) -> str:
        return f"{self.script}/{self.index} {self.target}"

    @property
    def instance(self) -> tuple[str, ...]:
        return (self.script, self.target)

    @property
    def instance_label(self) -> str:
        return f"{self.script} {self.target}"

    def render(self) -> FakeRendered:
        return FakeRendered(self.text)

    def translate_log(self, log: str, /) -> str:
        return log.replace("source.cu", "kernels/matmul.cu.j2")


class FakeStage:
    """A stage of a `FakeStore`."""

    def __init__(self, store: FakeStore) -> None:
        self._store = store
        self.path = "/cache/staging/1"
        self.open = True

    def publish_program(
        self, program: str, program_txt: str, options_txt: str, meta: Mapping[str, Any], /
    ) -> None:
        if self._store.publish_error is not None:
            raise self._store.publish_error
        assert sha256_text(program_txt + options_txt) == program
        self._store.entries[program] = Entry(program, self.path, Status(meta["status"]), meta)
        self.discard()

    def discard(self) -> None:
        self.open = False


class FakeStore:
    """Entries in a dict. Several builds may share one, each on its own thread."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.held: set[str] = set()
        self.stages: list[FakeStage] = []
        self.logs: dict[str, str] = {}
        self.publish_error: OSError | None = None
        self._guard = threading.Lock()

    def find_entry(self, program: str, /) -> Entry | None:
        return self.entries.get(program)

    @contextmanager
    def lock_program(self, program: str, /, wait: bool) -> Iterator[bool]:
        with self._guard:
            is_owner = program not in self.held
            if is_owner:
                self.held.add(program)
        try:
            yield is_owner
        finally:
            if is_owner:
                self.held.discard(program)

    def open_stage(self) -> FakeStage:
        stage = FakeStage(self)
        self.stages.append(stage)
        return stage

    def program_path(self, program: str, /) -> str:
        return f"/cache/programs/{program}"

    def read_log(self, program: str, /) -> str:
        return self.logs.get(program, "")


class FakeCompiler:
    """Answers with `script(job)`; counts runs by the job's text."""

    def __init__(self, script: Callable[[Job], Compiled] | None = None) -> None:
        self.runs: Counter[str] = Counter()
        self.order: list[str] = []
        self._script = script or (lambda job: built())
        self._guard = threading.Lock()

    def compile(self, job: Job, work: FakeRendered, stage: ProgramStage, /) -> Compiled:
        with self._guard:
            self.runs[work.program_txt] += 1
            self.order.append(work.program_txt)
        return self._script(job)

    def cancel(self) -> None:
        """Do nothing: what a test's own script does of it is that script's."""

    def cancel_job(self, job: Any, /) -> None:
        """Do nothing."""


class FakeTokens:
    """So many tokens, which a test may take away and put back on any thread."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.held = 0
        self.most = 0
        """The most that were ever held."""
        self._waiting: Callable[[], None] | None = None
        self._guard = threading.Lock()

    def try_acquire(self) -> bool:
        with self._guard:
            if not self.tokens:
                return False
            self.tokens -= 1
            self.held += 1
            self.most = max(self.most, self.held)
            return True

    def release(self) -> None:
        assert self.held, "more given back than were taken"
        self.held -= 1
        self.put(1)

    def put(self, tokens: int) -> None:
        """As when others give tokens back."""
        with self._guard:
            self.tokens += tokens
            tell, self._waiting = self._waiting, None
        if tell is not None:
            tell()

    def notify_when_available(self, tell: Callable[[], None], /) -> None:
        with self._guard:
            if not self.tokens:
                self._waiting = tell
                return
        tell()


def built(seconds: float = 0.0, peak_rss: int = 0) -> Compiled:
    """A compile that went well."""
    return Compiled(Status.BUILT, {"status": "built"}, seconds=seconds, peak_rss=peak_rss)


def failed(
    log: str = "source.cu(3): error: no", status: str = Status.FAILED, cause: Cause | None = None
) -> Compiled:
    """A compile that did not."""
    meta = {"status": status, "reason": log}
    return Compiled(Status(status), meta, log=log, reason=log, cause=cause)


class Listener:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.react: Callable[[Event], None] = lambda event: None

    def emit(self, event: Event, /) -> None:
        self.events.append(event)
        self.react(event)

    def tick(self) -> None: ...

    def close(self) -> None: ...

    def named(self, name: str) -> list[Any]:
        """The events with this name."""
        return [event for event in self.events if event.event == name]
