"""Whether text is coloured, and messages in colour.

`--color` decides, then `NO_COLOR`, then `FORCE_COLOR`, then whether the stream is a terminal that
knows colours. Only our own marks are coloured: what a message quotes stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TextIO

CHOICES = ("auto", "always", "never")
_MARKS = (
    (re.compile(r"^((?:\S.*?: )?)(error:)(?= )", re.MULTILINE), r"\1", "1;31"),
    (re.compile(r"^((?:\S.*?: )?)(warning:)(?= )", re.MULTILINE), r"\1", "1;33"),
    (re.compile(r"^( *\| *)(\^+)$", re.MULTILINE), r"\1", "32"),
)


def wanted(stream: TextIO, env: Mapping[str, str], choice: str = "auto") -> bool:
    """Return whether to colour what goes to a stream."""
    if choice != "auto":
        return choice == "always"
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    try:
        return stream.isatty() and env.get("TERM", "") not in ("", "dumb", "unknown")
    except (OSError, ValueError):
        return False


def coloured(message: str) -> str:
    """Return a message with its marks in colour."""
    for pattern, before, code in _MARKS:
        message = pattern.sub(f"{before}\x1b[{code}m\\2\x1b[0m", message)
    return message
