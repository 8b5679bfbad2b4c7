"""Colours, and the stream that the command line prints through, which shows every character and
gives no commands to CI.

`--color` decides on colours, then `NO_COLOR`, then `FORCE_COLOR`, then whether the stream is a
terminal that knows colours. Only our own marks are coloured, not the text that a message quotes.

`cli/main.py` replaces stdout and stderr, so a verb that prints a name, a path or a log cannot
forget it. Escapes of our own go through `write_styled`. In a GitHub workflow a line that begins
with `::error` is a command to the runner, and so is `##[error]` within one: such a line gets a
backslash, and annotations of our own go through `write_command`. There a line is written when it is
complete. A character that the encoding cannot express is escaped.
"""

from __future__ import annotations

import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import TextIOBase
from typing import Any, TextIO, cast

from tilusbuild.report.text import find_descriptor, spell_out_controls

_MARKS = (
    (re.compile(r"^((?:\S.*?: )?)(error:)(?= )", re.MULTILINE), r"\1", "1;31"),
    (re.compile(r"^((?:\S.*?: )?)(warning:)(?= )", re.MULTILINE), r"\1", "1;33"),
    (re.compile(r"^( *\| *)(\^+)$", re.MULTILINE), r"\1", "32"),
)


def wants_colour(stream: TextIO, env: Mapping[str, str], choice: str = "auto") -> bool:
    """Return whether to colour what goes to a stream. `choice` is "always", "never" or "auto": then
    `NO_COLOR`, `FORCE_COLOR` and the terminal decide."""
    if choice != "auto":
        return choice == "always"
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return _is_capable_terminal(stream, env)


def can_redraw(stream: TextIO, env: Mapping[str, str]) -> bool:
    """Return whether a stream is a terminal that understands cursor movement, outside of CI."""
    # A CI system may give its jobs a terminal, and keeps all that is written to it.
    return env.get("CI", "").lower() not in ("true", "1") and _is_capable_terminal(stream, env)


def _is_capable_terminal(stream: TextIO, env: Mapping[str, str]) -> bool:
    try:
        return stream.isatty() and env.get("TERM", "") not in ("", "dumb", "unknown")
    except ValueError:  # a closed stream
        return False


def colour_marks(message: str) -> str:
    """Return a message with its marks in colour."""
    for pattern, before, code in _MARKS:
        message = pattern.sub(f"{before}\x1b[{code}m\\2\x1b[0m", message)
    return message


# The stream.


# The runner strips white space in front, and finds the older form anywhere in a line.
_COMMAND = re.compile(r"(?m)(^[^\S\n]*:)(?=:)|(##)(?=\[)")


class TerminalStream(TextIOBase):
    """A text stream whose `write` shows every character, and gives no commands."""

    before_write: Callable[[], None] | None = None
    """Called before something is written: `show_working` removes its line."""

    def __init__(self, stream: TextIO, *, github: bool = False) -> None:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        self._stream = stream
        self._github = github
        # In a workflow, the line that has begun. It is kept until it is complete: only then does it
        # show whether it is a command.
        self._line = ""

    def write(self, text: str, /) -> int:
        self.write_styled(spell_out_controls(text))
        return len(text)

    def write_styled(self, text: str) -> int:
        """Write a text that may hold escapes of our own. In a workflow, only complete lines are
        written, and those that would be commands get a backslash."""
        if not self._github:
            return self._write_below(text)
        lines, newline, self._line = (self._line + text).rpartition("\n")
        return self._write_below(_COMMAND.sub(r"\1\2\\", lines) + newline)

    def write_command(self, text: str) -> int:
        """Write a text as it is, after the line that has begun."""
        line, self._line = self._line, ""
        return self._write_below(_COMMAND.sub(r"\1\2\\", line) + text)

    def _write_below(self, text: str) -> int:
        if self.before_write is not None:
            self.before_write()
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding or "utf-8"

    @property
    def buffer(self) -> Any:
        """The stream of bytes below, for output that no person reads."""
        return getattr(self._stream, "buffer", None)

    def close(self) -> None:
        """Write the line that has begun. The stream below stays open: it belongs to the process."""
        if self._line:
            self.write_command("")


@contextmanager
def use_terminal_streams(environment: Mapping[str, str]) -> Iterator[None]:
    """Replace `sys.stdout` and `sys.stderr` by a `TerminalStream` each within the block. At its end
    the rest is written, and the former streams are restored. The descriptors of both are set to
    blocking, and stay so."""
    originals = sys.stdout, sys.stderr
    github = environment.get("GITHUB_ACTIONS") == "true"
    for stream in originals:
        # The parent may share a pipe with us and have made it non-blocking, as Node.js does. Python
        # drops what does not fit into such a pipe when it is full, in the middle of a line.
        if (number := find_descriptor(stream)) is not None:
            os.set_blocking(number, True)
    streams = [TerminalStream(stream, github=github) for stream in originals]
    sys.stdout, sys.stderr = (cast("TextIO", stream) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = originals
        for stream, original in zip(streams, originals, strict=True):
            stream.close()
            original.flush()


# Before there is anything to show.


# Seconds without output: a person waits half a second before asking whether anything happens.
PATIENCE = 0.3


@contextmanager
def show_working(notice: str, patience: float) -> Iterator[None]:
    """Write `notice` to the terminal if the block writes nothing for its first `patience` seconds.
    The first output, or the end of the block, removes the notice."""
    lock, stderr = threading.RLock(), sys.stderr
    streams = [stream for stream in (sys.stdout, stderr) if isinstance(stream, TerminalStream)]
    is_shown = False

    def write_notice(text: str) -> None:
        # The text goes to the stream below: `TerminalStream.write` would remove the notice.
        if isinstance(stderr, TerminalStream):
            with suppress(OSError, ValueError, UnicodeError):
                stderr._stream.write(text)
                stderr._stream.flush()

    def show_notice() -> None:
        nonlocal is_shown
        with lock:
            # If something was written before, `remove_notice` has unset `before_write`: then the
            # notice is not shown any longer.
            if streams and streams[0].before_write is not None:
                is_shown = True
                write_notice(notice)

    def remove_notice() -> None:
        nonlocal is_shown
        with lock:
            for stream in streams:
                stream.before_write = None
            if is_shown:
                is_shown = False
                write_notice("\r\x1b[2K")

    for stream in streams:
        stream.before_write = remove_notice
    timer = threading.Timer(patience, show_notice)
    timer.daemon = True
    if patience > 0:
        timer.start()
    else:
        show_notice()
    try:
        yield
    finally:
        timer.cancel()
        remove_notice()
