"""The last words of a build: equal failures together with a sample, verdicts, the sums.

Pure: from the summary event to text. The paths of `compile.sh` are quoted for a shell.
"""

from __future__ import annotations

import re
import shlex

from msgspec import Struct

from tilusbuild.engine.events import FailureGroup, RemoteSummary, Summary, Verdict
from tilusbuild.report.text import amount, cleaned, counted, duration, one_line
from tilusbuild.status import ENDED

_SAMPLE_LINES = 24


def summary_text(summary: Summary, *, quiet: bool = False) -> str:
    """Several lines with a final newline; with `quiet` only what is wrong, "" when all is well."""
    parts = []
    if not quiet or summary.exit_status:
        parts += [_group(group) for group in summary.failures]
        verdicts = [_verdict(verdict) for verdict in summary.scripts if not verdict.ok]
        if verdicts:
            parts.append("\n".join(verdicts) + "\n")
        if summary.error is not None:
            error = cleaned(summary.error)
            prefix = "" if "error: " in error else "error: "
            parts.append(f"{prefix}{error}\n")
    if not quiet:
        remote = remote_line(summary.remote)
        parts.append(f"{remote}{sums(summary)}\n")
    return "\n".join(parts)


def nothing_done(summary: Summary) -> bool:
    """Return whether a build found everything in the cache."""
    fetched = summary.remote is not None and summary.remote.hits
    return summary.cached == summary.programs and not fetched and summary.signal is None


def sums(summary: Summary) -> str:
    """Return the sums in one line."""
    total = counted(summary.programs, "program")
    took = duration(summary.seconds)
    if summary.signal is not None:
        kept = f"{summary.compiled} compiled and kept, {summary.skipped} not done"
        return f"interrupted: {kept} ({took})"
    if nothing_done(summary):
        return f"{total}, nothing to do ({took})" if summary.programs else "nothing to build"
    words = (
        (summary.compiled, "compiled"),
        (summary.cached, "up to date"),
        (summary.failed, "failed"),
        (summary.pruned, "pruned"),
        (summary.crashed, "without an answer"),
        (summary.skipped, "not tried"),
    )
    columns = ", ".join(f"{count} {word}" for count, word in words if count)
    return f"{total}: {columns} ({took})"


def remote_line(remote: RemoteSummary | None) -> str:
    """Return what the remotes were good for, as a line for each; none for one of which nothing
    came, and to which nothing went."""
    if remote is None:
        return ""
    words = (
        (remote.hits, f"{remote.hits} fetched ({amount(remote.fetched_bytes)})"),
        (remote.hits and remote.saved_seconds >= 1, f"{duration(remote.saved_seconds)} saved"),
        (remote.verified, f"{remote.verified} compiled again, the same"),
        (remote.wrong, f"{remote.wrong} wrong"),
        (remote.refused, f"{remote.refused} refused"),
        (remote.sent, f"{remote.sent} sent ({amount(remote.sent_bytes)})"),
        (remote.unsent, f"{remote.unsent} not sent"),
    )
    said = ", ".join(text for count, text in words if count)
    cache = f"remote cache: {said}\n" if said else ""
    return cache + _executed(remote)


def _executed(remote: RemoteSummary) -> str:
    if not remote.executed:
        return ""
    said = [f"{counted(remote.executed, 'compile')} of {duration(remote.executed_seconds)}"]
    if remote.remembered:
        said.append(f"{remote.remembered} known there before")
    if remote.inputs_bytes:
        said.append(f"{amount(remote.inputs_bytes)} sent")
    said.append(f"{amount(remote.outputs_bytes)} fetched")
    return f"remote executor: {', '.join(said)}\n"


def _group(group: FailureGroup) -> str:
    head = f"{counted(group.count, 'schedule')}: {one_line(group.error)}"
    more = group.count - len(group.labels)
    labels = ", ".join(one_line(label) for label in group.labels) + (
        f" … {more} more" if more else ""
    )
    lines = [head, f"  {labels}"]
    sample = _relevant(cleaned(group.message).strip("\n").splitlines())
    sample = [line for line in sample if line != group.error]  # it is the head
    if len(sample) > _SAMPLE_LINES:
        cut = len(sample) - _SAMPLE_LINES
        sample = [*sample[:_SAMPLE_LINES], f"… {counted(cut, 'more line')}"]
    lines += [f"  | {line}" for line in sample]
    if group.compile_sh is not None:
        lines.append(f"  reproduce: bash {shlex.quote(group.compile_sh)}")
    return "\n".join(lines) + "\n"


_REPORT = re.compile(r"ptxas info\b|\s+\d+ bytes stack frame")


def _relevant(lines: list[str]) -> list[str]:
    """Return a log without ptxas' report of resources (not an error); whole if that is all."""
    return [line for line in lines if not _REPORT.match(line)] or lines


def _verdict(verdict: Verdict) -> str:
    name = one_line(verdict.label)
    return f"error: {name}: {verdict.reason} ({verdict.built} of {verdict.schedules} built)"


def failure_line(label: str, status: str, reason: str) -> str:
    """Return a failure as one line."""
    what = ENDED.get(status, status)
    why = f": {one_line(reason)}" if reason else ""
    return f"{one_line(label)} {what}{why}"


# Where a log says that an error is.


_ERROR = r"(?:fatal )?error\b[^:]*:? ?(?P<text>.*)"
_PLACES = (
    re.compile(rf"^(?P<file>[^\s:(][^:(\n]*)\((?P<line>\d+)\): {_ERROR}", re.MULTILINE),
    re.compile(
        rf"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:(?P<column>\d+):)? {_ERROR}", re.MULTILINE
    ),
)
"""As nvcc and as the host compilers write where an error is."""


class Spot(Struct, frozen=True):
    """Where an error is. `file` is as the log has it: relative to the project's root."""

    file: str
    line: int
    column: int | None
    message: str = ""


def first_spot(log: str) -> Spot | None:
    """Return the place of the first error in a log that names one."""
    found = [match for pattern in _PLACES if (match := pattern.search(log))]
    if not found:
        return None
    first = min(found, key=lambda match: match.start())
    column = first.groupdict().get("column")
    return Spot(first["file"], int(first["line"]), int(column) if column else None, first["text"])
