"""Choose the reporter for a command's output; the plain one is here too.

With `json` the events go to stdout and only what is wrong to stderr. A terminal that can move its
cursor gets the live display, anything else plain lines: each stands alone and nothing is redrawn.
Every failure gets its line. Of what goes well, the first few programs get one, then at most one a
second does, with the counter, so that a log of ten thousand programs stays readable; `verbose`
shows every one, `quiet` none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TextIO

from tilusbuild.engine import events
from tilusbuild.engine.events import CompositeReporter, Reporter
from tilusbuild.report.progress import Progress
from tilusbuild.report.summary import failure_line, summary_text
from tilusbuild.report.text import Stream, clock, counted, duration, one_line
from tilusbuild.status import Status


class ResultReporter(CompositeReporter):
    """Writes JSON to `stdout`, and passes every event to the other reporters."""

    def __init__(self, stdout: TextIO, *others: Reporter) -> None:
        from tilusbuild.report.jsonl import JsonReporter

        self._results = JsonReporter(stdout)
        super().__init__(self._results, *others)

    def check(self) -> None:
        """Raises `OSError` when events were lost that somebody would have read."""
        if self._results.lost is not None:
            raise self._results.lost


def choose(
    *,
    stdout: TextIO,
    stderr: TextIO,
    env: Mapping[str, str],
    json: bool = False,
    quiet: bool = False,
    verbose: bool = False,
) -> Reporter:
    """Return the reporter for a command. Imports no display that it does not need."""
    if json:
        others = PlainReporter(stderr, quiet=quiet or not verbose, verbose=verbose)
        return ResultReporter(stdout, others)
    if not quiet and can_redraw(stderr, env):
        from tilusbuild.report.live import LiveReporter

        return LiveReporter(stderr, colour=not env.get("NO_COLOR"), verbose=verbose)
    return PlainReporter(stderr, quiet=quiet, verbose=verbose)


def with_files(
    reporter: Reporter,
    *,
    stderr: TextIO,
    env: Mapping[str, str],
    root: str,
    junit: str | None = None,
) -> Reporter:
    """Return the reporter, and those that write for other programs: a JUnit file when one is
    named, annotations and a summary on GitHub Actions. `root` is the project's directory."""
    more: list[Reporter] = []
    if junit is not None:
        from tilusbuild.report.ci import JUnitReporter

        more.append(JUnitReporter(junit, stderr))
    if env.get("GITHUB_ACTIONS") == "true":
        from tilusbuild.report.ci import GithubReporter

        more.append(GithubReporter(stderr, env, root))
    return CompositeReporter(reporter, *more) if more else reporter


def can_redraw(stream: TextIO, env: Mapping[str, str]) -> bool:
    """Return whether a stream is a terminal that understands cursor movement."""
    try:
        terminal = stream.isatty()
    except (OSError, ValueError):
        return False
    return terminal and env.get("TERM", "") not in ("", "dumb", "unknown")


_FIRST = 10
_PAUSE = 1.0
_GOOD = (Status.BUILT, Status.PRUNED)


class PlainReporter:
    """Writes to `stream`."""

    def __init__(
        self,
        stream: TextIO,
        *,
        quiet: bool = False,
        verbose: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = Stream(stream)
        self._quiet = quiet
        self._verbose = verbose and not quiet
        self._now = now
        self._progress = Progress()
        self._shown = 0
        self._last = 0.0
        self._waits = False

    def emit(self, event: events.Event, /) -> None:
        now = self._now()
        self._progress.update(event, now)
        match event:
            case events.Finished():
                self._finished(event, now)
            case events.Summary():
                self._out.write(summary_text(event, quiet=self._quiet))
            case _ if not self._quiet and (line := self._line(event)) is not None:
                self._out.write(line + "\n")

    def tick(self) -> None: ...

    def close(self) -> None: ...

    def _finished(self, event: events.Finished, now: float) -> None:
        width = len(str(event.to_compile))
        counter = f"[{event.done:>{width}}/{event.to_compile}] "
        if event.status not in _GOOD:
            line = failure_line(event.label, event.status, event.reason)
            self._out.write(f"{counter}{line}\n")
        elif not self._quiet and self._due(event, now):
            took = "by another build" if event.cached else duration(event.seconds)
            pruned = f" pruned: {one_line(event.reason)}" if event.status == Status.PRUNED else ""
            self._out.write(f"{counter}{one_line(event.label)} {took}{pruned}{self._eta(now)}\n")

    def _due(self, event: events.Finished, now: float) -> bool:
        due = (
            self._verbose
            or self._shown < _FIRST
            or event.done == event.to_compile
            or now - self._last >= _PAUSE
        )
        if due:
            self._shown += 1
            self._last = now
        return due

    def _eta(self, now: float) -> str:
        remaining = self._progress.remaining(now)
        return f" (about {clock(remaining)} left)" if remaining and remaining >= 5 else ""

    def _line(self, event: events.Event) -> str | None:
        match event:
            case events.Planned():
                return plan_line(event, self._progress)
            case events.Started():
                return f"{one_line(event.label)} …" if self._verbose else None
            case events.Waiting():
                first, self._waits = not self._waits, True
                if self._verbose or first:
                    return f"{one_line(event.label)} is compiled by another build; others first"
                return None
        return note(event)


def note(event: events.Event) -> str | None:
    """Return the line for an event that is rare; None for the others."""
    match event:
        case events.Sharded():
            return shard_line(event)
        case events.WouldCompile(label=label):
            return f"would compile {one_line(label)}"
        case events.Warned(message=message):
            return f"warning: {one_line(message)}"
        case events.Retried(label=label):
            return f"{one_line(label)} was killed for lack of memory; retrying it alone"
        case events.Stopping():
            return f"stopping ({one_line(event.message)}); {event.running} still running"
    return None


def shard_line(event: events.Sharded) -> str:
    """Return which part of the plan this is."""
    seconds = event.expected_seconds
    about = "" if seconds is None else f", about {clock(seconds)} of compiling"
    return (
        f"shard {event.number}/{event.count}: {event.programs} of {event.of} programs{about}"
        f" (split {event.split[:12]})"
    )


def plan_line(event: events.Planned, progress: Progress) -> str | None:
    """Return what there is to do; None when there is nothing, which the summary will say."""
    if not event.to_compile:
        return None
    ready = event.programs - event.to_compile
    parts = [f"{ready} up to date"] if ready else []
    verb = "would compile" if event.dry_run else "to compile"
    parts.append(f"{event.to_compile} {verb}")
    eta = progress.remaining(progress.began)
    about = f", about {clock(eta)}" if eta and eta >= 5 else ""
    jobs = "" if event.dry_run else f" {progress.jobs} at a time"
    return f"{counted(event.programs, 'program')}: {', '.join(parts)}{jobs}{about}"
