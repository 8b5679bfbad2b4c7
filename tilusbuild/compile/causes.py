"""The cause of a failed step: the one place that tells a program's faults from the machine's.

Facts come first: the time limit, the signal, the error number. Only when a tool ran to its end and
failed is its output searched, by the one table below. Decisions rest on the `Cause`; the reason is
for people.
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Sequence

from tilusbuild.process.base import CompletedCommand
from tilusbuild.status import Cause

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

_MESSAGES: Sequence[tuple[Cause, re.Pattern[str]]] = tuple(
    (cause, re.compile(pattern, re.IGNORECASE))
    for cause, pattern in (
        # strerror() of ENOSPC, EDQUOT and EIO, as every tool prints it (LC_ALL is C).
        (Cause.DISK, r"No space left on device|Disk quota exceeded|Input/output error"),
        # strerror() of ENOMEM; a C++ tool (cicc, ptxas, ld) whose allocation failed; libiberty's
        # xmalloc in the GNU tools, in its old and its present wording.
        (Cause.MEMORY, r"Cannot allocate memory|std::bad_alloc"),
        (Cause.MEMORY, r"virtual memory exhausted|out of memory allocating"),
        # "ptxas fatal   : Memory allocation failure: out of memory", "cc1plus: out of memory", and
        # NVRTC_ERROR_OUT_OF_MEMORY as our driver of NVRTC prints it. The tool's name is required,
        # because a source may speak of memory in its own #error.
        (
            Cause.MEMORY,
            r"(?:fatal|internal error|compiler|cc1plus|ptxas|nvcc|cicc)\b.*\bout of memory",
        ),
        # nvcc and gcc outlive a subprocess that the kernel kills, and end with an ordinary status.
        (Cause.KILLED, r"died due to signal 9\b|Killed signal terminated program"),
        (Cause.CRASH, r"died due to signal|signal terminated program"),
        # gcc and cicc about themselves; NVRTC's own failures as our driver of NVRTC prints them.
        (Cause.CRASH, r"internal compiler error|nvrtc: fatal"),
    )
)
"""What tools print when the machine, or they themselves, failed. The first match wins: a compiler
that meets a full disk often crashes because of it."""

_ERROR_MARKS = ("undefined reference", "error:", "error ", "fatal", "Error:")


class StepError(Exception):
    """A step, or a check of its output, ended the compile. `reason` is one line for people."""

    def __init__(self, cause: Cause, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause
        self.reason = reason


def not_started(tool: str, error: OSError) -> StepError:
    """Return the error for a tool that could not be started."""
    cause = Cause.TOOL
    if error.errno in _DISK_ERRORS:
        cause = Cause.DISK
    elif error.errno == errno.ENOMEM:
        cause = Cause.MEMORY
    return StepError(cause, f"{tool} cannot be started: {error}")


def failure(
    tool: str, finished: CompletedCommand, log: str, explanation: str | None = None
) -> StepError | None:
    """Return the error of a finished step, or None if its tool reports success.

    `log` is the tool's output. `explanation` replaces the first error of the log as the reason if
    the source is at fault.
    """
    if finished.timed_out:
        return StepError(Cause.TIME, f"{tool} was stopped after {finished.seconds:.0f} s")
    if finished.status == 0:
        return None
    matched = _match(log)
    if number := _signal(finished.status):
        ended = f"{tool} was ended by {_signal_name(number)}"
        # A tool may be killed, or abort, because of what it has just complained about.
        if matched is not None and matched[0] is Cause.DISK:
            return StepError(*matched)
        if matched is not None and matched[0] is Cause.MEMORY:
            return StepError(Cause.MEMORY, ended)
        if number == signal.SIGKILL:
            return StepError(Cause.KILLED, f"{ended}, as when memory runs out")
        return StepError(Cause.CRASH, ended)
    if matched is not None:
        return StepError(*matched)
    reason = explanation or _first_error(log) or f"{tool} ended with status {finished.status}"
    return StepError(Cause.SOURCE, reason)


def _match(log: str) -> tuple[Cause, str] | None:
    """Return the first cause of the table that matches the log, and the matching line."""
    for cause, pattern in _MESSAGES:
        if match := pattern.search(log):
            start = log.rfind("\n", 0, match.start()) + 1
            return cause, log[start:].partition("\n")[0].strip()
    return None


def _signal(status: int) -> int:
    """Return the signal that a status stands for, as a runner or as a shell reports it; 0: none."""
    if status < 0:
        return -status
    # 255 is not a signal: it is the status of tools that end with exit(-1).
    return status - 128 if 128 < status < 255 else 0


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _first_error(log: str) -> str | None:
    """Return the first line with a compiler's error mark; else the first line, if any."""
    lines = log.splitlines()
    for mark in _ERROR_MARKS:
        for line in lines:
            if mark in line:
                return line.strip()
    return lines[0].strip() if lines else None
