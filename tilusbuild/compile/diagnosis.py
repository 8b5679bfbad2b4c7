"""What in a tool's output is a diagnosis of the program, and what says that the machine failed.

Only a diagnosis makes a failure one that is recorded, so a line has to say something positive of
the program: an error at a place in a source, an undefined symbol, a limit that the kernel exceeds,
a flag that the tool does not know. Whatever else tools print is not evidence, however it is worded.
A line that reports a failed system call (`strerror` of any errno) never is, wherever it points; and
what gives up (gcc's "fatal error", the EDG front ends' "catastrophic error") is believed only when
its claim holds: front ends point at a place in the source when they run out of memory, too.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

_ABSENT = os.strerror(errno.ENOENT)
_STRERROR = "|".join(re.escape(os.strerror(number)) for number in errno.errorcode)
_SYSTEM_ERROR = re.compile(_STRERROR)
_AND_SYSTEM_ERROR = re.compile(rf"(?:^|\S+: |\S*\()(?:{_STRERROR})\)?\.?$")
"""As tools add it to a message, with the last word before it. "invalid argument" within a message
is about the program's arguments."""

_LOCATED = re.compile(
    r"(?P<file>\S.*?)(?:\((?P<line>\d+)\)|:\d+(?::\d+)?): "
    r"(?P<how>[A-Za-z, ]+?)(?: #[\w-]+)?: ?(?P<text>.*)"
)
"""gcc, as, EDG (nvcc, NVRTC): `a.cu:3:2: error: …`, `a.s:3: Error: …`, `a.cu(3): error #20-D: …`"""
_ERRORS = ("error", "Error", "sorry, unimplemented")
_GIVEN_UP, _CATASTROPHE = "fatal error", "catastrophic error"
_REMARKS = ("warning", "Warning", "note", "remark", "message")

_ELSEWHERE = re.compile(r"(?:At end of source|<command-line>): error: ")
"""A place that has no line."""

_ASSEMBLER = re.compile(
    r" ?(?:ptxas|nvlink)(?P<place> .*, line \d+;)? +(?P<how>error|fatal) *: (?P<text>.*)"
)
_QUOTED_SYMBOL = re.compile(r"'[\w$]+'")
_QUOTED = re.compile(r"'[^']+'")
"""Of a place only. Nothing quoted is where a file ends: it may have been cut short."""

_UNLINKED = re.compile(
    r"(?P<where>.*)(?:undefined reference to|multiple definition of|relocation R_\w+ against) "
)
_ABSOLUTE = re.compile(r"(?:^|\s)/")

_MISSING = (
    re.compile(rf"(?P<name>.+): {_ABSENT}"),
    re.compile(r'cannot open source file "(?P<name>.+)"'),
)
_DIRECTIVE = "#error directive:"
"""The words with which EDG gives up at an `#error`."""

_TOKEN = re.compile(r"(?<![\w'\"])-[^\s'\",;()]+|'([^']+)'")

_TIMES = re.compile(r"^.*\bCompile time = [0-9.]+ ms.*\n?", re.MULTILINE)
_TEMPORARY = re.compile(r"tmpxft_[0-9a-f]{8}_[0-9a-f]{8}(-\d+)?|\bcc[A-Za-z0-9]{6}(?=\.[a-z]+\b)")


def scrub(output: bytes, directories: Mapping[str, str]) -> str:
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


class Program(Struct, frozen=True):
    """What a step was given, to hold a tool's claims against."""

    flags: tuple[str, ...]
    """The words of the command that the manifest wrote."""
    ours: frozenset[str]
    """Names of the files beside the source that we wrote: no error in one is the program's."""
    headers: Callable[[], frozenset[str] | None]
    """Returns the names of the program's own headers, relative to `include`; None for unknown."""
    roots: tuple[str, ...]
    """The directories of `include` that are searched."""
    text: Callable[[str], str]
    """Returns the content of a file of the program's own, "" for any other."""


