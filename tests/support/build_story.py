"""A terminal in memory, a clock to set, and events to report."""

import io
import re
from typing import Any

from tilusbuild.engine import events

_CODES = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Screen(io.StringIO):
    """Keeps what a terminal would show: text, wrapping, cursor up, erase to the end."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        super().__init__()
        self.columns = columns
        self.height = rows
        self.lines = [""]
        self.row = 0
        self.column = 0
        self.writes: list[str] = []

    def isatty(self) -> bool:
        return True

    def size(self) -> tuple[int, int]:
        return self.columns, self.height

    def write(self, text: str) -> int:
        self.writes.append(text)
        for numbers, code, control, words in _CODES.findall(text):
            if words:
                for letter in words:
                    self._put(letter)
            elif control == "\r":
                self.column = 0
            elif control == "\n":
                self._down()
            elif code == "A":
                assert self.row >= int(numbers or 1), "the cursor left the screen"
                self.row -= int(numbers or 1)
            elif numbers == "2" and code == "K":
                self.lines[self.row] = ""
            elif code in "KJ":
                self.lines[self.row] = self.lines[self.row][: self.column]
                if code == "J":
                    del self.lines[self.row + 1 :]
            else:
                assert code == "m" or numbers in ("?2026", "?7"), f"unknown code {numbers}{code}"
        return len(text)

    def _down(self) -> None:
        self.row += 1
        self.column = 0
        if self.row == len(self.lines):
            self.lines.append("")

    def _put(self, letter: str) -> None:
        if self.column == self.columns:
            self._down()
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + letter + line[self.column + 1 :]
        self.column += 1

    def narrow(self, columns: int) -> None:
        """Resize as terminals do that wrap their lines again; the cursor stays with its line."""
        assert self.column == 0
        wrapped: list[str] = []
        for row, line in enumerate(self.lines):
            if row == self.row:
                row_now = len(wrapped)
            wrapped += [line[i : i + columns] for i in range(0, len(line), columns)] or [""]
        self.columns, self.lines, self.row = columns, wrapped, row_now


class Clock:
    """A time that stands still until it is set."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


class Story:
    """Makes the events of a build."""

    def __init__(self, total: int, *, jobs: int = 2, expected: float | None = None) -> None:
        self.total = total
        self.done = 0
        self.expected = expected
        self.start = events.BuildStarted(jobs, "0.1.0")
        total_seconds = None if expected is None else expected * total
        self.plan = events.Planned(total, 0, 0, 0, total, total_seconds)

    def started(self, index: int, label: str | None = None) -> events.Started:
        label = label or f"matmul/{index} sm_90a"
        return events.Started(f"{index:064x}", label, "matmul", index, self.expected)

    def placed(self, index: int, stage: str, worker: str = "") -> events.Placed:
        return events.Placed(f"{index:064x}", f"matmul/{index} sm_90a", stage, "grpc://x", worker)

    def finished(self, index: int, status: str = "built", **changes: Any) -> events.Finished:
        self.done += 1
        values: dict[str, Any] = {
            "hash": f"{index:064x}",
            "label": f"matmul/{index} sm_90a",
            "script": "matmul",
            "instance": ("matmul", "h100"),
            "index": index,
            "status": status,
            "cached": False,
            "reason": "",
            "seconds": 1.0,
            "peak_rss": 1 << 20,
            "expected_seconds": self.expected,
            "done": self.done,
            "to_compile": self.total,
        }
        return events.Finished(**{**values, **changes})


def summary(**changes: Any) -> events.Summary:
    """A summary of nothing, with changes."""
    names = "programs compiled cached failed pruned crashed skipped attempts exit_status"
    values: dict[str, Any] = dict.fromkeys(names.split(), 0)
    return events.Summary(**{**values, "seconds": 1.5, **changes})
