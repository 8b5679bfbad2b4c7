"""The events of a build: frozen values, emitted in their order.

Every display, the JSON lines and the timeline are made from events alone. Their fields are the keys
of the JSON lines, which `docs/output.md` explains: a field may be added, but not renamed or given
another meaning without a new `SCHEMA`. Times are in seconds, memory is in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.status import Status

SCHEMA = 1


class Event(Struct, frozen=True):
    """Base of all events."""

    event: ClassVar[str] = ""


class ProgramEvent(Event, frozen=True):
    """Base of the events of one program."""

    hash: str
    label: str


class BuildStarted(Event, frozen=True):
    """The first event."""

    event: ClassVar[str] = "start"
    jobs: int
    """Compiles at once."""
    version: str
    """tilusbuild's."""
    schema: int = SCHEMA


class Sharded(Event, frozen=True):
    """This build is for one shard of the plan. Emitted before `Planned`."""

    event: ClassVar[str] = "shard"
    number: int
    """From 1."""
    count: int
    programs: int
    """Of this shard."""
    of: int
    """Of all shards."""
    split: str
    """Distinguishes this split from others: all shards of one build have the same."""


class Planned(Event, frozen=True):
    """Every program was looked up. `programs` counts a shared hash once."""

    event: ClassVar[str] = "plan"
    programs: int
    cached: int
    failed: int
    """Known from before not to compile."""
    pruned: int
    """Known from before to be pruned."""
    to_compile: int
    expected_seconds: float | None
    """Compiler seconds, summed over what is to be compiled, from history; None without any."""
    dry_run: bool = False


class Warned(Event, frozen=True):
    """A warning; the build goes on. Emitted after `Planned`."""

    event: ClassVar[str] = "warning"
    message: str


class Started(ProgramEvent, frozen=True):
    """A compiler runs."""

    event: ClassVar[str] = "started"
    script: str
    index: int
    expected_seconds: float | None


WAITING, SENT, QUEUED, EXECUTING, HERE = "waiting", "sent", "queued", "executing", "here"
"""Where a compile is that found no core free here: see `Placed.place`."""


class Placed(ProgramEvent, frozen=True):
    """How far a compile is that has `Started` and found no core free here, or that must stay, where
    other machines compile, too. Without one it runs here."""

    event: ClassVar[str] = "placed"
    place: str
    """"waiting" for anybody to take it, "sent" to a server, "queued" there, "executing" there, or
    "here" after all, or because it must be."""
    address: str
    """The server's; "" when it waits, or runs here."""
    worker: str = ""
    """The server's name for it, where it says that before the end."""


class Finished(ProgramEvent, frozen=True):
    """A program has its answer. `done` of `to_compile` have one."""

    event: ClassVar[str] = "finished"
    script: str
    instance: tuple[str, ...]
    """Script, constants and target, as in `Verdict`."""
    index: int
    status: Status
    cached: bool
    """True when this run compiled nothing for it: another builder did, meanwhile or before."""
    reason: str
    """One line: why it is not "built"."""
    seconds: float
    peak_rss: int
    expected_seconds: float | None
    done: int
    to_compile: int
    remote: bool = False
    """True when it came from the remote cache."""
    worker: str = ""
    """The worker that compiled it, or its server where that names none; "": compiled here."""
    commands: tuple[str, ...] = ()
    """The command lines that were run, with -v."""
    log: str = ""
    """What the compilers said, with -vv."""


class Waiting(ProgramEvent, frozen=True):
    """Another builder compiles this program; it comes back later."""

    event: ClassVar[str] = "waiting"


class Retried(ProgramEvent, frozen=True):
    """A compile ended by accident and will be tried once more, alone."""

    event: ClassVar[str] = "retry"
    reason: str


class Dropped(ProgramEvent, frozen=True):
    """A compile that had begun was of no more use and has ended: what it was for has changed."""

    event: ClassVar[str] = "dropped"


class HeldBack(Event, frozen=True):
    """Schedules of an instance are left out: its default and another one fail at the same line of
    the template, with the same error, and none builds. They count as skipped."""

    event: ClassVar[str] = "held_back"
    label: str
    """Of the default."""
    instance: tuple[str, ...]
    """As in `Verdict`."""
    programs: int
    error: str
    """Of the default, with its place."""


class WouldCompile(ProgramEvent, frozen=True):
    """In a dry run: this program is not there."""

    event: ClassVar[str] = "would_compile"
    script: str
    index: int


class Stopping(Event, frozen=True):
    """Nothing more is started. `why` is "interrupted", "failures" or "error"."""

    event: ClassVar[str] = "stopping"
    why: str
    message: str
    running: int


