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
_FORK_FAILURE = f"fork: {os.strerror(errno.EAGAIN)}"
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
    detail = f"{error.filename or tool}: {error.strerror or error}"
    if (shortage := find_shortage(error)) is not None:
        detail += f": {shortage.resource}"
        if cause is Cause.TOOL:
            cause = Cause.CRASH  # the next try may succeed, when other processes have ended
    return StepError(cause, f"{tool} cannot be started: {detail}")


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
        limit = f"{finished.seconds:.0f} s, which timeout in [build] sets"
        return StepError(Cause.TIME, f"{tool} was stopped after {limit}")
    if finished.status == 0:
        return None
    diagnosis, accidents = find_diagnosis(log, program)
    accident = _find_accident(accidents)
    if signal_number := _decode_signal(finished.status):
        reason = f"{tool} was ended by {name_signal(-signal_number)}"
        # A tool may be killed, or abort, because of what it has just complained about.
        if accident is not None and accident.cause is Cause.DISK:
            return StepError(accident.cause, accident.line)
        if accident is not None and accident.cause is Cause.MEMORY:
            return StepError(Cause.MEMORY, reason)
        if signal_number == signal.SIGKILL:
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
    return f"{line}: {PROCESSES.resource}" if line.endswith(_FORK_FAILURE) else line


def _decode_signal(status: int) -> int:
    """Return the signal in an exit status: -N of a runner, 128 + N of a shell; 0 for no signal."""
    if status < 0:
        return -status
    # 255 is not a signal: it is the status of tools that end with exit(-1).
    return status - 128 if 128 < status < 255 else 0


def _find_first_error(log: str) -> str | None:
    """Return the first line with the foremost of `_ERROR_MARKS` that occurs, else the first line;
    None for an empty log."""
    lines = log.splitlines()
    for mark in _ERROR_MARKS:
        for line in lines:
            if mark in line:
                return line.strip()
    return lines[0].strip() if lines else None


# Tools run with LC_ALL=C, so these are their words.
_NO_SUCH_FILE = os.strerror(errno.ENOENT)
_STRERROR = "|".join(re.escape(os.strerror(number)) for number in errno.errorcode)
_SYSTEM_ERROR = re.compile(_STRERROR)
# A message with this end reports a failed system call: `a.h: Permission denied`, `(File exists)`.
# Within a message, "invalid argument" is about the program's arguments.
_SYSTEM_ERROR_AT_END = re.compile(rf"(?:^|\S+: |\S*\()(?:{_STRERROR})\)?\.?$")

# gcc, as, EDG (nvcc, NVRTC): `a.cu:3:2: error: …`, `a.s:3: Error: …`, `a.cu(3): error #20-D: …`
_POSITIONED_MESSAGE = re.compile(
    r"(?P<file>\S.*?)(?:\((?P<line>\d+)\)|:\d+(?::\d+)?): "
    r"(?P<severity>[A-Za-z, ]+?)(?: #[\w-]+)?: ?(?P<text>.*)"
)
_ORDINARY_ERRORS = ("error", "Error", "sorry, unimplemented")
_FATAL, _CATASTROPHIC = "fatal error", "catastrophic error"
_REMARKS = ("warning", "Warning", "note", "remark", "message")

# Errors of the source at no line of it.
_ERROR_WITHOUT_LINE = re.compile(r"(?:At end of source|<command-line>): error: ")

# `ptxas /tmp/a.ptx, line 3; error : …`, `ptxas fatal : Unresolved extern function 'f'`
_ASSEMBLER_ERROR = re.compile(
    r" ?(?:ptxas|nvlink)(?P<position> .*, line \d+;)? +(?P<severity>error|fatal) *: (?P<text>.*)"
)
_QUOTED_SYMBOL = re.compile(r"'[\w$]+'")
# For a message with a line. It quotes nothing at a file's end: the file may have been cut short.
_QUOTED_TEXT = re.compile(r"'[^']+'")

