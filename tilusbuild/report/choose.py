"""Choose the reporter for a command's output.

With `json` the events go to stdout and only what is wrong to stderr. A terminal that can move its
cursor gets the live display, anything else plain lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from tilusbuild.engine.events import CompositeReporter, Reporter
from tilusbuild.report.plain import PlainReporter
from tilusbuild.report.terminal import can_redraw, wants_colour

if TYPE_CHECKING:
    from tilusbuild.report.ci import JUnitReporter


class ResultReporter(CompositeReporter):
    """Writes JSON to `stdout`, and passes every event to the other reporters."""

    def __init__(self, stdout: TextIO, *others: Reporter) -> None:
        from tilusbuild.report.jsonl import JsonReporter

        self._results = JsonReporter(stdout)
        super().__init__(self._results, *others)

    def raise_if_lost(self) -> None:
        """Raises `OSError` when events were lost that had a reader."""
        if self._results.lost is not None:
            raise self._results.lost


def make_reporter(
    *,
    stdout: TextIO,
    stderr: TextIO,
    env: Mapping[str, str],
    json: bool = False,
    quiet: bool = False,
    verbose: bool = False,
    progress: str = "auto",
    color: str = "auto",
) -> Reporter:
    """Return the reporter for a command: with `json` a `ResultReporter`, on a capable terminal the
    live display, else plain lines; with the progress "none" only failures. Imports no display that
    it does not need."""
    if progress == "none" and not json:
        return PlainReporter(stderr, quiet=True)
    if json:
        plain = PlainReporter(stderr, quiet=quiet or not verbose, verbose=verbose)
        return ResultReporter(stdout, plain)
    if not quiet and progress == "auto" and can_redraw(stderr, env):
        from tilusbuild.report.live import LiveReporter

        return LiveReporter(stderr, colour=wants_colour(stderr, env, color), verbose=verbose)
    return PlainReporter(stderr, quiet=quiet, verbose=verbose)


def add_file_reporters(
    reporter: Reporter,
    *,
    stderr: TextIO,
    env: Mapping[str, str],
    root: str,
    junit: JUnitReporter | None = None,
) -> Reporter:
    """Return a reporter that passes events to `reporter`, to `junit` if it is given, and on GitHub
    Actions to one that writes annotations to `stderr`. `root` is the project's directory."""
    file_reporters: list[Reporter] = [] if junit is None else [junit]
    if env.get("GITHUB_ACTIONS") == "true":
        from tilusbuild.report.ci import GithubReporter

        file_reporters.append(GithubReporter(stderr, env, root))
    return CompositeReporter(reporter, *file_reporters) if file_reporters else reporter
