"""A build on GitHub Actions: annotations at the lines that are wrong, and the job's summary.

Annotations are workflow commands, which the runner reads off stderr as it does off stdout; ten of
each kind are shown for a step, so equal failures are one. The summary is Markdown, appended to the
file that GITHUB_STEP_SUMMARY names; GitHub drops a step's summary that exceeds 1 MiB.
(https://docs.github.com/actions/reference/workflow-commands-for-github-actions)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TextIO

from tilusbuild.engine.events import Event, FailureGroup, Sharded, Summary
from tilusbuild.errors import Diagnostic, InputError, TilusbuildError
from tilusbuild.report.failures import first_spot, inside
from tilusbuild.report.plain import shard_line
from tilusbuild.report.summary import sums
from tilusbuild.report.text import Stream, cleaned, counted, one_line

_MAX_ANNOTATIONS = 10
_MAX_ROWS = 200
_MAX_LOG = 4000
_MAX_BYTES = 1000 << 10


class GithubReporter:
    """Writes when the build has ended. `root` is the directory of the project."""

    def __init__(self, stderr: TextIO, environment: Mapping[str, str], root: str) -> None:
        self._out = Stream(stderr)
        self._top = environment.get("GITHUB_WORKSPACE") or os.getcwd()
        self._file = environment.get("GITHUB_STEP_SUMMARY")
        self._root = root
        self._shard: Sharded | None = None

    def emit(self, event: Event, /) -> None:
        match event:
            case Sharded():
                self._shard = event
            case Summary():
                for line in self._annotations(event):
                    self._out.write(line)
                if self._file:
                    self._append(self._file, "".join(_markdown(event, self._shard)))

    def tick(self) -> None: ...

    def close(self) -> None: ...

    def _annotations(self, summary: Summary) -> Iterator[str]:
        level = "error" if summary.exit_status else "warning"
        for group in summary.failures[:_MAX_ANNOTATIONS]:
            yield command(level, _title(group), group.message or group.error, self._place(group))
        bad = [verdict for verdict in summary.scripts if not verdict.ok]
        for verdict in bad[:_MAX_ANNOTATIONS]:
            name = " ".join(verdict.instance) or verdict.script
            yield command("error", name, f"{name}: {verdict.reason}")
        if summary.error is not None:
            yield command("error", "the build stopped", summary.error)

    def _place(self, group: FailureGroup) -> dict[str, str]:
        spot = first_spot(group.message)
        file = None if spot is None else inside(spot.file, self._root, self._top)
        if spot is None or file is None:
            return {}
        place = {"file": file, "line": str(spot.line)}
        return place if spot.column is None else {**place, "col": str(spot.column)}

    def _append(self, path: str, text: str) -> None:
        data = text.encode("utf-8", "replace")
        if len(data) > _MAX_BYTES:
            data = data[:_MAX_BYTES].decode("utf-8", "ignore").encode() + b"\n"
        try:
            with open(path, "ab") as file:
                file.write(data)
        except OSError as error:
            self._out.write(f"error: cannot write {path}: {error.strerror}\n")


def annotate(error: TilusbuildError, stderr: TextIO, environment: Mapping[str, str]) -> None:
    """An annotation for each thing that is wrong with the input, where it is wrong."""
    found = error.diagnostics if isinstance(error, InputError) else (Diagnostic(str(error)),)
    top = environment.get("GITHUB_WORKSPACE") or os.getcwd()
    for diagnostic in found[:_MAX_ANNOTATIONS]:
        where = {}
        place = diagnostic.place
        file = None if place is None else inside(place.path, os.getcwd(), top)
        if place is not None and file is not None:
            where = {"file": file, "line": place.line, "col": place.column}
        text = diagnostic.message + (f"\n{diagnostic.hint}" if diagnostic.hint else "")
        named = {name: str(value) for name, value in where.items() if value is not None}
        stderr.write(command(diagnostic.severity, "", text, named))


def command(level: str, title: str, message: str, place: Mapping[str, str] | None = None) -> str:
    """Return a workflow command in one line."""
    said = {**(place or {}), **({"title": one_line(title)} if title else {})}
    properties = ",".join(f"{name}={_property(value)}" for name, value in said.items())
    return f"::{level}{' ' if properties else ''}{properties}::{_data(cleaned(message).strip())}\n"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _title(group: FailureGroup) -> str:
    shown = ", ".join(group.labels[:3]) + (" …" if group.count > 3 else "")
    return f"{counted(group.count, 'schedule')}: {shown}"


def _markdown(summary: Summary, shard: Sharded | None) -> Iterator[str]:
    yield f"### tilusbuild: {_cell(sums(summary))}\n\n"
    if shard is not None:
        yield f"{_cell(shard_line(shard))}\n\n"
    if summary.error is not None:
        yield f"**stopped**: {_cell(summary.error)}\n\n"
    if summary.scripts:
        yield "| | script | built | failed | pruned | of | |\n|---|---|--:|--:|--:|--:|---|\n"
    for verdict in sorted(summary.scripts, key=lambda each: each.ok)[:_MAX_ROWS]:
        name = _cell(" ".join(verdict.instance) or verdict.script)
        counts = f"{verdict.built} | {verdict.failed} | {verdict.pruned} | {verdict.schedules}"
        mark = "✅" if verdict.ok else "❌"
        yield f"| {mark} | {name} | {counts} | {_cell(verdict.reason)} |\n"
    if len(summary.scripts) > _MAX_ROWS:
        yield f"\n… and {len(summary.scripts) - _MAX_ROWS} more\n"
    yield "\n"
    for group in summary.failures:
        log = cleaned(group.message)[:_MAX_LOG].replace("```", "` ` `")
        head = f"{counted(group.count, 'schedule')}: {_html(one_line(group.error))}"
        yield f"<details><summary>{head}</summary>\n\n```\n{log.strip()}\n```\n\n</details>\n\n"


def _cell(text: str) -> str:
    return _html(one_line(text)).replace("|", "\\|").replace("`", "\\`")


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
