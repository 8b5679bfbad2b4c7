"""The outcome of a build: every program's status, every script's verdict, groups of equal failures.

Each program is in exactly one column, and all the columns together are all the programs. A program
that several jobs share counts once there, and once for each of them in their scripts' verdicts.

A script fails, for one set of constants and one target, when none of its schedules builds or its
default does not, or any of a library's parts; with `strict`, when any does not compile. A schedule
without an answer (the compiler crashed, was killed, ran too long, wrote nothing) fails it too: the
tree is not complete, and the next build tries again. Where only a part of an instance is built,
whether any of it builds is for whoever has the rest.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct, field

from tilusbuild.engine.attempt import ProgramAnswer, locate_reason
from tilusbuild.engine.events import (
    FailureGroup,
    Finished,
    Planned,
    RemoteSummary,
    Summary,
    Verdict,
)
from tilusbuild.engine.interfaces import Job, Store
from tilusbuild.engine.states import Ticket
from tilusbuild.errors import TilusbuildError, find_shortage
from tilusbuild.status import ACCIDENTS, RECORDED, STATUS_WORDS, Compiled, Status

if TYPE_CHECKING:
    from tilusbuild.engine.running import BuildConfig

COLUMNS = ("compiled", "cached", "failed", "pruned", "crashed", "skipped")
# Characters kept of the log of a program that is not recorded: its end has the error.
_EXCERPT = 16 << 10
_MAX_GROUPS = 20
_SHOWN_LABELS = 8
# One schedule may fail by its own values, such as too wide a tile: two equal failures are needed to
# take an instance's other schedules to fail, too, and at most four are compared.
_ENOUGH, _EVIDENCE = 2, 4

_ERROR = re.compile(r"\b(?:fatal )?error\b", re.IGNORECASE)
_PLACE = re.compile(r"^\S.*?(?:\(\d+\)|:\d+(?::\d+)?):\s*")
_COLUMN = re.compile(r"(:\d+):\d+:")
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?|'[^']*'|\"[^\"]*\"|`[^`]*`")


class Ending(Struct):
    """Whether the build starts nothing more, and why."""

    stopped: threading.Event = field(default_factory=threading.Event)
    signal: int | None = None
    error: str | None = None
    """The message of an error that no program caused."""
    internal: BaseException | None = None
    """An error that is our own: raised when the workers have ended."""


class Results:
    """The answers of one plan's programs, counted."""

    def __init__(self, store: Store, attempts: int = 0) -> None:
        self._store = store
        self.statuses: dict[str, Status] = {}
        self.counts = dict.fromkeys(COLUMNS, 0)
        self.attempts = attempts
        """How many programs the build compiled, for plans before this one, too."""
        self.finished = 0
        """How many of `to_compile` have an answer."""
        self.to_compile = 0
        self.unbuilt = 0
        """Programs that this run tried and did not build, without the pruned ones."""
        self._tallies: dict[tuple[str, ...], ScriptTally] = {}
        self._failures: list[_FailedProgram] = []

    def record_answer(self, jobs: Iterable[Job], answer: ProgramAnswer) -> None:
        """Count the answer of one program; `jobs` are all jobs with its hash."""
        first, *duplicates = jobs
        compiled, cached = answer.compiled, answer.cached
        status = compiled.status
        self.statuses[first.hash] = status
        self.counts[_find_column(status, cached)] += 1
        for job in (first, *duplicates):
            self.add_to_script(job, status, answer)
        # Pruned and skipped programs are missing on purpose.
        if status not in (Status.BUILT, Status.PRUNED, Status.SKIPPED):
            self._failures.append(self._describe_failure(first, compiled))
            self.unbuilt += not cached

    def find_shared_error(self, instance: tuple[str, ...]) -> tuple[Job, str] | None:
        """Return an instance's default job and the error that all its schedules seem to share, or
        None."""
        tally = self._tallies.get(instance)
        return None if tally is None else tally.find_shared_error()

    @property
    def instances(self) -> list[tuple[str, ...]]:
        """The instances of which a schedule has an answer."""
        return list(self._tallies)

    def add_to_script(self, job: Job, status: Status, answer: ProgramAnswer | None = None) -> None:
        """Count a job for its instance; without `answer`, another job has its program, too."""
        tally = self._tallies.get(job.instance)
        if tally is None:
            tally = self._tallies[job.instance] = ScriptTally(
                job.script, job.instance, job.instance_label
            )
        tally.counts[status] = tally.counts.get(status, 0) + 1
        if job.is_default:
            tally.default = status
        tally.of_parts = tally.of_parts or job.is_part
        if status == Status.FAILED and answer is not None:
            tally.add_failure(job, answer)

    def make_plan_event(self, seconds: float, *, dry_run: bool) -> Planned:
        """Return the event of a plan with these answers. `to_compile` programs have none, and take
        `seconds`; 0 is unknown."""
        return Planned(
            programs=len(self.statuses) + self.to_compile,
            cached=self.counts["cached"],
            failed=self.counts["failed"],
            pruned=self.counts["pruned"],
            to_compile=self.to_compile,
            expected_seconds=seconds or None,
            dry_run=dry_run,
        )

    def make_summary(
        self, seconds: float, config: BuildConfig, ending: Ending, remote: RemoteSummary | None
    ) -> Summary:
        """Return the sums and the exit status. A build that stopped with work left has failed."""
        scripts = tuple(
            tally.make_verdict(config.strict, config.part) for tally in self._tallies.values()
        )
        is_unfinished = ending.stopped.is_set() and self.counts["skipped"] > 0
        # A wrong remote fails the build though all scripts are fine: it may have poisoned others.
        is_remote_wrong = remote is not None and remote.wrong > 0
        is_wrong = is_unfinished or is_remote_wrong or ending.error is not None
        status = int(is_wrong or not all(verdict.ok for verdict in scripts))
        failures, left_out = self._group_failures()
        return Summary(
            programs=len(self.statuses),
            **self.counts,
            attempts=self.attempts,
            seconds=seconds,
            exit_status=status if ending.signal is None else 128 + ending.signal,
            scripts=scripts,
            failures=failures,
            failures_left_out=left_out,
            error=ending.error,
            signal=ending.signal,
            remote=remote,
        )

    def _describe_failure(self, job: Job, compiled: Compiled) -> _FailedProgram:
        # A recorded program's log is in the store, and is read only if it is shown. The others have
        # no directory, so a part of their log is kept.
        excerpt = None if compiled.status in RECORDED else compiled.log[-_EXCERPT:]
        if _ERROR.search(compiled.reason):
            error = _PLACE.sub("", compiled.reason)
        else:
            error = _find_error_line(compiled.log or self._read_log(job, excerpt), compiled.reason)
        return _FailedProgram(job, compiled.status, compiled.reason, error, excerpt)

    def _read_log(self, job: Job, excerpt: str | None) -> str:
        return self._store.read_log(job.hash) if excerpt is None else excerpt

    def _group_failures(self) -> tuple[tuple[FailureGroup, ...], int]:
        """Return the `_MAX_GROUPS` largest groups of equal failures, and how many are left out."""
        groups: dict[tuple[str, str], list[_FailedProgram]] = {}
        for failure in self._failures:
            groups.setdefault((failure.status, normalize_error(failure.error)), []).append(failure)
        ordered = sorted(groups.values(), key=len, reverse=True)
        return tuple(map(self._make_group, ordered[:_MAX_GROUPS])), len(ordered[_MAX_GROUPS:])

    def _make_group(self, members: list[_FailedProgram]) -> FailureGroup:
        sample = members[0]
        job, message = sample.job, self._read_log(sample.job, sample.excerpt)
        # Translating reads the template, which may have changed or gone since.
        with suppress(OSError, TilusbuildError):
            message = job.translate_log(message)
        path = f"{self._store.program_path(job.hash)}/module/compile.sh"
        return FailureGroup(
            error=sample.error or sample.reason,
            count=len(members),
            labels=tuple(member.job.label for member in members[:_SHOWN_LABELS]),
            status=sample.status,
            message=message,
            compile_sh=path if sample.excerpt is None else None,
        )


