"""The cause of a failed step: the one place that separates a program's faults from the machine's.

Facts come first: the time limit, the signal, the error number. When a tool ran to its end and
failed, it is the program's fault only if its output holds a diagnosis of the program and no report
of an accident; anything else is an accident, which is tried again and never recorded. Decisions
rest on the `Cause`; the reason is for people.

Only a diagnosis makes a failure one that is recorded, so a line has to say something positive of
the program: an error at a place in a source, an undefined symbol, a limit that the kernel exceeds,
a flag that the tool does not know. Whatever else tools print is not evidence, however it is worded.
A line that reports a failed system call (`strerror` of any errno) never is, wherever it points; and
what gives up (gcc's "fatal error", the EDG front ends' "catastrophic error") is believed only when
its claim holds: front ends point at a place in the source when they run out of memory, too.

The price of believing only a diagnosis: a failure in words that are not known here is tried again
at each build and never recorded (docs/design-notes.md).
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from tilusbuild.errors import PROCESSES, find_shortage
from tilusbuild.process.base import CompletedCommand
from tilusbuild.process.local import name_signal
from tilusbuild.status import Cause

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

# Which accident it was, so that the engine can do the right thing about it. The first match wins:
# a compiler that meets a full disk often crashes because of it. What matches nothing here is an
# accident as well, unless it is a diagnosis.
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
_ANY_ACCIDENT = re.compile("|".join(pattern.pattern for _, pattern in _ACCIDENTS), re.IGNORECASE)

# Of `fork` and `vfork`, as the GNU tools end their line.
_NO_PROCESS = f"fork: {os.strerror(errno.EAGAIN)}"
_ERROR_MARKS = ("error:", "error ", "fatal", "Error:")


class StepError(Exception):
    """A step, or a check of its output, ended the compile. `reason` is one line for people."""

    def __init__(self, cause: Cause, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause
        self.reason = reason


def make_start_error(tool: str, error: OSError) -> StepError:
    """Return the error for a tool whose process could not be started. The cause is `TOOL` unless
    the machine is short of something."""
    cause = Cause.TOOL
    if error.errno in _DISK_ERRORS:
        cause = Cause.DISK
    elif error.errno == errno.ENOMEM:
        cause = Cause.MEMORY
    why = f"{error.filename or tool}: {error.strerror or error}"
    if (shortage := find_shortage(error)) is not None:
        why += f": {shortage.resource}"
        cause = Cause.CRASH if cause is Cause.TOOL else cause  # it may start when others have ended
    return StepError(cause, f"{tool} cannot be started: {why}")


def find_step_error(
    tool: str,
    finished: CompletedCommand,
    log: str,
    program: ProgramInputs | None,
    explanation: str | None = None,
) -> StepError | None:
    """Return the error of a finished step, or None if its tool reports success.

    `log` is the tool's output. `program` describes what the step compiled; None if a failure is
    never the program's fault. `explanation` replaces the tool's own line as the reason.
    """
    if finished.timed_out:
        after = f"{finished.seconds:.0f} s, which timeout in [build] sets"
        return StepError(Cause.TIME, f"{tool} was stopped after {after}")
    if finished.status == 0:
        return None
    diagnosis, accidents = find_diagnosis(log, program)
    accident = _find_accident(accidents)
    if number := _decode_signal(finished.status):
        reason = f"{tool} was ended by {name_signal(-number)}"
        # A tool may be killed, or abort, because of what it has just complained about.
        if accident is not None and accident.cause is Cause.DISK:
            return StepError(accident.cause, accident.line)
        if accident is not None and accident.cause is Cause.MEMORY:
            return StepError(Cause.MEMORY, reason)
        if number == signal.SIGKILL:
            return StepError(Cause.KILLED, f"{reason}, as when memory runs out")
        return StepError(Cause.CRASH, reason)
    # A diagnosis beside an accident proves nothing: the accident may have caused it.
    if accident is not None:
        if explanation and accident.cause is Cause.CRASH:
            return StepError(accident.cause, explanation)
        return StepError(accident.cause, _explain_accident(accident.line))
    if diagnosis is not None:
        return StepError(Cause.SOURCE, explanation or diagnosis)
    reason = _find_first_error(log) or f"{tool} ended with status {finished.status}"
    return StepError(Cause.CRASH, reason)


class _Accident(NamedTuple):
    """A fault of the machine, and the line of a log that reports it."""

    cause: Cause
    line: str


def _find_accident(lines: Sequence[str]) -> _Accident | None:
    """Return the first accident of `_ACCIDENTS` that a line reports. Lines that match none are a
    crash; None without lines."""
    for cause, pattern in _ACCIDENTS:
        for line in lines:
            if pattern.search(line):
                return _Accident(cause, line)
    return _Accident(Cause.CRASH, lines[0]) if lines else None


def _explain_accident(line: str) -> str:
    """Return an accident's line; for a failed fork with the shortage that causes it."""
    return f"{line}: {PROCESSES.resource}" if line.endswith(_NO_PROCESS) else line