class Reading(Struct, frozen=True):
    """What a tool's output says."""

    diagnosis: str | None
    """The first line that is one."""
    accidents: tuple[str, ...]
    """The lines that report one."""


_END = 1000


def read(log: str, program: Program | None, accident: re.Pattern[str]) -> Reading:
    """Read a tool's output. `program` is None when whatever fails is not the program's fault;
    `accident` matches further wordings of a failed machine or tool."""
    diagnosis: str | None = None
    accidents: list[str] = []
    for line in _messages(log):
        if program is not None and _diagnoses(line, program, accident):
            diagnosis = diagnosis or line.strip()
        elif _reports_accident(line, accident):
            accidents.append(line.strip())
    return Reading(diagnosis, tuple(accidents))


def _messages(log: str) -> Iterator[str]:
    """Yield the lines that a tool says itself and that may be about an error: what it quotes of a
    source is indented, and warnings and notes may repeat a source's own words."""
    for line in map(_shortened, log.splitlines()):
        located = _LOCATED.fullmatch(line)
        remark = "warning" in line if located is None else located["how"] in _REMARKS
        if line and not line[:2].isspace() and not remark:
            yield line


def _shortened(line: str) -> str:
    """Return both ends of a long line: what decides stands there, and the patterns take time with
    the square of a line's length, which a source may make as long as it likes."""
    return line if len(line) <= 2 * _END else f"{line[:_END]} … {line[-_END:]}"


def _diagnoses(line: str, program: Program, accident: re.Pattern[str]) -> bool:
    if located := _LOCATED.fullmatch(line):
        if located["file"] in program.ours:
            return False
        if located["how"] in _ERRORS:
            failed = _AND_SYSTEM_ERROR.search(located["text"])
            # A source may say such a thing itself, in an #error or a static_assert.
            return failed is None or failed[0] in program.text(located["file"])
        return _claim_holds(located, program, accident)
    if accident.search(line):
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
    return _ELSEWHERE.match(line) is not None or _names_a_flag(line, program.flags)


def _claim_holds(located: re.Match[str], program: Program, accident: re.Pattern[str]) -> bool:
    """Return whether a front end that gave up did so because of the program."""
    how, text = located["how"], located["text"]
    if how not in (_GIVEN_UP, _CATASTROPHE):
        return False
    for missing in _MISSING:
        if found := missing.fullmatch(text):
            return not _has_header(program, located["file"], found["name"])
    if how == _CATASTROPHE:
        return text.startswith(_DIRECTIVE)
    # gcc adds strerror() to what is not the source's fault, and exceeds limits of its own without.
    return _AND_SYSTEM_ERROR.search(text) is None and accident.search(text) is None


def _has_header(program: Program, includer: str, name: str) -> bool:
    beside = posixpath.dirname(includer).removeprefix("include").lstrip("/")
    directories = (*program.roots, beside)
    names = {posixpath.normpath(posixpath.join(each, name)) for each in directories}
    headers = program.headers()
    return headers is None or not names.isdisjoint(headers)


def _names_a_flag(line: str, flags: tuple[str, ...]) -> bool:
    """Return whether an error names a word of the manifest: a flag, or the value of one in
    quotes."""
    words = {part for flag in flags for part in (flag, *re.split("[=,]", flag))}
    bare = {word.lstrip("-") for word in words} - {""}
    for token in _TOKEN.finditer(line):
        if token[1] is None and token[0] in words:
            return True
        if token[1] is not None and token[1].rstrip("=").lstrip("-") in bare:
            return True
    return False


def _reports_accident(line: str, accident: re.Pattern[str]) -> bool:
    located = _LOCATED.fullmatch(line)
    return (
        (located is not None and located["how"] in (_GIVEN_UP, _CATASTROPHE))
        or _SYSTEM_ERROR.search(line) is not None
        or accident.search(line) is not None
    )
