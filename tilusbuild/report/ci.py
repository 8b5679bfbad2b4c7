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

from tilusbuild.engine.events import Event, FailureGroup, Finished, Reporter, Summary, Verdict
from tilusbuild.engine.results import normalize_error
from tilusbuild.errors import Diagnostic, InputError, TilusbuildError
from tilusbuild.report.summary import find_first_error
from tilusbuild.report.text import OutputStream, clean_text, format_count, to_one_line
from tilusbuild.state.files import write_output
from tilusbuild.status import Status


def find_path_below(file: str, root: str, top: str) -> str | None:
    """Return the path of a file relative to the directory `top`; None if the file is not below it,
    or does not exist. `file` is relative to `root`."""
    path = os.path.normpath(os.path.join(root, file))
    top = os.path.abspath(top)
    if not path.startswith(top.rstrip("/") + "/") or not os.path.isfile(path):
        return None
    return os.path.relpath(path, top)


def find_message(finished: Finished, groups: Iterable[FailureGroup]) -> str:
    """Return the log of the group of equal failures that a program belongs to; its own reason if it
    belongs to none."""
    error = normalize_error(finished.reason)
    for group in groups:
        # A group names only its first programs.
        is_member = finished.label in group.labels or error == normalize_error(group.error)
        if is_member and group.status == finished.status:
            return group.message
    return finished.reason