def _find_column(status: Status, cached: bool) -> str:
    if status == Status.BUILT:
        return "cached" if cached else "compiled"
    return status if status in COLUMNS else "crashed"


class ScriptTally(Struct):
    """The answers of one instance's schedules, counted."""

    script: str
    instance: tuple[str, ...]
    label: str
    counts: dict[Status, int] = field(default_factory=dict)
    default: Status | None = None
    of_parts: bool = False
    """Whether the instance is a library, which needs every part."""
    failures: list[tuple[Job, ProgramAnswer]] = field(default_factory=list)
    """The first few failed schedules; the default schedule, if it is one, is the first."""

    def add_failure(self, job: Job, answer: ProgramAnswer) -> None:
        """Keep a failed schedule, if fewer than `_EVIDENCE` are kept or it is the default."""
        # The default comes first: `find_shared_error` compares the others with it.
        if job.is_default:
            others = [failure for failure in self.failures if failure[0].hash != job.hash]
            self.failures = [(job, answer), *others]
        elif len(self.failures) < _EVIDENCE and all(
            job.hash != other.hash for other, _ in self.failures
        ):
            self.failures.append((job, answer))

    def find_shared_error(self) -> tuple[Job, str] | None:
        """Return the default job and its error, if another schedule fails at the same line with the
        same error, and no schedule was built or pruned; else None."""
        counts = self.counts
        if self.default != Status.FAILED or len(self.failures) < _ENOUGH:
            return None
        if counts.get(Status.BUILT, 0) or counts.get(Status.PRUNED, 0):
            return None
        # The reason in a store has places of the source, and a new one those of the template.
        reasons = [
            locate_reason(job, answer.compiled.reason) if answer.cached else answer.compiled.reason
            for job, answer in self.failures
        ]
        first, *others = {locate_error(reason) for reason in reasons}
        return None if others or first is None else (self.failures[0][0], reasons[0])

    def make_verdict(self, strict: bool, part: bool = False) -> Verdict:
        """Return the instance's verdict; with `part`, other schedules are built elsewhere."""
        reason = self._explain_failure(strict, part)
        return Verdict(
            script=self.script,
            instance=self.instance,
            schedules=sum(self.counts.values()),
            built=self.counts.get(Status.BUILT, 0),
            failed=self.counts.get(Status.FAILED, 0),
            pruned=self.counts.get(Status.PRUNED, 0),
            ok=not reason,
            reason=reason,
            label=self.label,
        )

    def _explain_failure(self, strict: bool, part: bool) -> str:
        accidents = sum(self.counts.get(status, 0) for status in ACCIDENTS)
        failed = self.counts.get(Status.FAILED, 0)
        skipped = self.counts.get(Status.SKIPPED, 0)
        if self.default is not None and self.default not in (Status.BUILT, Status.SKIPPED):
            return f"its default schedule {STATUS_WORDS[self.default]}"
        if self.of_parts and failed:
            return f"{_format_count(failed, 'of its parts does', 'of its parts do')} not build"
        if not self.counts.get(Status.BUILT, 0) and not skipped and not part:
            return "none of its schedules builds"
        if accidents:
            return f"{_format_count(accidents, 'schedule has', 'schedules have')} no answer"
        if strict and failed:
            return f"{_format_count(failed, 'schedule does', 'schedules do')} not compile"
        return ""


