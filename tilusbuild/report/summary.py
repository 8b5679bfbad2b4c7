"""The last words of a build: equal failures together with a sample, verdicts, the sums.

Pure: from the summary event to text. The paths of `compile.sh` are quoted for a shell.
"""

from __future__ import annotations

import re
import shlex

from msgspec import Struct

from tilusbuild.engine.events import FailureGroup, RemoteSummary, Summary
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
    """Return the end of a build as lines: groups of failures, verdicts that are not ok, the error,
    the sums. With `quiet` the sums are left out, and the text of a good build is ""."""
    parts = []
    if not quiet or summary.exit_status:
        parts += [_format_group(group) for group in summary.failures]
        verdicts = [
            f"error: {to_one_line(script.label)}: {script.reason}"
            f" ({script.built} of {script.schedules} built)\n"
            for script in summary.scripts
            if not script.ok
        ]
        if verdicts:
            parts.append("".join(verdicts))
        if summary.error is not None:
            error = clean_text(summary.error)
            prefix = "" if "error: " in error else "error: "
            parts.append(f"{prefix}{error}\n")
    if not quiet:
        remote = "" if summary.remote is None else _format_remote(summary.remote)
        parts.append(f"{remote}{_format_totals(summary)}\n")
    return "\n".join(parts)


def is_nothing_done(summary: Summary) -> bool:
    """Return whether a build found everything in the cache."""
    fetched = summary.remote is not None and summary.remote.hits
    return summary.cached == summary.programs and not fetched and summary.signal is None


def _format_totals(summary: Summary) -> str:
    """Return the sums in one line."""
    total = format_count(summary.programs, "program")
    elapsed = format_duration(summary.seconds)
    if summary.signal is not None:
        done = f"{summary.compiled} compiled and kept, {summary.skipped} not done"
        return f"interrupted: {done} ({elapsed})"
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


def _format_remote(remote: RemoteSummary) -> str:
    """Return a line for the remote cache and one for the executor, each if it was of use. A part
    whose count is 0 is left out."""
    has_saved = remote.hits and remote.saved_seconds >= 1
    # Before each part is a count or a bool: the part is left out for 0 and False.
    cache_parts = (
        (remote.hits, f"{remote.hits} fetched ({format_bytes(remote.fetched_bytes)})"),
        (has_saved, f"{format_duration(remote.saved_seconds)} saved"),
        (remote.verified, f"{remote.verified} compiled again, the same"),
        (remote.wrong, f"{remote.wrong} wrong"),
        (remote.refused, f"{remote.refused} refused"),
        (remote.sent, f"{remote.sent} sent ({format_bytes(remote.sent_bytes)})"),
        (remote.unsent, f"{remote.unsent} not sent"),
    )
    cache_text = ", ".join(text for is_shown, text in cache_parts if is_shown)
    cache_line = f"remote cache: {cache_text}\n" if cache_text else ""
    if not remote.executed:
        return cache_line
    compiles = format_count(remote.executed, "compile")
    executor_parts = (
        (True, f"{compiles} of {format_duration(remote.executed_seconds)}"),
        (remote.remembered, f"{remote.remembered} known there before"),
        (remote.inputs_bytes, f"{format_bytes(remote.inputs_bytes)} sent"),
        (True, f"{format_bytes(remote.outputs_bytes)} fetched"),
    )
    executor_text = ", ".join(text for is_shown, text in executor_parts if is_shown)
    return f"{cache_line}remote executor: {executor_text}\n"


def _format_group(group: FailureGroup) -> str:
    """Return a group of equal failures as lines: the error, the programs, the first lines of the
    sample's log, and the command that reproduces it."""
    labels = ", ".join(map(to_one_line, group.labels))
    unnamed = group.count - len(group.labels)
    if unnamed:
        labels += f" … {unnamed} more"
    lines = [f"{format_count(group.count, 'schedule')}: {to_one_line(group.error)}", f"  {labels}"]
    log = clean_text(group.message).strip("\n").splitlines()
    # The sample leaves out ptxas' report of resources, which is not an error, unless the log has
    # nothing else; and the error, which is the first line already.
    sample = [line for line in log if not _RESOURCE_REPORT.match(line)] or log
    sample = [line for line in sample if line != group.error]
    if len(sample) > _SAMPLE_LINES:
        cut = len(sample) - _SAMPLE_LINES
        sample = [*sample[:_SAMPLE_LINES], f"… {format_count(cut, 'more line')}"]
    lines += [f"  | {line}" for line in sample]
    if group.compile_sh is not None:
        lines.append(f"  reproduce: bash {shlex.quote(group.compile_sh)}")
    return "\n".join(lines) + "\n"


# "ptxas info    : Used 32 registers …", "    0 bytes stack frame, 0 bytes spill stores, …".
_RESOURCE_REPORT = re.compile(r"ptxas info\b|\s+\d+ bytes stack frame")


def format_failure(label: str, status: str, reason: str) -> str:
    """Return a failure as one line."""
    suffix = f": {to_one_line(reason)}" if reason else ""
    return f"{to_one_line(label)} {STATUS_WORDS.get(status, status)}{suffix}"


_ERROR = r"(?:fatal )?error\b[^:]*:? ?(?P<text>.*)"
_ERROR_LINE_PATTERNS = (
    re.compile(rf"^(?P<file>[^\s:(][^:(\n]*)\((?P<line>\d+)\): {_ERROR}", re.MULTILINE),
    re.compile(
        rf"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:(?P<column>\d+):)? {_ERROR}",
        re.MULTILINE,
    ),
)
"""An error with its place, as nvcc writes it, "k.cu(12): error: …", and as the host compilers do,
"k.cc:12:8: error: …"."""


class ErrorLocation(Struct, frozen=True):
    """The place of an error. `file` is as the log has it: relative to the project's root."""

    file: str
    line: int
    column: int | None
    message: str = ""


def find_first_error(log: str) -> ErrorLocation | None:
    """Return the place and the text of the first error in a compiler's log; None when no error has
    a place."""
    matches = [match for pattern in _ERROR_LINE_PATTERNS if (match := pattern.search(log))]
    if not matches:
        return None
    first = min(matches, key=lambda match: match.start())
    column = first.groupdict().get("column")
    return ErrorLocation(
        file=first["file"],
        line=int(first["line"]),
        column=int(column) if column else None,
        message=first["text"],
    )