# `source.o: in function `f': source.cu:(.text+0x5): undefined reference to `g'`
_LINKER_ERROR = re.compile(
    r"(?P<referrer>.*)(?:undefined reference to|multiple definition of|relocation R_\w+ against) "
)
_ABSOLUTE_PATH = re.compile(r"(?:^|\s)/")

_MISSING_FILE_MESSAGES = (
    re.compile(rf"(?P<name>.+): {_NO_SUCH_FILE}"),
    re.compile(r'cannot open source file "(?P<name>.+)"'),
)
# After these, an error has the source's words, which may be those of a system error.
_STARTS_OF_SOURCE_TEXT = ("#error ", "static assertion failed")
# The words with which EDG gives up at an `#error`.
_ERROR_DIRECTIVE = "#error directive:"

# `-foo` or `'foo'`, as messages name an argument.
_OPTION_OR_QUOTED_TEXT = re.compile(r"(?<![\w'\"])-[^\s'\",;()]+|'([^']+)'")

_COMPILE_TIMES = re.compile(r"^.*\bCompile time = [0-9.]+ ms.*\n?", re.MULTILINE)
_TEMPORARY_NAME = re.compile(
    r"tmpxft_[0-9a-f]{8}_[0-9a-f]{8}(-\d+)?|\bcc[A-Za-z0-9]{6}(?=\.[a-z]+\b)"
)


def scrub_output(output: bytes, directories: Mapping[str, str]) -> str:
    """Return a tool's output as text that is the same wherever and whenever it was printed.

    `directories` maps absolute directories to their replacements; with "", the paths below become
    relative, and the directory becomes ".". Temporary names with process ids and ptxas's times are
    replaced, too."""
    text = output.decode("utf-8", "replace").replace("\r\n", "\n").replace("\0", "�")
    # The longest first: the private directory may lie below another one of `directories`.
    for directory, name in sorted(directories.items(), key=lambda item: -len(item[0])):
        if name:
            text = text.replace(directory, name)
        else:
            text = text.replace(directory.rstrip("/") + "/", "").replace(directory, ".")
    text = _COMPILE_TIMES.sub("", text)
    return _TEMPORARY_NAME.sub("tmp", text)


class ProgramInputs(Struct, frozen=True):
    """The inputs of a step that decide whether a tool's error is the program's fault."""

    flags: tuple[str, ...]
    """The arguments of the command that come from the manifest."""
    generated_files: frozenset[str]
    """The files beside the source that tilusbuild writes: an error in one is never the
    program's."""
    list_headers: Callable[[], frozenset[str] | None]
    """Returns the names of the program's own headers, relative to `include`; None for unknown."""
    roots: tuple[str, ...]
    """The directories of `include` that a compiler searches for headers."""


_KEPT = 1000  # characters of a line, at its start and at its end


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
        message_match = _POSITIONED_MESSAGE.fullmatch(line)
        if message_match is None:
            is_remark = "warning" in line
        else:
            is_remark = message_match["severity"] in _REMARKS
        if line and not line[:2].isspace() and not is_remark:
            yield line


def _shorten_line(line: str) -> str:
    """Return the first and the last `_KEPT` characters of a long line. The patterns take quadratic
    time, a source can make a line of any length, and the ends decide."""
    return line if len(line) <= 2 * _KEPT else f"{line[:_KEPT]} … {line[-_KEPT:]}"