def _decode_signal(status: int) -> int:
    """Return the signal in an exit status: -N of a runner, 128 + N of a shell; 0 for no signal."""
    if status < 0:
        return -status
    # 255 is not a signal: it is the status of tools that end with exit(-1).
    return status - 128 if 128 < status < 255 else 0


def _find_first_error(log: str) -> str | None:
    """Return the first line with one of `_ERROR_MARKS`, else the first line; None for an empty
    log."""
    lines = log.splitlines()
    marked = (line for mark in _ERROR_MARKS for line in lines if mark in line)
    first = next(marked, lines[0] if lines else None)
    return None if first is None else first.strip()


# Tools run with LC_ALL=C, so these are their words.
_ABSENT = os.strerror(errno.ENOENT)
_STRERROR = "|".join(re.escape(os.strerror(number)) for number in errno.errorcode)
_SYSTEM_ERROR = re.compile(_STRERROR)
# As tools add it to a message, with the last word before it. "invalid argument" within a message
# is about the program's arguments.
_AND_SYSTEM_ERROR = re.compile(rf"(?:^|\S+: |\S*\()(?:{_STRERROR})\)?\.?$")

# gcc, as, EDG (nvcc, NVRTC): `a.cu:3:2: error: …`, `a.s:3: Error: …`, `a.cu(3): error #20-D: …`
_LOCATED = re.compile(
    r"(?P<file>\S.*?)(?:\((?P<line>\d+)\)|:\d+(?::\d+)?): "
    r"(?P<how>[A-Za-z, ]+?)(?: #[\w-]+)?: ?(?P<text>.*)"
)
_ERRORS = ("error", "Error", "sorry, unimplemented")
_GIVEN_UP, _CATASTROPHE = "fatal error", "catastrophic error"
_REMARKS = ("warning", "Warning", "note", "remark", "message")

# A place that has no line.
_ELSEWHERE = re.compile(r"(?:At end of source|<command-line>): error: ")

_ASSEMBLER = re.compile(
    r" ?(?:ptxas|nvlink)(?P<place> .*, line \d+;)? +(?P<how>error|fatal) *: (?P<text>.*)"
)
_QUOTED_SYMBOL = re.compile(r"'[\w$]+'")
# Of a place only. Nothing quoted is where a file ends: it may have been cut short.
_QUOTED = re.compile(r"'[^']+'")

_UNLINKED = re.compile(
    r"(?P<where>.*)(?:undefined reference to|multiple definition of|relocation R_\w+ against) "
)
_ABSOLUTE = re.compile(r"(?:^|\s)/")

_MISSING = (
    re.compile(rf"(?P<name>.+): {_ABSENT}"),
    re.compile(r'cannot open source file "(?P<name>.+)"'),
)
# After these, an error has the source's words, which may be those of a system error.
_OWN_WORDS = ("#error ", "static assertion failed")
# The words with which EDG gives up at an `#error`.
_DIRECTIVE = "#error directive:"

_TOKEN = re.compile(r"(?<![\w'\"])-[^\s'\",;()]+|'([^']+)'")

_TIMES = re.compile(r"^.*\bCompile time = [0-9.]+ ms.*\n?", re.MULTILINE)
_TEMPORARY = re.compile(r"tmpxft_[0-9a-f]{8}_[0-9a-f]{8}(-\d+)?|\bcc[A-Za-z0-9]{6}(?=\.[a-z]+\b)")


def scrub_output(output: bytes, directories: Mapping[str, str]) -> str:
    """Return a tool's output as text that is the same wherever and whenever it was printed.

    `directories` maps absolute directories to their replacements; "" drops one. Temporary names
    with process ids in them and ptxas's times are replaced too."""
    text = output.decode("utf-8", "replace").replace("\r\n", "\n").replace("\0", "�")
    # The longest first: the private directory may lie below another one of these.
    for directory, name in sorted(directories.items(), key=lambda item: -len(item[0])):
        if name:
            text = text.replace(directory, name)
        else:
            text = text.replace(directory.rstrip("/") + "/", "").replace(directory, ".")
    text = _TIMES.sub("", text)
    return _TEMPORARY.sub("tmp", text)


class ProgramInputs(Struct, frozen=True):
    """The inputs of a step, by which the cause of a tool's error is decided."""

    flags: tuple[str, ...]
    """The arguments of the command that come from the manifest."""
    generated_files: frozenset[str]
    """The files beside the source that tilusbuild writes: an error in one is never the
    program's."""
    headers: Callable[[], frozenset[str] | None]
    """Returns the names of the program's own headers, relative to `include`; None for unknown."""
    roots: tuple[str, ...]
    """The directories of `include` that are searched."""


