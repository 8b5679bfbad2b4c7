"""Texts for people, and a stream that outlives its reader.

Names come from manifests and logs from compilers, and may hold characters that move a cursor, hide
text or turn its order around: `spell_out_controls` spells such characters, as `\\x1b`. Writing
to a closed pipe or a terminal that is gone is not an error of the build: the stream drops what
follows.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad"  # C0, C1, the soft hyphen
    "\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"  # direction, lines, no width
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"  # lone surrogates, tags
)
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def spell_out_controls(text: str) -> str:
    """Return a text whose control and direction characters are spelt out, `\\x1b` or `\\u202e`.

    Line ends and tabs stay. A byte that is not UTF-8, as in a file's name, is `\\xff`.
    """
    # Most texts are logs without such characters: they are returned soon.
    if text.isascii() and not _CONTROL.search(text):
        return text
    return _INVISIBLE.sub(_spell_character, text.replace("\r\n", "\n"))


def _spell_character(match: re.Match[str]) -> str:
    """Return a matched character spelt out, as `re.sub` asks for it."""
    code = ord(match.group())
    # Python decodes a byte that is not UTF-8, such as 0xff, to the surrogate 0xdcff.
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clean_text(text: str) -> str:
    """Return a text of several lines without terminal escapes, as of colours, and visible."""
    return spell_out_controls(_ESCAPES.sub("", text))


def to_one_line(text: str) -> str:
    """Return a text without escapes and control characters, in one line."""
    return clean_text(text).replace("\n", "\\n").replace("\t", " ")


def format_duration(seconds: float) -> str:
    """Return seconds for people: 0.42 -> "0.42 s", 12.3 -> "12.3 s", 75 -> "1:15"."""
    # Not 10 and 60: a little less is rounded up, to "10.00 s" and "60.0 s".
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    return format_clock(seconds)


def format_clock(seconds: float) -> str:
    """Return seconds as a clock shows them: 75 -> "1:15", 3700 -> "1:01:40"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_count(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: (1, "program") -> "1 program", (2, …) -> "2 programs"."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def format_bytes(count: float) -> str:
    """Return bytes in decimal units, as disks are sold: 1500 -> "1.5 kB"."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


class OutputStream:
    """Writes to a text stream and flushes at every write.

    `method` names the method of `report.terminal.TerminalStream` to write with: "styled" for text
    with escapes of our own, whose other characters are spelt out; "command" for a command to CI.
    """

    def __init__(self, stream: TextIO, method: str = "") -> None:
        self._stream = stream
        self._write: Callable[[str], int] = getattr(stream, f"write_{method}", stream.write)
        self.alive = True
        self.lost: OSError | None = None
        """Why writing failed, unless there is no reader."""

    def write(self, text: str) -> None:
        """Write and flush, and never raise. When writing fails, `alive` becomes False, the stream
        goes to /dev/null, and further calls do nothing."""
        if not self.alive:
            return
        try:
            self._write(text)
            self._stream.flush()
        # `ValueError` is a closed stream.
        except (OSError, ValueError) as error:
            self.alive = False
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                self.lost = error
            silence_stream(self._stream)


def find_descriptor(stream: TextIO) -> int | None:
    """Return the descriptor of a stream; None for one that is closed, or only in memory."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def silence_stream(stream: TextIO) -> None:
    """Send the further output of a stream to /dev/null."""
    # The interpreter flushes the stream's buffer at its end. That would raise again, and the exit
    # status would be 120.
    number = find_descriptor(stream)
    if number is None:
        return
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is stream:
            # The stream is replaced, since to write the old one's buffer may fail for ever.
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
