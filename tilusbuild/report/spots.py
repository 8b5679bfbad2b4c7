"""Where a compiler's log says that an error is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_ERROR = r"(?:fatal )?error\b[^:]*:? ?(?P<text>.*)"
_PLACES = (
    re.compile(rf"^(?P<file>[^\s:(][^:(\n]*)\((?P<line>\d+)\): {_ERROR}", re.MULTILINE),
    re.compile(
        rf"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:(?P<column>\d+):)? {_ERROR}", re.MULTILINE
    ),
)
"""As nvcc and as the host compilers write where an error is."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where an error is. `file` is as the log has it: relative to the project's root."""

    file: str
    line: int
    column: int | None
    message: str = field(default="", compare=False)


def first_spot(log: str) -> Spot | None:
    """Return the place of the first error in a log that names one."""
    found = [match for pattern in _PLACES if (match := pattern.search(log))]
    if not found:
        return None
    first = min(found, key=lambda match: match.start())
    column = first.groupdict().get("column")
    return Spot(first["file"], int(first["line"]), int(column) if column else None, first["text"])
