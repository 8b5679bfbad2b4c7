"""Errors as values: a diagnostic has a place, a message and a hint.

Every error that a user can cause is a `TilusbuildError`; its `exit_status` is the process's. An
`InputError` carries all the diagnostics of one run, so that a user need not mend a manifest one
error at a time. Anything else that escapes is for `cli/boundary.py`. What a machine is short of is
said in words of our own: `strerror` of EAGAIN is the same for a limit on processes and for a lock,
and that of ENOSPC for a full disk and for one that has room and no inodes.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import NamedTuple

from tilusbuild.runtime.errors import did_you_mean as did_you_mean
from tilusbuild.runtime.errors import find_nearest_word as find_nearest_word

# Of a line with more characters, so many around the column are shown.
_MAX_SHOWN = 240


class Location(NamedTuple):
    """A position in a text file. `line` and `column` count from 1; `text` is the line itself."""

    path: str
    line: int | None = None
    column: int | None = None
    text: str | None = None
    width: int = 1

    def __str__(self) -> str:
        # A name may have a line break, and the place is the head of one line.
        numbers = [str(n) for n in (self.line, self.column) if n is not None]
        return ":".join([self.path.replace("\n", "\\n"), *numbers])


class Diagnostic(NamedTuple):
    """One mistake: the message, its place in a file, and a hint."""

    message: str
    location: Location | None = None
    hint: str | None = None
    severity: str = "error"
    undetermined: bool = False
    """Whether it is about a header whose name is not known before the compile. A compile that
    misses a header then proves nothing of the program: the header may have another name."""

    def render(self) -> str:
        """Return the diagnostic as text of several lines, without a final newline."""
        # A message may quote several lines of a file: only its first stands at the margin.
        message = "\n  ".join(map(_shorten_line, self.message.split("\n")))
        head = f"{self.severity}: {message}"
        lines = [f"{self.location}: {head}" if self.location else head]
        if self.location and self.location.text is not None and self.location.line is not None:
            prefix, excerpt = _crop_line(self.location.text, self.location.column or 1)
            gutter = f"{self.location.line:>5} | "
            lines.append(gutter + excerpt.expandtabs(4))
            if self.location.column is not None:
                # The mark "^^^" stands below the column: tabs before it are as wide as in the line.
                blank = " " * (len(gutter) - 2) + "| " + " " * len(prefix.expandtabs(4))
                mark_width = max(1, min(self.location.width, len(excerpt) - len(prefix)))
                lines.append(blank + "^" * mark_width)
        if self.hint:
            lines.extend(f"  {_shorten_line(line)}" for line in self.hint.splitlines())
        return "\n".join(lines)


def _shorten_line(line: str) -> str:
    """Return a line; of one with more than 720 characters the first and the last 240."""
    return line if len(line) <= 3 * _MAX_SHOWN else f"{line[:_MAX_SHOWN]} … {line[-_MAX_SHOWN:]}"


def _crop_line(line: str, column: int) -> tuple[str, str]:
    """Return `(prefix, excerpt)`: at most 240 characters of a line around a column, and the part of
    them before the column."""
    # A generated line may have a million characters: only those around the column are shown.
    if len(line) <= _MAX_SHOWN:
        return line[: column - 1], line
    start = max(0, column - 1 - _MAX_SHOWN // 2)
    end = start + _MAX_SHOWN
    left_mark = "…" if start else ""
    right_mark = "…" if end < len(line) else ""
    return left_mark + line[start : column - 1], left_mark + line[start:end] + right_mark


class TilusbuildError(Exception):
    """An error to show to the user without a traceback."""

    exit_status = 1

    def render(self) -> str:
        """Return the text for stderr, without a final newline."""
        return f"error: {self}"


class InputError(TilusbuildError):
    """The command line, the manifest, a template or the environment is wrong (exit status 2).

    `diagnostics` has every mistake. `message`, `path`, `line`, `column`, `text` (the line itself)
    and `hint` are those of the first, or None. `str` gives the text that the command line prints.
    `looked_for` has the paths of the files that a manifest names, where it could not be loaded.
    """

    exit_status = 2

    def __init__(self, *diagnostics: Diagnostic, looked_for: Iterable[str] = ()) -> None:
        super().__init__(*diagnostics)
        self.diagnostics = diagnostics
        self.looked_for = frozenset(looked_for)
        first = diagnostics[0] if diagnostics else Diagnostic("")
        location = first.location or Location("")
        self.message, self.hint = first.message, first.hint
        self.path: str | None = location.path or None
        self.line, self.column, self.text = location.line, location.column, location.text

    def render(self) -> str:
        return "\n".join(d.render() for d in self.diagnostics)

    def __str__(self) -> str:
        return self.render()


def input_error(
    message: str, *, location: Location | None = None, hint: str | None = None
) -> InputError:
    """Return an `InputError` of one diagnostic."""
    return InputError(Diagnostic(message, location, hint))


class Shortage(NamedTuple):
    """A resource that ran out, and the remedy."""

    resource: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.resource}: {self.remedy}" if self.remedy else self.resource


PROCESSES = Shortage(
    "no more processes and threads are allowed (`ulimit -u`; `pids.max` of a container)",
    "raise the limit, or use fewer jobs",
)
_SHORTAGES = {
    errno.EAGAIN: PROCESSES,
    errno.EMFILE: Shortage(
        "too many files are open", "raise the limit (`ulimit -n`), or use fewer jobs"
    ),
    errno.ENFILE: Shortage("too many files are open on this machine"),
    # Which of the two is not known later: what was begun is removed before anything is said.
    errno.ENOSPC: Shortage("the disk is full, or has no inodes left (`df -i`)"),
    errno.EDQUOT: Shortage("the quota of the disk is used up"),
    errno.EFBIG: Shortage("the file is too large", "raise the limit (`ulimit -f`)"),
}


def find_shortage(error: OSError) -> Shortage | None:
    """Return the resource whose lack made a system call fail; None for any other error."""
    return _SHORTAGES.get(error.errno or 0)