def _format_count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


class _FailedProgram(Struct, frozen=True):
    """A program that was not built."""

    job: Job
    status: Status
    reason: str
    error: str
    """The first error line of the reason or the log."""
    excerpt: str | None
    """The end of the log; None if the log is in the store."""


def _find_error_line(log: str, otherwise: str) -> str:
    """Return the first line of a log that reports an error, without its place; else `otherwise`,
    else the last line that is not blank."""
    last = ""
    for line in log.splitlines():
        if _ERROR.search(line):
            return _PLACE.sub("", line.strip())
        last = line.strip() or last
    return otherwise or last


def normalize_error(error: str) -> str:
    """Return an error line without its place, and with `#` for quoted names and numbers, which
    differ between schedules."""
    return _VARIES.sub("#", _PLACE.sub("", error))


def locate_error(reason: str) -> tuple[str, str] | None:
    """Return the file and line of an error, and the normalized error; None without a line."""
    match = _PLACE.match(reason)
    if match is None:
        return None
    return _COLUMN.sub(r"\1", match[0]), normalize_error(reason)


def describe_error(error: BaseException) -> str | None:
    """Return the message for a user's mistake or an error of the machine; None for our own bug."""
    if isinstance(error, TilusbuildError):
        return error.render()
    if isinstance(error, OSError):
        file_suffix = f": {error.filename}" if error.filename else ""
        shortage = find_shortage(error)
        return f"{error.strerror or error}{file_suffix}" + (f"\n  {shortage}" if shortage else "")
    return None


def make_finished_event(
    ticket: Ticket, answer: ProgramAnswer, results: Results, *, verbose: int
) -> Finished:
    """Return the event of a program's answer, which `results` has counted already."""
    job, compiled = ticket.job, answer.compiled
    return Finished(
        hash=job.hash,
        label=job.label,
        script=job.script,
        instance=job.instance,
        index=job.index,
        status=compiled.status,
        cached=answer.cached,
        reason=compiled.reason,
        seconds=compiled.seconds,
        peak_rss=compiled.peak_rss,
        expected_seconds=ticket.estimate.seconds,
        done=results.finished,
        to_compile=results.to_compile,
        remote=answer.remote,
        worker=compiled.elsewhere.name if compiled.elsewhere else "",
        commands=compiled.commands if verbose else (),
        log=job.translate_log(compiled.log) if verbose > 1 else "",
    )
