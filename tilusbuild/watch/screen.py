"""The output of `watch`: lines, on a terminal around the live display, or JSON.

While a build draws its frame, lines go above it. Between builds the last line of a terminal is a
status: the number of watched paths, or the command of `--exec`; lines are written above it. Called
from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TextIO

from tilusbuild.engine.events import Event, Reporter, Summary
from tilusbuild.report.jsonl import JsonReporter
from tilusbuild.report.live import LiveReporter
from tilusbuild.report.summary import is_nothing_done
from tilusbuild.report.text import (
    OutputStream,
    clean_text,
    format_count,
    format_duration,
    spell_out_controls,
    to_one_line,
)
from tilusbuild.watch import events

_CLEAR = "\x1b[2J\x1b[3J\x1b[H"
_ERASE = "\r\x1b[2K"
_MAX_PARTS = 5
# Characters of a command in the last line, which must not wrap.
MAX_COMMAND = 50


class Screen:
    """Prints events. `reporter` makes the display of one build."""

    def __init__(
        self,
        *,
        reporter: Callable[[], Reporter],
        stderr: TextIO,
        json: TextIO | None,
        terminal: bool,
        quiet: bool,
        verbose: bool,
        clear: bool,
    ) -> None:
        self._make_reporter = reporter
        self._out = OutputStream(stderr, "styled")
        self._json = JsonReporter(json) if json is not None else None
        self._terminal = terminal
        self._quiet = quiet
        self._verbose = verbose
        self._clear = clear
        self._lock = threading.RLock()
        self._display: _LockedReporter | None = None
        self._status = ""
        """The last line of the terminal."""

    def start_display(self) -> Reporter:
        """Return a new display, for a build that begins now. Remove the status; lines of `watch` go
        above this display from now on."""
        with self._lock:
            self._set_status("")
            self._display = _LockedReporter(
                self._make_reporter(), self._lock, self._json is not None
            )
            return self._display

    def emit(self, event: Event) -> None:
        """Show an event of `watch.events`: `Watching` and `CommandStarted` as the terminal's last
        line, all others as lines above. With JSON, write it to that stream, too."""
        with self._lock:
            if self._json is not None:
                self._json.emit(event)
            match event:
                case events.Watching(paths, ok):
                    state = "" if ok else ", build has errors"
                    self._set_status(f"watching {format_count(paths, 'path')}{state}; Ctrl-C ends")
                    return
                case events.CommandStarted(command):
                    text = to_one_line(command)
                    if len(text) > MAX_COMMAND:
                        text = f"{text[: MAX_COMMAND - 1]}…"
                    self._set_status(f"running {text}; Ctrl-C ends")
                    return
                case events.Printed():
                    pass  # The command runs on, and its status stays.
                case _:
                    self._set_status("")
            if self._clear and self._terminal and isinstance(event, events.Changed):
                self._write_text(_CLEAR)
            for line in self._format_event(event):
                self._print_line(line)

    @property
    def is_read(self) -> bool:
        """Whether the output still had readers at the last event."""
        return self._out.alive and (self._json is None or self._json.is_read)

    def close(self) -> None:
        """Leave the terminal as it should be."""
        with self._lock:
            self._set_status("")

    def _format_event(self, event: Event) -> list[str]:
        """Return the lines that an event prints; with `quiet` or JSON few, often none."""
        is_silent = self._quiet or (self._json is not None and not self._verbose)
        match event:
            case events.Problem(message):
                return [clean_text(message), "the next save tries again"]
            case events.CommandEnded(command, status) if status:
                return [f"error: {to_one_line(command)}: exit status {status}"]
            case events.CommandEnded(command, 0, seconds) if self._json is None and not self._quiet:
                return [f"{to_one_line(command)}: done in {format_duration(seconds)}"]
            case events.Printed(line) if self._json is None:
                return [clean_text(line)]
            case events.Changed(paths, more, parts) if not is_silent:
                hidden = max(0, len(parts) - _MAX_PARTS)
                names = _format_names(parts[:_MAX_PARTS], hidden)
                return [f"changed: {_format_names(paths, more)} → {names}"]
            case events.Replanned() if self._verbose and not self._quiet:
                plan = f"{format_count(event.programs, 'program')}, {event.changed} new"
                duration = format_duration(event.seconds)
                return [f"planned {plan}: {event.renders} rendered in {duration}"]
            case events.Rebuilt() if not is_silent:
                return [_format_rebuilt(event)]
        return []

    def _print_line(self, line: str) -> None:
        if self._display is None or not self._display.print_above(line):
            self._write_text(spell_out_controls(line) + "\n")

    def _write_text(self, text: str) -> None:
        erase = _ERASE if self._status else ""
        self._out.write(f"{erase}{text}{spell_out_controls(self._status)}")

    def _set_status(self, status: str) -> None:
        """Draw a status as the terminal's last line; "" removes the line."""
        if self._json is not None or self._quiet or not self._terminal:
            return
        if status != self._status:
            self._out.write(f"{_ERASE if self._status else ''}{spell_out_controls(status)}")
            self._status = status


def _format_rebuilt(event: events.Rebuilt) -> str:
    """Return the end of a build as one line."""
    beginning = "start" if event.first else "save"
    after = f"{format_duration(event.seconds)} after the {beginning}"
    if not event.programs:
        return f"nothing to rebuild ({after})" if event.ok else f"not built ({after})"
    scripts = to_one_line(", ".join(event.scripts))
    text = f"rebuilt {format_count(event.programs, 'program')} of {scripts}"
    return f"{text}, {after}" if event.ok else f"{text}, with errors ({after})"


def _format_names(names: tuple[str, ...], more: int) -> str:
    text = to_one_line(", ".join(names))
    return f"{text} and {more} more" if more else text


class _LockedReporter:
    """A build's display, to which one thread emits and others add lines."""

    def __init__(self, reporter: Reporter, lock: threading.RLock, shows_all: bool) -> None:
        self._reporter = reporter
        self._lock = lock
        self._shows_all = shows_all

    def emit(self, event: Event, /) -> None:
        # A build with nothing to do has its summary left out: the line of `Rebuilt` says the same.
        if isinstance(event, Summary) and is_nothing_done(event) and not self._shows_all:
            return
        with self._lock:
            self._reporter.emit(event)

    def tick(self) -> None:
        with self._lock:
            self._reporter.tick()

    def close(self) -> None:
        with self._lock:
            self._reporter.close()

    def print_above(self, line: str) -> bool:
        """Put a line above the display; False when there is none to put it above."""
        with self._lock:
            return isinstance(self._reporter, LiveReporter) and self._reporter.print_above(line)
