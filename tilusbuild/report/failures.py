"""What reports to other programs say of a build's failures: which log belongs to which program, and
which place of the project it speaks of. Pure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tilusbuild.engine.events import FailureGroup, Finished
from tilusbuild.engine.results import normalised

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


def first_spot(log: str) -> Spot | None:
    """Return the place of the first error in a log that names one."""
    found = [match for pattern in _PLACES if (match := pattern.search(log))]
    if not found:
        return None
    first = min(found, key=lambda match: match.start())
    column = first.groupdict().get("column")
    return Spot(first["file"], int(first["line"]), int(column) if column else None)


def inside(file: str, root: str, top: str) -> str | None:
    """Return a file of the project in `root` as seen from the directory `top`; None when it is not
    there."""
    path = os.path.normpath(os.path.join(root, file))
    top = os.path.abspath(top)
    if not path.startswith(top.rstrip("/") + "/") or not os.path.isfile(path):
        return None
    return os.path.relpath(path, top)


def message_of(finished: Finished, groups: Iterable[FailureGroup]) -> str:
    """Return the log of a program that is not built, as far as the summary has one of its kind."""
    for group in groups:
        if group.status == finished.status and (
            finished.label in group.labels or normalised(finished.reason) == normalised(group.error)
        ):
            return group.message
    return finished.reason
