"""A build as CI systems show it: a JUnit file, and annotations on GitHub Actions.

JUnit. A suite is a script with its constants and target. Its cases are the script itself, and every
program that this build compiled; those that were there before are in its counts only. A case fails
when it fails the build: a schedule that does not compile while its script has what it needs counts
as skipped, with the reason, and so does one that is pruned.

GitHub. Annotations are workflow commands, which the runner reads off stderr as it does off stdout;
ten of each kind are shown for a step, so equal failures are one.
(https://docs.github.com/actions/reference/workflow-commands-for-github-actions)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TextIO
from xml.etree import ElementTree as Xml

from tilusbuild.engine.events import (
    Event,
    FailureGroup,
    Finished,
    Reporter,
    Summary,
    Verdict,
)
from tilusbuild.engine.results import normalised
from tilusbuild.errors import Diagnostic, InputError, TilusbuildError
from tilusbuild.report.summary import first_spot
from tilusbuild.report.text import Stream, cleaned, counted, one_line
from tilusbuild.state.outputs import write_output
from tilusbuild.status import Status


def inside(file: str, root: str, top: str) -> str | None:
    """Return a project's file as seen from the directory `top`; None when it is not there."""
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


_NOT_XML = re.compile("[^\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What no XML 1.0 document can hold (its section 2.2)."""


class JUnitReporter(Reporter):
    """Writes the file at `path` when the build has ended; `lost` is why it could not."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.lost: OSError | None = None
        self._finished: dict[tuple[str, ...], list[Finished]] = {}

    def emit(self, event: Event, /) -> None:
        match event:
            case Finished():
                self._finished.setdefault(event.instance, []).append(event)
            case Summary():
                self._write(event)

    def _write(self, summary: Summary) -> None:
        try:
            write_output(self._path, self.document(summary))
        except OSError as error:
            self.lost = error

    def document(self, summary: Summary) -> bytes:
        """Return the file's bytes."""
        top = Xml.Element("testsuites", name="tilusbuild")
        for verdict in summary.scripts:
            self._suite(top, verdict, summary)
        if summary.error is not None:
            suite = Xml.SubElement(top, "testsuite", name="build")
            case = Xml.SubElement(suite, "testcase", classname="build", name="build", time="0")
            _say(case, "error", one_line(summary.error), summary.error)
            _count(suite)
        _count(top)
        top.set("time", f"{summary.seconds:.3f}")
        Xml.indent(top)
        data: bytes = Xml.tostring(top, encoding="utf-8", xml_declaration=True)
        return data + b"\n"

    def _suite(self, top: Xml.Element, verdict: Verdict, summary: Summary) -> None:
        name = _text(verdict.label)
        suite = Xml.SubElement(top, "testsuite", name=name)
        programs = self._finished.get(verdict.instance, [])
        for finished in sorted(programs, key=lambda each: each.index):
            case = Xml.SubElement(
                suite,
                "testcase",
                classname=name,
                name=_text(finished.label),
                time=f"{finished.seconds:.3f}",
            )
            if finished.status != Status.BUILT:
                log = message_of(finished, summary.failures)
                reason = f"{finished.status}: {finished.reason}"
                _say(case, _kind(finished.status, verdict.ok), reason, log)
        case = Xml.SubElement(suite, "testcase", classname=name, name=name, time="0")
        if not verdict.ok:
            built = f"{verdict.built} of {verdict.schedules} built"
            _say(case, "failure", f"{verdict.reason} ({built})", "")
        _count(suite)


def _kind(status: str, script_is_ok: bool) -> str:
    if status == Status.PRUNED or (status == Status.FAILED and script_is_ok):
        return "skipped"
    return "failure" if status == Status.FAILED else "error"


def _say(case: Xml.Element, kind: str, message: str, log: str) -> None:
    element = Xml.SubElement(case, kind, message=_text(one_line(message)))
    if log:
        where = Xml.SubElement(case, "system-out") if kind == "skipped" else element
        where.text = _text(cleaned(log))


def _count(element: Xml.Element) -> None:
    cases = list(element.iter("testcase"))
    element.set("tests", str(len(cases)))
    for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(name, str(sum(case.find(kind) is not None for case in cases)))
    element.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")


def _text(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


_MAX_ANNOTATIONS = 10


class GithubReporter(Reporter):
    """Writes when the build has ended. `root` is the directory of the project."""

    def __init__(self, stderr: TextIO, environment: Mapping[str, str], root: str) -> None:
        self._out = Stream(stderr, "command")
        self._top = environment.get("GITHUB_WORKSPACE") or os.getcwd()
        self._root = root

    def emit(self, event: Event, /) -> None:
        if isinstance(event, Summary):
            for line in self._annotations(event):
                self._out.write(line)

    def _annotations(self, summary: Summary) -> Iterator[str]:
        level = "error" if summary.exit_status else "warning"
        for group in summary.failures[:_MAX_ANNOTATIONS]:
            yield command(level, _title(group), group.message or group.error, self._place(group))
        bad = [verdict for verdict in summary.scripts if not verdict.ok]
        for verdict in bad[:_MAX_ANNOTATIONS]:
            name = verdict.label
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


def annotate(error: TilusbuildError, stderr: TextIO, environment: Mapping[str, str]) -> None:
    """Write an annotation for each mistake of the input, at its place."""
    out = Stream(stderr, "command")
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
        out.write(command(diagnostic.severity, "", text, named))


def command(level: str, title: str, message: str, place: Mapping[str, str] | None = None) -> str:
    """Return a workflow command in one line."""
    said = {**(place or {}), **({"title": one_line(title)} if title else {})}
    values = ((n, _data(v).replace(":", "%3A").replace(",", "%2C")) for n, v in said.items())
    properties = ",".join(f"{name}={value}" for name, value in values)
    return f"::{level}{' ' if properties else ''}{properties}::{_data(cleaned(message).strip())}\n"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _title(group: FailureGroup) -> str:
    shown = ", ".join(group.labels[:3]) + (" …" if group.count > 3 else "")
    return f"{counted(group.count, 'schedule')}: {shown}"
