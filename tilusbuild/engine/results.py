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
from typing import NamedTuple

from msgspec import Struct, field

from tilusbuild.engine.attempt import ProgramAnswer, locate_message, locate_reason
from tilusbuild.engine.events import (
    FailureGroup,
    Finished,
    Planned,
    RemoteSummary,
    Summary,
    Verdict,
)
from tilusbuild.engine.interfaces import Job, Store
from tilusbuild.engine.running import BuildConfig
from tilusbuild.engine.states import Ticket
from tilusbuild.errors import TilusbuildError, find_shortage
from tilusbuild.status import ACCIDENTS, RECORDED, STATUS_WORDS, Compiled, Status

COLUMNS = ("compiled", "cached", "failed", "pruned", "crashed", "skipped")
# Characters kept of the log of a program that is not recorded: its end has the error.
_EXCERPT = 16 << 10
_MAX_GROUPS = 20
_SHOWN_LABELS = 8
# One schedule may fail by its own values, such as too wide a tile: two equal failures are needed to
# take an instance's other schedules to fail, too, and at most four are compared.
_MIN_EQUAL_FAILURES, _MAX_KEPT_FAILURES = 2, 4

_ERROR = re.compile(r"\b(?:fatal )?error\b", re.IGNORECASE)
# "k.cu.j2(12): error: …" of nvcc, "k.cu.j2:12:8: error: …" of a host compiler.
_PLACE_PREFIX = re.compile(r"^\S.*?(?:\(\d+\)|:\d+(?::\d+)?):\s*")
# ":12:8:", a line and a column.
_COLUMN = re.compile(r"(:\d+):\d+:")
# Numbers and quoted names.
_VARYING_TEXT = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?|'[^']*'|\"[^\"]*\"|`[^`]*`")


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
        self._known = dict.fromkeys(COLUMNS, 0)
        """The same, of answers from before this build."""
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
        """Count the answer of one program, and keep its failure. `jobs` are all jobs with its
        hash."""
        all_jobs = list(jobs)
        first_job, status = all_jobs[0], answer.compiled.status
        self.statuses[first_job.hash] = status
        column = _find_column(status, answer.cached)
        self.counts[column] += 1
        self._known[column] += answer.cached
        for job in all_jobs:
            self.add_to_script(job, status, answer)
        # Pruned and skipped programs are missing on purpose, and do not count as failures.
        if status not in (Status.BUILT, Status.PRUNED, Status.SKIPPED):
            self._failures.append(self._describe_failure(first_job, answer.compiled))
            if not answer.cached:
                self.unbuilt += 1

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
        """Count a job's status for its instance. Without `answer` a failure is only counted, and
        not compared with other failures."""
        tally = self._tallies.get(job.instance)
        if tally is None:
            tally = ScriptTally(job.script, job.instance, job.instance_label)
            self._tallies[job.instance] = tally
        tally.counts[status] = tally.counts.get(status, 0) + 1
        if job.is_default:
            tally.default = status
        tally.is_library = tally.is_library or job.is_part
        if status == Status.FAILED and answer is not None:
            tally.add_failure(job, answer)

    def make_plan_event(self, seconds: float, *, dry_run: bool) -> Planned:
        """Return the event of the plan, from the answers so far. `seconds` is the expected compile
        time of the other programs, whose number is `to_compile`; 0 is unknown."""
        return Planned(
            programs=len(self.statuses) - self.finished + self.to_compile,
            **{column: self._known[column] for column in ("cached", "failed", "pruned")},
            to_compile=self.to_compile,
            expected_seconds=seconds or None,
            dry_run=dry_run,
        )

    def make_summary(
        self, seconds: float, config: BuildConfig, ending: Ending, remote: RemoteSummary | None
    ) -> Summary:
        """Return the sums and the exit status.

        The status is 128 plus the signal after a signal. Else it is 1 if the build stopped with
        work left or for an error, if the remote sent a wrong program, or if a script is not ok.
        """
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
        """Return a failed program, with the first error line of its reason, else of its log."""
        # A recorded program's log is in the store, and is read only if it is shown. The others have
        # no directory, so a part of their log is kept.
        excerpt = None if compiled.status in RECORDED else compiled.log[-_EXCERPT:]
        if _ERROR.search(compiled.reason):
            error = _PLACE_PREFIX.sub("", compiled.reason)
        else:
            log = compiled.log or self._read_log(job, excerpt)
            error = _find_error_line(log, compiled.reason)
        return _FailedProgram(job, compiled.status, compiled.reason, error, excerpt)

    def _read_log(self, job: Job, excerpt: str | None) -> str:
        return self._store.read_log(job.hash) if excerpt is None else excerpt

    def _group_failures(self) -> tuple[tuple[FailureGroup, ...], int]:
        """Return the `_MAX_GROUPS` largest groups of equal failures, and how many are left out."""
        groups: dict[tuple[str, str], list[_FailedProgram]] = {}
        for failure in self._failures:
            key = (failure.status, normalize_error(failure.error))
            groups.setdefault(key, []).append(failure)
        largest_first = sorted(groups.values(), key=len, reverse=True)
        shown_groups = tuple(map(self._make_group, largest_first[:_MAX_GROUPS]))
        return shown_groups, len(largest_first) - len(shown_groups)

    def _make_group(self, members: list[_FailedProgram]) -> FailureGroup:
        """Return the event's group of equal failures; its sample is the first of them."""
        sample = members[0]
        job = sample.job
        message = locate_message(job, self._read_log(job, sample.excerpt))
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


