"""The cause of a failed step: the one place that separates a program's faults from the machine's.

Facts come first: the time limit, the signal, the error number. When a tool ran to its end and
failed, it is the program's fault only if its output holds a diagnosis of the program
(`diagnosis.py`) and no report of an accident; anything else is an accident, which is tried again
and never recorded. Decisions rest on the `Cause`; the reason is for people.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Sequence

from tilusbuild.compile.diagnosis import Program, read
from tilusbuild.process.base import CompletedCommand
from tilusbuild.shortage import PROCESSES, shortage_of
from tilusbuild.status import Cause

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

_ACCIDENTS: Sequence[tuple[Cause, re.Pattern[str]]] = tuple(
    (cause, re.compile(pattern, re.IGNORECASE))
    for cause, pattern in (
        # strerror() of ENOSPC, EDQUOT and EIO, as every tool prints it (LC_ALL is C).
        (Cause.DISK, r"No space left on device|Disk quota exceeded|Input/output error"),
        # strerror() of ENOMEM; a C++ tool (cicc, ptxas, ld) whose allocation failed; ptxas's own
        # words; its parser's; libiberty's xmalloc in the GNU tools, old and new.
        (Cause.MEMORY, r"Cannot allocate memory|std::bad_alloc|Memory allocation failure"),
        (Cause.MEMORY, r"out of memory|out of dynamic memory|memory (?:may be )?exhausted"),
        # nvcc, gcc and collect2 outlive a subprocess that the kernel kills, and end with an
        # ordinary status.
        (Cause.KILLED, r"(?:died due to|terminated with) signal 9\b|Killed signal terminated"),
        (Cause.CRASH, r"(?:died due to|terminated with) signal|signal terminated program"),
        # gcc, cicc and ptxas about themselves; NVRTC's own failures as our driver prints them.
        (Cause.CRASH, r"internal (?:compiler )?error|nvrtc: fatal"),
    )
)
"""Which accident it was, so that the engine can do the right thing about it. The first match wins:
a compiler that meets a full disk often crashes because of it. What matches nothing here is an
accident as well, unless it is a diagnosis."""
_ANY_ACCIDENT = re.compile("|".join(pattern.pattern for _, pattern in _ACCIDENTS), re.IGNORECASE)

_NO_PROCESS = f"fork: {os.strerror(errno.EAGAIN)}"
"""Of `fork` and `vfork`, as the GNU tools end their line."""
_ERROR_MARKS = ("error:", "error ", "fatal", "Error:")


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
    why = f"{error.filename or tool}: {error.strerror or error}"
    if (shortage := shortage_of(error)) is not None:
        why += f": {shortage.what}"
    return StepError(cause, f"{tool} cannot be started: {why}")


def failure(
    tool: str,
    finished: CompletedCommand,
    log: str,
    program: Program | None,
    explanation: str | None = None,
) -> StepError | None:
    """Return the error of a finished step, or None if its tool reports success.

    `log` is the tool's output. `program` is what the step compiled, None if its failure is never
    the program's fault. `explanation` replaces what the tool says of it as the reason.
    """
    if finished.timed_out:
        after = f"{finished.seconds:.0f} s, which timeout in [build] sets"
        return StepError(Cause.TIME, f"{tool} was stopped after {after}")
    if finished.status == 0:
        return None
    said = read(log, program, _ANY_ACCIDENT)
    accident = _cause_of(said.accidents)
    if number := _signal(finished.status):
        ended = f"{tool} was ended by {_signal_name(number)}"
        # A tool may be killed, or abort, because of what it has just complained about.
        if accident is not None and accident[0] is Cause.DISK:
            return StepError(*accident)
        if accident is not None and accident[0] is Cause.MEMORY:
            return StepError(Cause.MEMORY, ended)
        if number == signal.SIGKILL:
            return StepError(Cause.KILLED, f"{ended}, as when memory runs out")
        return StepError(Cause.CRASH, ended)
    if accident is not None:
        cause, line = accident
        if explanation and cause is Cause.CRASH:
            return StepError(cause, explanation)
        return StepError(cause, _explained(line))
    if said.diagnosis is not None:
        return StepError(Cause.SOURCE, explanation or said.diagnosis)
    reason = _first_error(log) or f"{tool} ended with status {finished.status}"
    return StepError(Cause.CRASH, reason)


def _cause_of(lines: Sequence[str]) -> tuple[Cause, str] | None:
    """Return which accident it was that lines report, and the line that says so."""
    for cause, pattern in _ACCIDENTS:
        for line in lines:
            if pattern.search(line):
                return cause, line
    return (Cause.CRASH, lines[0]) if lines else None


def _explained(line: str) -> str:
    """Return an accident's line, with what a tool means that could start none of its own."""
    return f"{line}: {PROCESSES.what}" if line.endswith(_NO_PROCESS) else line


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
