"""The last words of a build: equal failures together with a sample, verdicts, the sums.

Pure: from the summary event to text. The paths of `compile.sh` are quoted for a shell.
"""

from __future__ import annotations

import re
import shlex

from msgspec import Struct

from tilusbuild.engine.events import FailureGroup, RemoteSummary, Summary, Verdict
from tilusbuild.report.text import (
    clean_text,
    format_bytes,
    format_count,
    format_duration,
    to_one_line,
)
from tilusbuild.status import STATUS_WORDS

_SAMPLE_LINES = 24


def format_summary(summary: Summary, *, quiet: bool = False) -> str:
    """Several lines with a final newline; with `quiet` only what is wrong, "" when all is well."""
    parts = []
    if not quiet or summary.exit_status:
        parts += [_format_group(group) for group in summary.failures]
        verdicts = [_format_verdict(verdict) for verdict in summary.scripts if not verdict.ok]
        if verdicts:
            parts.append("\n".join(verdicts) + "\n")
        if summary.error is not None:
            error = clean_text(summary.error)
            prefix = "" if "error: " in error else "error: "
            parts.append(f"{prefix}{error}\n")
    if not quiet:
        remote = format_remote(summary.remote)
        parts.append(f"{remote}{format_totals(summary)}\n")
    return "\n".join(parts)


def is_nothing_done(summary: Summary) -> bool:
    """Return whether a build found everything in the cache."""
    fetched = summary.remote is not None and summary.remote.hits
    return summary.cached == summary.programs and not fetched and summary.signal is None


def format_totals(summary: Summary) -> str:
    """Return the sums in one line."""
    total = format_count(summary.programs, "program")
    elapsed = format_duration(summary.seconds)
    if summary.signal is not None:
        kept = f"{summary.compiled} compiled and kept, {summary.skipped} not done"
        return f"interrupted: {kept} ({elapsed})"
    if is_nothing_done(summary):
        return f"{total}, nothing to do ({elapsed})" if summary.programs else "nothing to build"
    counts = (
        (summary.compiled, "compiled"),
        (summary.cached, "up to date"),
        (summary.failed, "failed"),
        (summary.pruned, "pruned"),
        (summary.crashed, "without an answer"),
        (summary.skipped, "not tried"),
    )
    columns = ", ".join(f"{count} {word}" for count, word in counts if count)
    return f"{total}: {columns} ({elapsed})"


def format_remote(remote: RemoteSummary | None) -> str:
    """Return what the remotes were good for, as a line for each; none for one of which nothing
    came, and to which nothing went."""
    if remote is None:
        return ""
    counts = (
        (remote.hits, f"{remote.hits} fetched ({format_bytes(remote.fetched_bytes)})"),
        (
            remote.hits and remote.saved_seconds >= 1,
            f"{format_duration(remote.saved_seconds)} saved",
        ),
        (remote.verified, f"{remote.verified} compiled again, the same"),
        (remote.wrong, f"{remote.wrong} wrong"),
        (remote.refused, f"{remote.refused} refused"),
        (remote.sent, f"{remote.sent} sent ({format_bytes(remote.sent_bytes)})"),
        (remote.unsent, f"{remote.unsent} not sent"),
    )
    parts = ", ".join(text for count, text in counts if count)
    cache = f"remote cache: {parts}\n" if parts else ""
    return cache + _format_executed(remote)


def _format_executed(remote: RemoteSummary) -> str:
    if not remote.executed:
        return ""
    parts = [
        f"{format_count(remote.executed, 'compile')} of {format_duration(remote.executed_seconds)}"
    ]
    if remote.remembered:
        parts.append(f"{remote.remembered} known there before")
    if remote.inputs_bytes:
        parts.append(f"{format_bytes(remote.inputs_bytes)} sent")
    parts.append(f"{format_bytes(remote.outputs_bytes)} fetched")
    return f"remote executor: {', '.join(parts)}\n"


def _format_group(group: FailureGroup) -> str:
    head = f"{format_count(group.count, 'schedule')}: {to_one_line(group.error)}"
    more = group.count - len(group.labels)
    labels = ", ".join(to_one_line(label) for label in group.labels) + (
        f" … {more} more" if more else ""
    )
    lines = [head, f"  {labels}"]
    sample = _drop_resource_report(clean_text(group.message).strip("\n").splitlines())
    sample = [line for line in sample if line != group.error]  # it is the head
    if len(sample) > _SAMPLE_LINES:
        cut = len(sample) - _SAMPLE_LINES
        sample = [*sample[:_SAMPLE_LINES], f"… {format_count(cut, 'more line')}"]
    lines += [f"  | {line}" for line in sample]
    if group.compile_sh is not None:
        lines.append(f"  reproduce: bash {shlex.quote(group.compile_sh)}")
    return "\n".join(lines) + "\n"


_REPORT = re.compile(r"ptxas info\b|\s+\d+ bytes stack frame")


def _drop_resource_report(lines: list[str]) -> list[str]:
    """Return a log without ptxas' report of resources (not an error); whole if that is all."""
    return [line for line in lines if not _REPORT.match(line)] or lines


def _format_verdict(verdict: Verdict) -> str:
    name = to_one_line(verdict.label)
    return f"error: {name}: {verdict.reason} ({verdict.built} of {verdict.schedules} built)"


def format_failure(label: str, status: str, reason: str) -> str:
    """Return a failure as one line."""
    what = STATUS_WORDS.get(status, status)
    why = f": {to_one_line(reason)}" if reason else ""
    return f"{to_one_line(label)} {what}{why}"


# Where a log says that an error is.


_ERROR = r"(?:fatal )?error\b[^:]*:? ?(?P<text>.*)"
_PLACES = (
    re.compile(rf"^(?P<file>[^\s:(][^:(\n]*)\((?P<line>\d+)\): {_ERROR}", re.MULTILINE),
    re.compile(
        rf"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:(?P<column>\d+):)? {_ERROR}", re.MULTILINE
    ),
)
"""As nvcc and as the host compilers write where an error is."""


class ErrorLocation(Struct, frozen=True):
    """Where an error is. `file` is as the log has it: relative to the project's root."""

    file: str
    line: int
    column: int | None
    message: str = ""


def find_first_error(log: str) -> ErrorLocation | None:
    """Return the place of the first error in a log that names one."""
    matches = [match for pattern in _PLACES if (match := pattern.search(log))]
    if not matches:
        return None
    first = min(matches, key=lambda match: match.start())
    column = first.groupdict().get("column")
    return ErrorLocation(
        first["file"], int(first["line"]), int(column) if column else None, first["text"]
    )
