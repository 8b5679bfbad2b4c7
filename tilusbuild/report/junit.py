"""A build as a JUnit file, the form of test results that CI systems show.

A suite is a script with its constants and target. Its cases are the script itself, and every
program that this build compiled; those that were there before are in its counts only. A case fails
when it fails the build: a schedule that does not compile while its script has what it needs counts
as skipped, with the reason, and so does one that is pruned.
"""

from __future__ import annotations

import re
from typing import TextIO
from xml.etree import ElementTree as Xml

from tilusbuild.engine.events import Event, Finished, Summary, Verdict
from tilusbuild.report.failures import message_of
from tilusbuild.report.text import Stream, cleaned, one_line
from tilusbuild.state.files import write_atomic
from tilusbuild.status import Status

_NOT_XML = re.compile("[^\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What no XML 1.0 document can hold (its section 2.2)."""


class JUnitReporter:
    """Writes the file at `path` when the build has ended; a failure to is reported on `stderr`."""

    def __init__(self, path: str, stderr: TextIO) -> None:
        self._path = path
        self._stderr = Stream(stderr)
        self._finished: dict[tuple[str, ...], list[Finished]] = {}

    def emit(self, event: Event, /) -> None:
        match event:
            case Finished():
                self._finished.setdefault(event.instance, []).append(event)
            case Summary():
                self._write(event)

    def tick(self) -> None: ...

    def close(self) -> None: ...

    def _write(self, summary: Summary) -> None:
        try:
            write_atomic(self._path, self.document(summary))
        except OSError as error:
            self._stderr.write(f"error: cannot write {self._path}: {error.strerror}\n")

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
        name = _text(" ".join(verdict.instance) or verdict.script)
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
    said = Xml.SubElement(case, kind, message=_text(one_line(message)))
    if log:
        where = Xml.SubElement(case, "system-out") if kind == "skipped" else said
        where.text = _text(cleaned(log))


def _count(element: Xml.Element) -> None:
    cases = list(element.iter("testcase"))
    element.set("tests", str(len(cases)))
    for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(name, str(sum(case.find(kind) is not None for case in cases)))
    element.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")


def _text(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
