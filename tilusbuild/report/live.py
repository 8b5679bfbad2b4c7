"""Progress on a terminal: a few lines at the bottom that are redrawn in place.

A frame is written with one call, line over line, as one update for terminals that know of such, so
it does not flicker. No line of it is as wide as the terminal, so nothing wraps; when the terminal
became narrower since, the rows that the old frame now takes are counted again. Failures and notes
are written once, above the frame, and scroll away as output does.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from tilusbuild.engine import events
from tilusbuild.engine.events import EXECUTING, HERE, QUEUED, SENT, WAITING
from tilusbuild.report.plain import (
    Progress,
    RunningCompile,
    describe_place,
    format_plan,
    format_rare_event,
    list_details,
)
from tilusbuild.report.summary import format_failure, format_summary
from tilusbuild.report.text import (
    OutputStream,
    format_clock,
    format_duration,
    spell_out_controls,
    to_one_line,
)
from tilusbuild.status import Status

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_FRAME_PAUSE = 0.1
# A build with nothing to do has ended by then: it draws nothing, and imports no rich.
_FIRST_DRAW = 0.25
_MAX_ROWS = 8
# Cells of the bar, and columns of a terminal that has room for it beside the counts.
_BAR = 24
_MIN_COLUMNS_FOR_BAR = 60
# The whole line, before it is written: cells that are only erased to its end still count as used
# when some terminals wrap again.
_ERASE_LINE = "\x1b[2K"
# Begin and end of a synchronized update, which appears at once.
_BEGIN_UPDATE, _END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
# Long lines are cut: a terminal may be narrower by now than it said.
_CUT, _WRAP = "\x1b[?7l", "\x1b[?7h"


class LiveReporter:
    """Draws on `stream`, a terminal. `size` gives its columns and rows."""

    def __init__(
        self,
        stream: TextIO,
        *,
        colour: bool = True,
        verbose: bool = False,
        now: Callable[[], float] = time.monotonic,
        size: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._out = OutputStream(stream, "styled")
        self._colour = colour
        self._verbose = verbose
        self._now = now
        self._size = size or (lambda: _read_terminal_size(stream))
        self._progress = Progress()
        self._lines_above: list[str] = []
        self._widths: list[int] = []
        """Cells of each line of the frame that is on the screen."""
        self._began_at = now()
        self._drawn_at = 0.0
        self._is_closed = False
        self._console: Console | None = None

    def emit(self, event: events.Event, /) -> None:
        """Take an event into account. Its lines appear above the next frame; a summary removes the
        frame and is written at once."""
        self._progress.take_event(event, self._now())
        if isinstance(event, events.Summary):
            self.close()
            self._out.write(spell_out_controls(format_summary(event)))
            return
        if (line := self._format_event(event)) is not None:
            self._lines_above.append(line)
        if isinstance(event, events.Finished):
            self._lines_above += list_details(event)

    def print_above(self, line: str) -> bool:
        """Print a line above the frame; return False where there is no frame yet, or no more."""
        if self._is_closed or not self._widths:
            return False
        self._lines_above.append(line)
        return True

    def tick(self) -> None:
        """Draw the frame, if it is due and there is something to compile."""
        now = self._now()
        is_due = now - self._began_at >= _FIRST_DRAW and now - self._drawn_at >= _FRAME_PAUSE
        if is_due and self._progress.total and not self._is_closed:
            self._drawn_at = now
            self._draw_frame(now)

    def close(self) -> None:
        """Erase the frame, and write the lines that were to appear above it. Draw no more."""
        if self._is_closed:
            return
        self._is_closed = True
        erase = ""
        if self._widths:
            columns, _ = self._size()
            erase = f"{self._format_cursor_home(columns)}\x1b[J"
        self._out.write(erase + self._take_lines_above())
        self._widths = []

    def _format_event(self, event: events.Event) -> str | None:
        """Return the line that an event adds above the frame; None for no line. Equal failures have
        one line."""
        match event:
            case events.Finished(status=Status.BUILT | Status.PRUNED):
                if not self._verbose:
                    return None
                return f"{to_one_line(event.label)} {event.status} {format_duration(event.seconds)}"
            case events.Finished() | events.Retried() if self._progress.find_same_failure(event):
                return None  # The frame counts the failure, and the summary names the program.
            case events.Finished():
                return format_failure(event.label, event.status, event.reason)
            case events.Planned():
                return format_plan(event, self._progress)
        return format_rare_event(event)

    def _take_lines_above(self) -> str:
        text = "".join(f"{spell_out_controls(line)}\n" for line in self._lines_above)
        self._lines_above.clear()
        return text

    def _format_cursor_home(self, columns: int) -> str:
        """Return the escape that moves the cursor to the frame's first row."""
        # A frame leaves the cursor in the first column of its last line, where it stays when the
        # terminal becomes narrower and wraps again. So the rows of the lines above that one count.
        rows_above = 0
        for width in self._widths[:-1]:
            rows_above += max(1, math.ceil(width / max(1, columns)))
        return f"\r\x1b[{rows_above}A" if rows_above else "\r"

    def _draw_frame(self, now: float) -> None:
        """Write the lines above and a new frame over the old one, in one call. Keep its widths."""
        columns, height = self._size()
        home = self._format_cursor_home(columns)
        lines = self._make_frame(now, columns, height)
        lines_above = f"\x1b[J{self._take_lines_above()}" if self._lines_above else ""
        frame = f"\n{_ERASE_LINE}".join(self._render_line(line, columns) for line in lines)
        self._widths = [line.cell_len for line in lines]
        text = f"{home}{lines_above}{_CUT}{_ERASE_LINE}{frame}\x1b[J\r{_WRAP}"
        self._out.write(_BEGIN_UPDATE + text + _END_UPDATE)

    def _render_line(self, line: Text, columns: int) -> str:
        """Cut a line to less than the terminal's width, and return it with its escapes."""
        # A line that fills its row wraps on some terminals.
        line.truncate(max(1, columns - 1), overflow="ellipsis")
        console = self._console or self._open_console()
        with console.capture() as capture:
            console.print(line, end="", soft_wrap=True)
        return capture.get()

    def _open_console(self) -> Console:
        """Open and keep the console of rich, which turns styles into escapes. Return it."""
        import io

        from rich.console import Console

        self._console = Console(
            file=io.StringIO(), force_terminal=True, no_color=not self._colour, highlight=False
        )
        return self._console

    def _make_frame(self, now: float, columns: int, height: int) -> list[Text]:
        """Return the lines of a frame: the head, the compiles that run longest, and how many more
        there are."""
        from rich.text import Text

        lines = [self._make_head(now, columns)]
        compiles = sorted(self._progress.running.values(), key=lambda running: running.since)
        # Two rows are for the head and for the line that the cursor may be in after the end.
        rows = max(0, min(_MAX_ROWS, height - 2))
        shown = compiles
        if len(compiles) > rows:
            # The last row is for the number of the others.
            shown = compiles[: max(0, rows - 1)]
        lines += [_make_row(running, now, columns) for running in shown]
        hidden = len(compiles) - len(shown)
        if rows and hidden:
            lines.append(Text(f"  … and {hidden} more", style="dim"))
        return lines

    def _make_head(self, now: float, columns: int) -> Text:
        """Return the frame's first line: a bar if there is room, counts, and the remaining time."""
        from rich.text import Text

        state = self._progress
        head = Text(no_wrap=True)
        if columns >= _MIN_COLUMNS_FOR_BAR and state.total:
            done_cells = _BAR * state.done // state.total
            head.append("━" * done_cells, "green")
            head.append("━" * (_BAR - done_cells), "bright_black").append(" ")
        head.append(f"{state.done}/{state.total}", "bold")
        if state.failed:
            head.append(f"  {state.failed} failed", "red")
        remaining = state.estimate_remaining(now)
        if remaining is not None and remaining >= 1:
            head.append(f"  {format_clock(remaining)} left")
        if state.shared:
            counts = state.count_places()
            queued = f" ({counts[QUEUED]} queued)" if counts[QUEUED] else ""
            elsewhere = counts[SENT] + counts[QUEUED] + counts[EXECUTING]
            parts = [f"{counts[HERE]} here", f"{elsewhere} elsewhere{queued}"]
            if counts[WAITING]:
                parts.append(f"{counts[WAITING]} waiting")
            head.append(f"  {', '.join(parts)}", "dim")
        if state.waiting:
            head.append(f"  {len(state.waiting)} by other builds", "dim")
        return head


def _make_row(running: RunningCompile, now: float, columns: int) -> Text:
    """Return a row of the frame: a compile, its seconds so far, and those that are expected."""
    from rich.text import Text

    # "1.3 of 4.20 s", or "1.3 s" if no time is expected.
    unit = f" of {format_duration(running.expected)}" if running.expected else " s"
    times = f"{max(0.0, now - running.since):.1f}{unit}"
    if running.place != HERE:
        times += f"  {describe_place(running)}"
    label = Text(to_one_line(running.label), no_wrap=True)
    # Five columns are for two spaces before the label, two after it, and one at the end of the row.
    label.truncate(max(1, columns - len(times) - 5), overflow="ellipsis")
    return Text("  ").append_text(label).append(f"  {times}", "dim")


def _read_terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return the columns and rows of a terminal; 80 and 24 if it does not say."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return size.columns or 80, size.lines or 24
