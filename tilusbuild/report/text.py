"""Texts for people, and a stream that outlives its reader.

Names come from manifests and logs from compilers, so a line for a terminal is cleaned first: no
control character of theirs reaches it. Writing to a closed pipe or a terminal that is gone is not
an error of the build: the stream drops what follows.
"""

from __future__ import annotations

import os
import re
from typing import TextIO

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def cleaned(text: str) -> str:
    """Return a text of several lines without terminal escapes and control characters."""
    text = text.replace("\r\n", "\n")
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", _ESCAPES.sub("", text))


def one_line(text: str) -> str:
    """Return a text without escapes and control characters, in one line."""
    return cleaned(text).replace("\n", "\\n").replace("\t", " ")


def duration(seconds: float) -> str:
    """Return seconds for people: 0.42 -> "0.42 s", 12.3 -> "12.3 s", 75 -> "1:15"."""
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    return clock(seconds)


def clock(seconds: float) -> str:
    """Return seconds as a clock shows them: 75 -> "1:15", 3700 -> "1:01:40"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: (1, "program") -> "1 program", (2, …) -> "2 programs"."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def amount(count: float) -> str:
    """Return bytes in decimal units, as disks are sold: 1500 -> "1.5 kB"."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


class Stream:
    """Writes to a text stream and flushes at every write."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.alive = True
        self.lost: OSError | None = None
        """Why writing failed, unless nobody reads it."""

    def write(self, text: str) -> None:
        """Write and flush; do nothing once nobody reads any more. Never raises."""
        if not self.alive:
            return
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                encoding = self._stream.encoding or "ascii"
                plain = text.encode(encoding, "backslashreplace").decode(encoding)
                self._stream.write(plain)
            self._stream.flush()
        except (OSError, ValueError) as error:
            self.alive = False
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                self.lost = error
            silence(self._stream)


def silence(stream: TextIO) -> None:
    """Send what a stream still gets to /dev/null.

    Nobody reads it any more, or its disk is full: what is still buffered would raise again when the
    interpreter ends.
    """
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)