def _is_diagnosis(line: str, program: ProgramInputs) -> bool:
    """Return whether a line blames the program. These do, if they report no failed system call:

    - an error at a line of a file that tilusbuild did not generate; of a fatal error,
      `_is_caused_by_program` decides;
    - an error of ptxas or nvlink; if it is fatal or names no line, it must quote text or a symbol;
    - an undefined or doubly defined symbol, unless a library of the system refers to it;
    - an error of the source at no line, or one that names a flag of the manifest.
    """
    if error_match := _POSITIONED_MESSAGE.fullmatch(line):
        message = error_match["text"]
        if error_match["file"] in program.generated_files:
            return False
        # These are the words of as, which the compiler gives files that have been read already.
        if message.startswith("file not found"):
            return False
        if error_match["severity"] in _ORDINARY_ERRORS:
            is_source_text = message.startswith(_STARTS_OF_SOURCE_TEXT)
            return is_source_text or _SYSTEM_ERROR_AT_END.search(message) is None
        return _is_caused_by_program(error_match, program)
    if _ANY_ACCIDENT.search(line):
        return False
    if assembler_match := _ASSEMBLER_ERROR.fullmatch(line):
        quotation = _QUOTED_TEXT if assembler_match["position"] else _QUOTED_SYMBOL
        has_quotation = quotation.search(assembler_match["text"]) is not None
        is_believed = assembler_match["severity"] == "error" or has_quotation
        if is_believed and not _SYSTEM_ERROR_AT_END.search(line):
            return True
    if _SYSTEM_ERROR.search(line):
        return False
    if linker_match := _LINKER_ERROR.match(line):
        # A reference from an absolute path is a system library's own, and not the program's.
        return _ABSOLUTE_PATH.search(linker_match["referrer"]) is None
    return _ERROR_WITHOUT_LINE.match(line) is not None or _is_about_flag(line, program.flags)


def _is_caused_by_program(error_match: re.Match[str], program: ProgramInputs) -> bool:
    """Return whether the program caused a fatal error of a front end.

    - A header that cannot be opened: if the program has no such header.
    - EDG's "catastrophic error": only an `#error` of the source.
    - gcc's "fatal error": unless it reports a failed system call or an accident.
    """
    severity, message = error_match["severity"], error_match["text"]
    if severity not in (_FATAL, _CATASTROPHIC):
        return False
    for pattern in _MISSING_FILE_MESSAGES:
        if missing_match := pattern.fullmatch(message):
            # A header that the program has is in its directory: the machine failed to open it.
            return not _has_header(program, error_match["file"], missing_match["name"])
    # EDG also calls its own lack of memory or disk catastrophic, at a line of the source.
    if severity == _CATASTROPHIC:
        return message.startswith(_ERROR_DIRECTIVE)
    # gcc ends a message with strerror() if the machine is to blame.
    return not (_SYSTEM_ERROR_AT_END.search(message) or _ANY_ACCIDENT.search(message))


def _has_header(program: ProgramInputs, includer: str, name: str) -> bool:
    """Return whether the program has the header that the file `includer` includes as `name`; True
    if the program's headers are unknown."""
    # "include/inc/a.h" is searched for headers beside it, in "inc".
    includer_directory = posixpath.dirname(includer).removeprefix("include").lstrip("/")
    directories = (*program.roots, includer_directory)
    names = {posixpath.normpath(posixpath.join(directory, name)) for directory in directories}
    headers = program.list_headers()
    return headers is None or not names.isdisjoint(headers)


def _is_about_flag(line: str, flags: tuple[str, ...]) -> bool:
    """Return whether an error names a flag of the manifest, or quotes a flag's value."""
    # "-Xptxas=-zzz" is known as a whole, as "-Xptxas" and as "-zzz".
    parts = {part for flag in flags for part in (flag, *re.split("[=,]", flag))}
    values = {part.lstrip("-") for part in parts} - {""}
    for match in _OPTION_OR_QUOTED_TEXT.finditer(line):
        quoted_text = match[1]
        if quoted_text is None:
            is_known = match[0] in parts
        else:
            # ptxas quotes 'zzz' for the flag -Xptxas=-zzz; nvcc quotes '-foo', or a value 'foo'.
            is_known = quoted_text.rstrip("=").lstrip("-") in values
        if is_known:
            return True
    return False


def _is_machine_fault(line: str) -> bool:
    """Return whether a line reports an accident: a fatal error, or words of `_ACCIDENTS` or
    strerror()."""
    error_match = _POSITIONED_MESSAGE.fullmatch(line)
    # `find_diagnosis` asks only for lines that do not blame the program: a fatal error among them
    # is an accident, in whatever words.
    return (
        (error_match is not None and error_match["severity"] in (_FATAL, _CATASTROPHIC))
        or _SYSTEM_ERROR.search(line) is not None
        or _ANY_ACCIDENT.search(line) is not None
    )