class FailureGroup(Struct, frozen=True):
    """Failures whose first error line is the same but for places, names and numbers."""

    error: str
    """The first error line of the sample."""
    count: int
    labels: tuple[str, ...]
    """The first few."""
    status: str
    message: str
    """The sample's log, with the template's places."""
    compile_sh: str | None
    """What reproduces the sample; None when nothing of it is kept."""


class Verdict(Struct, frozen=True):
    """What a script came to for one set of constants and one target."""

    script: str
    instance: tuple[str, ...]
    schedules: int
    built: int
    failed: int
    pruned: int
    ok: bool
    reason: str
    """Why it is not ok; "" when it is."""
    label: str
    """The instance's name, for people."""


class RemoteSummary(Struct, frozen=True):
    """What the remote cache was good for."""

    address: str
    """Without what is secret in it."""
    hits: int
    """Programs that came from there."""
    misses: int
    """Programs that it does not have."""
    refused: int
    """Programs that it has, and that are not what they should be."""
    sent: int
    """Programs that went there."""
    unsent: int
    """Programs that should have gone there."""
    fetched_bytes: int
    sent_bytes: int
    saved_seconds: float
    """How long the compiles took where they were made."""
    verified: int = 0
    """Programs of `hits` that were compiled again before they were accepted."""
    wrong: int = 0
    """Programs that gave other bytes then: no more of it is used, and the exit status is 1."""
    executed: int = 0
    """Commands that other machines ran."""
    executor: str = ""
    """The address of their server, without what is secret in it; "" when it was not needed."""
    remembered: int = 0
    """Of `executed`, what the server had run before, so that nothing ran now."""
    executed_seconds: float = 0.0
    """How long all of `executed` took there."""
    inputs_bytes: int = 0
    """What was sent for them."""
    outputs_bytes: int = 0
    """What came of them."""


class Summary(Event, frozen=True):
    """Last of all. `programs` is the sum of the six columns from `compiled` to `skipped`."""

    event: ClassVar[str] = "summary"
    programs: int
    compiled: int
    """Built in this run."""
    cached: int
    """Built before, or by another builder meanwhile."""
    failed: int
    """Do not compile, as found in this run or recorded before."""
    pruned: int
    crashed: int
    """Have no answer: the compiler crashed, was killed, ran too long or wrote nothing."""
    skipped: int
    """Not tried: a dry run, the build stopped, or they were held back."""
    attempts: int
    """How many programs this run compiled, whatever came of it."""
    seconds: float
    exit_status: int
    scripts: tuple[Verdict, ...] = ()
    failures: tuple[FailureGroup, ...] = ()
    error: str | None = None
    """What stopped the build, other than the user."""
    signal: int | None = None
    """The signal that stopped the build."""
    remote: RemoteSummary | None = None
    """None: no remote cache was asked or sent to."""
    failures_left_out: int = 0
    """Groups of failures that are not among `failures`."""


class Result(Struct, frozen=True):
    """What `build` returns: the summary, and each program's status by its hash."""

    summary: Summary
    statuses: Mapping[str, str]
    """As in `Finished.status`, or "skipped"."""

    @property
    def was_stopped(self) -> bool:
        """Whether a signal or an error ended the build before its end."""
        return self.summary.signal is not None or self.summary.error is not None


class Reporter(Protocol):
    """Shows what happens. Called only on the thread that called `build`."""

    def emit(self, event: Event, /) -> None: ...

    def tick(self) -> None:
        """Called at every event and about ten times a second in between."""
        return

    def close(self) -> None:
        """Give the terminal back. May be called twice."""
        return


class CompositeReporter:
    """Passes every event to each of several reporters; without any it is silent."""

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters = reporters

    def emit(self, event: Event, /) -> None:
        for reporter in self._reporters:
            reporter.emit(event)

    def tick(self) -> None:
        for reporter in self._reporters:
            reporter.tick()

    def close(self) -> None:
        for reporter in self._reporters:
            reporter.close()


class PlanFirstReporter(CompositeReporter):
    """Passes events on, those of programs that were started while the plan was made behind the
    plan's. Before a plan nothing is passed on."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(reporter)
        self._early: list[Event] | None = []

    def emit(self, event: Event, /) -> None:
        if self._early is None:
            super().emit(event)
        elif not isinstance(event, Planned):
            self._early.append(event)
        else:
            early, self._early = self._early, None
            heads = [other for other in early if isinstance(other, BuildStarted | Sharded)]
            for passed in (*heads, event, *(other for other in early if other not in heads)):
                if isinstance(passed, Finished):
                    passed = replace(passed, to_compile=event.to_compile)
                # The engine holds schedules back once more when the plan is complete.
                if not isinstance(passed, HeldBack):
                    super().emit(passed)
