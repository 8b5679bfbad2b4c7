"""What the programs' answers mean for the scripts: counts, verdicts, groups of equal failures.

Pure. A script fails, for one set of constants and one target, when none of its schedules builds or
its default does not; with `strict`, when any does not compile. A schedule without an answer (the
compiler crashed, was killed, ran too long, wrote nothing) fails it too: the tree is not complete,
and the next build tries again. Where only a part of an instance is built, whether any of it builds
is for whoever has the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tilusbuild.engine.events import FailureGroup, Verdict
from tilusbuild.status import ACCIDENTS, Status

_SHOWN_LABELS = 8

_ERROR = re.compile(r"\b(?:fatal )?error\b", re.IGNORECASE)
_PLACE = re.compile(r"^\S.*?(?:\(\d+\)|:\d+(?::\d+)?):\s*")
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?|'[^']*'|\"[^\"]*\"|`[^`]*`")


@dataclass(slots=True)
class Tally:
    """The answers of one instance's schedules so far."""

    script: str
    instance: tuple[str, ...]
    counts: dict[Status, int] = field(default_factory=dict)
    default: Status | None = None

    def add(self, status: Status, is_default: bool) -> None:
        self.counts[status] = self.counts.get(status, 0) + 1
        if is_default:
            self.default = status

    def verdict(self, strict: bool, part: bool = False) -> Verdict:
        """What the instance came to; `part`: these are not all of its schedules."""
        reason = self._reason(strict, part)
        return Verdict(
            script=self.script,
            instance=self.instance,
            schedules=sum(self.counts.values()),
            built=self.counts.get(Status.BUILT, 0),
            failed=self.counts.get(Status.FAILED, 0),
            pruned=self.counts.get(Status.PRUNED, 0),
            ok=not reason,
            reason=reason,
        )

    def _reason(self, strict: bool, part: bool) -> str:
        accidents = sum(self.counts.get(status, 0) for status in ACCIDENTS)
        failed = self.counts.get(Status.FAILED, 0)
        skipped = self.counts.get(Status.SKIPPED, 0)
        if self.default is not None and self.default not in (Status.BUILT, Status.SKIPPED):
            return f"its default schedule {_ENDED[self.default]}"
        if not self.counts.get(Status.BUILT, 0) and not skipped and not part:
            return "none of its schedules builds"
        if accidents:
            return f"{_count(accidents, 'schedule has', 'schedules have')} no answer"
        if strict and failed:
            return f"{_count(failed, 'schedule does', 'schedules do')} not compile"
        return ""


_ENDED = {
    Status.FAILED: "does not compile",
    Status.PRUNED: "is pruned",
    Status.CRASHED: "crashes the compiler",
    Status.KILLED: "was killed",
    Status.TIMED_OUT: "takes too long to compile",
    Status.NO_OUTPUT: "makes the compiler write nothing",
    Status.CHANGED: "changed while it was built",
}


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A program that is not built, with what it takes to show it."""

    label: str
    status: Status
    reason: str
    error: str
    """Its first error line."""
    message: Callable[[], str]
    """Its log for people; called for the one sample of a group."""
    compile_sh: str | None


def first_error(log: str, otherwise: str = "") -> str:
    """The first line of a log that speaks of an error, without its place; else `otherwise`, else
    the last line that is not blank."""
    last = ""
    for line in log.splitlines():
        if _ERROR.search(line):
            return _PLACE.sub("", line.strip())
        last = line.strip() or last
    return otherwise or last


def headline(reason: str, log: Callable[[], str]) -> str:
    """What to know a failure by. `log` may have to be read, so it is asked only when needed."""
    return _PLACE.sub("", reason) if _ERROR.search(reason) else first_error(log(), reason)


def normalised(error: str) -> str:
    """An error line without what differs between schedules: places, quoted names, numbers."""
    return _VARIES.sub("#", _PLACE.sub("", error))


def grouped(failures: Iterable[Failure], limit: int = 20) -> tuple[FailureGroup, ...]:
    """Equal failures together, the largest group first; at most `limit` groups."""
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        groups.setdefault((failure.status, normalised(failure.error)), []).append(failure)
    ordered = sorted(groups.values(), key=len, reverse=True)[:limit]
    return tuple(_group(members) for members in ordered)


def _group(members: list[Failure]) -> FailureGroup:
    sample = members[0]
    return FailureGroup(
        error=sample.error or sample.reason,
        count=len(members),
        labels=tuple(member.label for member in members[:_SHOWN_LABELS]),
        status=sample.status,
        message=sample.message(),
        compile_sh=sample.compile_sh,
    )