# Characters that no XML 1.0 document can hold (its section 2.2).
_NOT_XML = re.compile("[^\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class JUnitReporter(Reporter):
    """Writes the file at `path` when the build has ended; `lost` is why it could not."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.lost: OSError | None = None
        self._finished: dict[tuple[str, ...], list[Finished]] = {}

    def emit(self, event: Event, /) -> None:
        """Keep each `Finished`, and write the file at `Summary`. An error of the disk becomes
        `lost`."""
        match event:
            case Finished():
                self._finished.setdefault(event.instance, []).append(event)
            case Summary():
                try:
                    write_output(self._path, self.format_document(event))
                except OSError as error:
                    # Raised by the verb, after the other reporters have shown the summary.
                    self.lost = error

    def format_document(self, summary: Summary) -> bytes:
        """Return the JUnit file: a suite for each script of the summary, and a suite "build" with
        the error that stopped the build, if one did."""
        top = Xml.Element("testsuites", name="tilusbuild")
        for verdict in summary.scripts:
            self._add_suite(top, verdict, summary)
        if summary.error is not None:
            suite = Xml.SubElement(top, "testsuite", name="build")
            case = Xml.SubElement(suite, "testcase", classname="build", name="build", time="0")
            _add_outcome(case, "error", to_one_line(summary.error), summary.error)
            _set_counts(suite)
        _set_counts(top)
        top.set("time", f"{summary.seconds:.3f}")
        Xml.indent(top)
        data: bytes = Xml.tostring(top, encoding="utf-8", xml_declaration=True)
        return data + b"\n"

    def _add_suite(self, top: Xml.Element, verdict: Verdict, summary: Summary) -> None:
        """Append a script's suite to `top`: a case for each program that this build finished, and
        one for the verdict."""
        name = _replace_invalid(verdict.label)
        suite = Xml.SubElement(top, "testsuite", name=name)
        programs = self._finished.get(verdict.instance, [])
        for finished in sorted(programs, key=lambda event: event.index):
            label, seconds = _replace_invalid(finished.label), f"{finished.seconds:.3f}"
            case = Xml.SubElement(suite, "testcase", classname=name, name=label, time=seconds)
            if finished.status != Status.BUILT:
                kind = "failure" if finished.status == Status.FAILED else "error"
                # A schedule that does not compile is skipped if its script has all that it needs.
                if finished.status == Status.PRUNED or (kind == "failure" and verdict.ok):
                    kind = "skipped"
                log = find_message(finished, summary.failures)
                _add_outcome(case, kind, f"{finished.status}: {finished.reason}", log)
        case = Xml.SubElement(suite, "testcase", classname=name, name=name, time="0")
        if not verdict.ok:
            built = f"{verdict.built} of {verdict.schedules} built"
            _add_outcome(case, "failure", f"{verdict.reason} ({built})", "")
        _set_counts(suite)


def _add_outcome(case: Xml.Element, kind: str, message: str, log: str) -> None:
    """Append the element `kind` ("failure", "error" or "skipped") to a case, with a log if any."""
    element = Xml.SubElement(case, kind, message=_replace_invalid(to_one_line(message)))
    if log:
        log_element = Xml.SubElement(case, "system-out") if kind == "skipped" else element
        log_element.text = _replace_invalid(clean_text(log))


def _set_counts(element: Xml.Element) -> None:
    """Set the attributes that count the cases below an element, and the sum of their seconds."""
    cases = list(element.iter("testcase"))
    element.set("tests", str(len(cases)))
    for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        matching = [case for case in cases if case.find(kind) is not None]
        element.set(name, str(len(matching)))
    element.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")


def _replace_invalid(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


# The runner shows as many of each kind for a step.
_MAX_ANNOTATIONS = 10
# Programs that the title of an annotation names.
_MAX_LABELS = 3


class GithubReporter(Reporter):
    """Writes when the build has ended. `root` is the directory of the project."""

    def __init__(self, stderr: TextIO, environment: Mapping[str, str], root: str) -> None:
        self._out = OutputStream(stderr, "command")
        self._top = environment.get("GITHUB_WORKSPACE") or os.getcwd()
        self._root = root

    def emit(self, event: Event, /) -> None:
        if isinstance(event, Summary):
            for line in self._format_annotations(event):
                self._out.write(line)

    def _format_annotations(self, summary: Summary) -> Iterator[str]:
        """Yield a workflow command for each group of failures, each script that is not ok, and the
        error that stopped the build; at most `_MAX_ANNOTATIONS` of a kind."""
        level = "error" if summary.exit_status else "warning"
        for group in summary.failures[:_MAX_ANNOTATIONS]:
            labels = ", ".join(group.labels[:_MAX_LABELS])
            if group.count > _MAX_LABELS:
                labels += " …"
            title = f"{format_count(group.count, 'schedule')}: {labels}"
            message, location = group.message or group.error, self._locate_group(group)
            yield format_workflow_command(level, title, message, location)
        failed_verdicts = [verdict for verdict in summary.scripts if not verdict.ok]
        for verdict in failed_verdicts[:_MAX_ANNOTATIONS]:
            name = verdict.label
            yield format_workflow_command("error", name, f"{name}: {verdict.reason}")
        if summary.error is not None:
            yield format_workflow_command("error", "the build stopped", summary.error)

    def _locate_group(self, group: FailureGroup) -> dict[str, object]:
        """Return the properties `file`, `line` and `col` of a group's first error; {} if its file
        is not in the workspace."""
        location = find_first_error(group.message)
        file = None if location is None else find_path_below(location.file, self._root, self._top)
        if location is None or file is None:
            return {}
        return {"file": file, "line": location.line, "col": location.column}


def annotate_error(error: TilusbuildError, stderr: TextIO, environment: Mapping[str, str]) -> None:
    """Write an annotation for each diagnostic of an error, but at most `_MAX_ANNOTATIONS`. Each is
    at its place if that is in the workspace."""
    out = OutputStream(stderr, "command")
    diagnostics = error.diagnostics if isinstance(error, InputError) else (Diagnostic(str(error)),)
    top = environment.get("GITHUB_WORKSPACE") or os.getcwd()
    for diagnostic in diagnostics[:_MAX_ANNOTATIONS]:
        properties: dict[str, object] = {}
        location = diagnostic.location
        file = None if location is None else find_path_below(location.path, os.getcwd(), top)
        if location is not None and file is not None:
            properties = {"file": file, "line": location.line, "col": location.column}
        text = diagnostic.message + (f"\n{diagnostic.hint}" if diagnostic.hint else "")
        out.write(format_workflow_command(diagnostic.severity, "", text, properties))


def format_workflow_command(
    level: str, title: str, message: str, location: Mapping[str, object] | None = None
) -> str:
    """Return a workflow command, as "::error file=a.cu,line=3,title=…::message" and a newline.
    `location` has further properties; those that are None, and an empty title, are left out."""
    properties = {**(location or {}), "title": to_one_line(title) or None}
    assignments = []
    for name, value in properties.items():
        if value is not None:
            # In a property, a colon and a comma would end the value.
            escaped_value = _escape_data(str(value)).replace(":", "%3A").replace(",", "%2C")
            assignments.append(f"{name}={escaped_value}")
    separator = " " if assignments else ""
    text = _escape_data(clean_text(message).strip())
    return f"::{level}{separator}{','.join(assignments)}::{text}\n"


def _escape_data(text: str) -> str:
    # The percent sign first: the other escapes contain one.
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
