"""The log of samples: one JSON object a line, appended as it is measured, read when tuning goes on.

A line is an answer, known by its case, its program, what was asked and the how-many-eth time:

    {"case": …, "program": …, "what": "sample", "number": 3, "status": "ok", "seconds": 1.2e-05, …}

Other lines say which device and which sizes that was, for people and for `--import`. A line that is
cut short, as a kill or a full disk may leave the last one, counts for nothing and harms no other.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from tilusbuild.tune.bench.bench import (
    CRASH,
    INCORRECT,
    LAUNCH_ERROR,
    OK,
    TIMEOUT,
    Answer,
)

_STATUSES = {status: status for status in (OK, INCORRECT, CRASH, TIMEOUT, LAUNCH_ERROR)}

Key = tuple[str, str, str, int]
"""Case, program, "check" or "sample", number."""


def lines(path: str) -> Iterator[dict[str, Any]]:
    """Yield every whole object of a log; none without a file. Raises `OSError`."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return
    for line in data.split(b"\n"):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def answers(found: Iterable[Mapping[str, Any]]) -> dict[Key, Answer]:
    """Return the answers among lines; of two to the same question the first, which was built on."""
    kept: dict[Key, Answer] = {}
    for line in found:
        try:
            key = (str(line["case"]), str(line["program"]), str(line["what"]), int(line["number"]))
            seconds = line["seconds"]
            answer = Answer(
                status=_STATUSES[line["status"]],
                cost=_time(line["cost"]),
                seconds=None if seconds is None else _time(seconds),
                why=str(line["why"]),
                dropped=int(line["dropped"]),
                error=float(line.get("error", 0.0)),
                note=str(line["note"]),
            )
        except (KeyError, TypeError, ValueError):
            continue
        kept.setdefault(key, answer)
    return kept


def _time(value: object) -> float:
    seconds = float(value)  # type: ignore[arg-type]
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{seconds} is no time")
    return seconds


class SampleLog:
    """A log at `path`, made with its directory when the first line is written."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.known = answers(lines(path))
        self._handle = -1

    def add(self, key: Key, answer: Answer) -> None:
        """Append an answer. Raises `OSError`."""
        case, program, what, number = key
        self.note(
            {"case": case, "program": program, "what": what, "number": number, **asdict(answer)}
        )
        self.known[key] = answer

    def note(self, value: Mapping[str, Any]) -> None:
        """Append any line, by one write. Raises `OSError`."""
        if self._handle < 0:
            self._handle = self._open()
        os.write(self._handle, json.dumps(value, ensure_ascii=False).encode() + b"\n")

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _open(self) -> int:
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            os.write(handle, b"\n")  # end what a kill cut short, so that the next line is whole
        return handle
