"""The stream that the command line prints through: it shows every character and gives no commands.

`cli/main.py` puts one in the place of stdout and one in that of stderr, so a verb that prints a
name, a path or a log cannot forget it. Escapes of our own go through `write_styled`. In a GitHub
workflow a line that begins with `::error` is a command to the runner, and so is `##[error]` within
one: such a line gets a backslash, and annotations of our own go through `write_command`. What
cannot be encoded is escaped, and a stream that is closed takes everything and shows nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import TextIOBase
from typing import Any, TextIO, cast

from tilusbuild.report.text import visible

_COMMAND = re.compile(r"(?m)(^[^\S\n]*:)(?=:)|(##)(?=\[)")
"""The runner strips white space in front, and finds the older form anywhere in a line."""
_OPEN = re.compile(r"(?:^[^\S\n]*:?|##?)\Z", re.MULTILINE)
"""The end of a text that the next one may make a command of."""


class TerminalStream(TextIOBase):
    """A text stream whose `write` shows every character, and gives no commands."""

    def __init__(self, stream: TextIO | None, *, github: bool = False) -> None:
        self._stream = stream
        self._github = github
        self._open = ""
        """What the current line ends with, as far as it may begin a command."""

    def write(self, text: str, /) -> int:
        self.write_styled(visible(text))
        return len(text)

    def write_styled(self, text: str) -> int:
        """Write what may hold escapes of our own."""
        return self.write_command(self._harmless(text) if self._github else text)

    def write_command(self, text: str) -> int:
        """Write a text as it is."""
        if self._stream is None:
            return len(text)
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding or "ascii"
            return self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def _harmless(self, text: str) -> str:
        line = self._open + text
        found = _OPEN.search(line)
        shown = _COMMAND.sub(r"\1\2\\", line)[len(self._open) :]
        # A line that has begun otherwise is told from an empty one by a letter.
        self._open = (found.group() if found and found.group() else "") or (
            "" if line.endswith("\n") or not line else "x"
        )
        if self._open.startswith("#"):
            self._open = f"x{self._open}"
        return shown

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError("the stream is closed")
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._stream, "encoding", None) or "utf-8"

    @property
    def buffer(self) -> Any:
        """The stream of bytes below, for what no person reads."""
        return getattr(self._stream, "buffer", None)

    def close(self) -> None:
        """Keep the stream below open: it belongs to the process."""


@contextmanager
def shown(environment: Mapping[str, str]) -> Iterator[None]:
    """Within the block, have stdout and stderr show what they are given."""
    before = sys.stdout, sys.stderr
    github = environment.get("GITHUB_ACTIONS") == "true"
    sys.stdout, sys.stderr = (
        cast("TextIO", TerminalStream(stream, github=github)) for stream in before
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