_END = 1000  # characters


def find_diagnosis(log: str, program: ProgramInputs | None) -> tuple[str | None, list[str]]:
    """Return (diagnosis, accidents): the first line that blames the program (None if no line does),
    and all lines that report an accident. With `program` None, no line blames the program."""
    diagnosis: str | None = None
    accidents: list[str] = []
    for line in _split_messages(log):
        if program is not None and _is_diagnosis(line, program):
            diagnosis = diagnosis or line.strip()
        elif _is_machine_fault(line):
            accidents.append(line.strip())
    return diagnosis, accidents


def _split_messages(log: str) -> Iterator[str]:
    """Yield the lines of a log that can report an error. Indented lines quote the source, and
    warnings and notes may repeat its words: both are left out."""
    for line in map(_shorten_line, log.splitlines()):
        located = _LOCATED.fullmatch(line)
        remark = "warning" in line if located is None else located["how"] in _REMARKS
        if line and not line[:2].isspace() and not remark:
            yield line


def _shorten_line(line: str) -> str:
    """Return the first and the last `_END` characters of a long line. The patterns take quadratic
    time, a source can make a line of any length, and the ends decide."""
    return line if len(line) <= 2 * _END else f"{line[:_END]} … {line[-_END:]}"


def _is_diagnosis(line: str, program: ProgramInputs) -> bool:
    """Return whether a line blames the program. `program` says which files and flags are its
    own."""
    if located := _LOCATED.fullmatch(line):
        if located["file"] in program.generated_files:
            return False
        if located["text"].startswith("file not found"):
            return False  # as, which is given none of the project's files but those that were seen
        if located["how"] in _ERRORS:
            own_words = located["text"].startswith(_OWN_WORDS)
            return own_words or _AND_SYSTEM_ERROR.search(located["text"]) is None
        return _is_caused_by_program(located, program)
    if _ANY_ACCIDENT.search(line):
        return False
    if assembler := _ASSEMBLER.fullmatch(line):
        quoted = _QUOTED if assembler["place"] else _QUOTED_SYMBOL
        believed = assembler["how"] == "error" or quoted.search(assembler["text"])
        if believed and not _AND_SYSTEM_ERROR.search(line):
            return True
    if _SYSTEM_ERROR.search(line):
        return False
    if unlinked := _UNLINKED.match(line):
        # A library of the system whose own references lead nowhere is not the program.
        return _ABSOLUTE.search(unlinked["where"]) is None
    return _ELSEWHERE.match(line) is not None or _is_about_flag(line, program.flags)


def _is_caused_by_program(located: re.Match[str], program: ProgramInputs) -> bool:
    """Return whether the program caused a fatal error of a front end."""
    how, text = located["how"], located["text"]
    if how not in (_GIVEN_UP, _CATASTROPHE):
        return False
    for missing in _MISSING:
        if match := missing.fullmatch(text):
            return not _has_header(program, located["file"], match["name"])
    if how == _CATASTROPHE:
        return text.startswith(_DIRECTIVE)
    # gcc adds strerror() to what is not the source's fault, and exceeds limits of its own without.
    return _AND_SYSTEM_ERROR.search(text) is None and _ANY_ACCIDENT.search(text) is None


def _has_header(program: ProgramInputs, includer: str, name: str) -> bool:
    """Return whether the program has the header that the file `includer` includes as `name`; True
    if the program's headers are unknown."""
    beside = posixpath.dirname(includer).removeprefix("include").lstrip("/")
    directories = (*program.roots, beside)
    names = {posixpath.normpath(posixpath.join(directory, name)) for directory in directories}
    headers = program.headers()
    return headers is None or not names.isdisjoint(headers)


def _is_about_flag(line: str, flags: tuple[str, ...]) -> bool:
    """Return whether an error names a flag of the manifest, or quotes a flag's value."""
    parts = {part for flag in flags for part in (flag, *re.split("[=,]", flag))}
    values = {part.lstrip("-") for part in parts} - {""}
    # ptxas says 'zzz' where the flag is -Xptxas=-zzz; nvcc says '-foo', or 'foo' for a value.
    return any(
        token[0] in parts if token[1] is None else token[1].rstrip("=").lstrip("-") in values
        for token in _TOKEN.finditer(line)
    )


def _is_machine_fault(line: str) -> bool:
    """Return whether a line reports an accident: a fatal error, or words of `_ACCIDENTS` or
    strerror()."""
    located = _LOCATED.fullmatch(line)
    # A fatal error that is not a diagnosis of the program is one, in whatever words.
    return (
        (located is not None and located["how"] in (_GIVEN_UP, _CATASTROPHE))
        or _SYSTEM_ERROR.search(line) is not None
        or _ANY_ACCIDENT.search(line) is not None
    )
