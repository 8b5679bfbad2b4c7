"""The output of `watch`: lines, on a terminal around the live display, or JSON.

While a build draws its frame, lines go above it; between builds the last line of a terminal says
what is watched, or what `--exec` runs, and everything else is written above it. Called from several
threads.
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
_PARTS = 5
"""Of what a change is about, so many are named."""
MAX_COMMAND = 50
"""Characters of a command in the last line, which must not wrap."""


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
        """Return the display of a build that begins now."""
        with self._lock:
            self._set_status("")
            self._display = _LockedReporter(
                self._make_reporter(), self._lock, self._json is not None
            )
            return self._display

    def emit(self, event: Event) -> None:
        """Show an event of watching, not of a build."""
        with self._lock:
            if self._json is not None:
                self._json.emit(event)
            if isinstance(event, events.Watching):
                state = "" if event.ok else ", build has errors"
                self._set_status(
                    f"watching {format_count(event.paths, 'path')}{state}; Ctrl-C ends"
                )
                return
            if isinstance(event, events.CommandStarted):
                self._set_status(f"running {_shorten_command(event.command)}; Ctrl-C ends")
                return
            if not isinstance(event, events.Printed):
                self._set_status("")
            if self._clear and self._terminal and isinstance(event, events.Changed):
                self._write_text(_CLEAR)
            for line in self._format_event(event):
                self._print_line(line)

    @property
    def is_read(self) -> bool:
        """Whether anybody still reads, as far as the last event showed."""
        return self._out.alive and (self._json is None or self._json.is_read)

    def close(self) -> None:
        """Leave the terminal as it should be."""
        with self._lock:
            self._set_status("")

    def _format_event(self, event: Event) -> list[str]:
        if isinstance(event, events.Problem):
            return [clean_text(event.message), "the next save tries again"]
        if isinstance(event, events.CommandEnded):
            return self._format_command_end(event)
        if isinstance(event, events.Printed):
            return [clean_text(event.line)] if self._json is None else []
        if self._quiet or (self._json is not None and not self._verbose):
            return []
        if isinstance(event, events.Changed):
            parts, others = event.parts[:_PARTS], max(0, len(event.parts) - _PARTS)
            paths = _format_names(event.paths, event.more)
            return [f"changed: {paths} → {_format_names(parts, others)}"]
        if isinstance(event, events.Replanned) and self._verbose:
            plan = f"{format_count(event.programs, 'program')}, {event.changed} new"
            return [f"planned {plan}: {event.renders} rendered in {format_duration(event.seconds)}"]
        if isinstance(event, events.Rebuilt):
            return [_format_rebuilt(event)]
        return []

    def _format_command_end(self, event: events.CommandEnded) -> list[str]:
        command = to_one_line(event.command)
        if event.status:
            return [f"error: {command}: exit status {event.status}"]
        if event.status is None or self._quiet or self._json is not None:
            return []
        return [f"{command}: done in {format_duration(event.seconds)}"]

    def _print_line(self, line: str) -> None:
        display = self._display
        if display is not None and display.print_above(line):
            return
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
    after = f"{format_duration(event.seconds)} after the {'start' if event.first else 'save'}"
    if not event.programs:
        return f"nothing to rebuild ({after})" if event.ok else f"not built ({after})"
    scripts = to_one_line(", ".join(event.scripts))
    text = f"rebuilt {format_count(event.programs, 'program')} of {scripts}"
    return f"{text}, {after}" if event.ok else f"{text}, with errors ({after})"


def _format_names(names: tuple[str, ...], more: int) -> str:
    text = to_one_line(", ".join(names))
    return f"{text} and {more} more" if more else text


def _shorten_command(command: str) -> str:
    text = to_one_line(command)
    return text if len(text) <= MAX_COMMAND else f"{text[: MAX_COMMAND - 1]}…"


class _LockedReporter:
    """A build's display, to which one thread emits and others add lines."""

    def __init__(self, reporter: Reporter, lock: threading.RLock, shows_all: bool) -> None:
        self._reporter = reporter
        self._lock = lock
        self._shows_all = shows_all

    def emit(self, event: Event, /) -> None:
        if isinstance(event, Summary) and is_nothing_done(event) and not self._shows_all:
            return  # what `Rebuilt` says of it is enough
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