class _FailedSchedule(NamedTuple):
    job: Job
    answer: ProgramAnswer


class ScriptTally(Struct):
    """The answers of one instance's schedules, counted."""

    script: str
    instance: tuple[str, ...]
    label: str
    counts: dict[Status, int] = field(default_factory=dict)
    default: Status | None = None
    is_library: bool = False
    """Whether the instance is a library, which needs every part."""
    failures: list[_FailedSchedule] = field(default_factory=list)
    """The first few failed schedules; the default schedule, if it is one, is the first."""

    def add_failure(self, job: Job, answer: ProgramAnswer) -> None:
        """Keep a failed schedule for `find_shared_error`: the default always, as the first one,
        another one if fewer than `_MAX_KEPT_FAILURES` are kept. A program is kept once."""
        other_failures = [failure for failure in self.failures if failure.job.hash != job.hash]
        is_kept = len(other_failures) < len(self.failures)
        if job.is_default:
            # The default comes first: `find_shared_error` returns the job of the first failure.
            self.failures = [_FailedSchedule(job, answer), *other_failures]
        elif not is_kept and len(self.failures) < _MAX_KEPT_FAILURES:
            self.failures.append(_FailedSchedule(job, answer))

    def find_shared_error(self) -> tuple[Job, str] | None:
        """Return the default job and its error if all schedules seem to share it; else None.

        They seem to if the default schedule and another one fail, all failures that are kept are
        of one line and one error, and no schedule was built or pruned.
        """
        if self.default != Status.FAILED or len(self.failures) < _MIN_EQUAL_FAILURES:
            return None
        if self.counts.get(Status.BUILT, 0) or self.counts.get(Status.PRUNED, 0):
            return None
        reasons = []
        for job, answer in self.failures:
            reason = answer.compiled.reason
            # A reason from the store has places of the source, and a new one those of the template.
            reasons.append(locate_reason(job, reason) if answer.cached else reason)
        errors = {locate_error(reason) for reason in reasons}
        if len(errors) > 1 or None in errors:
            return None
        return self.failures[0].job, reasons[0]

    def make_verdict(self, strict: bool, part: bool = False) -> Verdict:
        """Return the instance's verdict. With `strict`, any schedule that does not compile fails
        it. With `part`, other schedules are built elsewhere, so that none builds here is no
        failure."""
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
        """Return the first reason for which the instance is not ok; "" when it is. The head of this
        file has the rules."""
        accidents = sum(self.counts.get(status, 0) for status in ACCIDENTS)
        failed = self.counts.get(Status.FAILED, 0)
        skipped = self.counts.get(Status.SKIPPED, 0)
        if self.default is not None and self.default not in (Status.BUILT, Status.SKIPPED):
            return f"its default schedule {STATUS_WORDS[self.default]}"
        if self.is_library and failed:
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
    last_text = ""
    for line in log.splitlines():
        # gcc's own line says only that the linker, which gives reasons without that word, failed.
        if _ERROR.search(line) and not line.startswith("collect2: "):
            return _PLACE_PREFIX.sub("", line.strip())
        last_text = line.strip() or last_text
    return otherwise or last_text


def normalize_error(error: str) -> str:
    """Return an error line without its place, and with `#` for quoted names and numbers, which
    differ between schedules."""
    return _VARYING_TEXT.sub("#", _PLACE_PREFIX.sub("", error))


def locate_error(reason: str) -> tuple[str, str] | None:
    """Return the file and line of an error, and the normalized error; None without a line."""
    match = _PLACE_PREFIX.match(reason)
    if match is None:
        return None
    # One error has different columns in two schedules, if they write values before it.
    place_without_column = _COLUMN.sub(r"\1", match[0])
    return place_without_column, normalize_error(reason)


def describe_error(error: BaseException) -> str | None:
    """Return the message for a user's mistake or an error of the machine; None for our own bug."""
    if isinstance(error, TilusbuildError):
        return error.render()
    if isinstance(error, OSError):
        message = str(error.strerror or error)
        if error.filename:
            message += f": {error.filename}"
        if shortage := find_shortage(error):
            message += f"\n  {shortage}"
        return message
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
