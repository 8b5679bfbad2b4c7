"""The JUnit file: what failed the build fails there, and nothing else does."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import build_story
from tilusbuild.engine.events import FailureGroup, Finished, Summary, Verdict
from tilusbuild.report.ci import JUnitReporter
from tilusbuild.status import Status

INSTANCE = ("matmul", "dtype=f16", "h100")


def finished(index: int, status: str = Status.BUILT, reason: str = "") -> Finished:
    changes = {"label": f"matmul/{index} h100", "instance": INSTANCE, "seconds": 1.5}
    return build_story.Story(3).finished(index, Status(status), reason=reason, **changes)


def summary(*, ok: bool, **more: Any) -> Summary:
    reason = "" if ok else "its default schedule does not compile"
    verdict = Verdict("matmul", INSTANCE, 9, 7, 1, 1, ok, reason, "matmul[dtype=f16] h100")
    fields = {"seconds": 3.25, "exit_status": int(not ok), "scripts": (verdict,)}
    return build_story.summary(**fields, **more)


def written(path: Path, events: list[Finished], last: Summary) -> Xml.Element:
    """The file that a build with these events writes."""
    reporter = JUnitReporter(str(path))
    for event in (*events, last):
        reporter.emit(event)
    assert reporter.lost is None
    return Xml.fromstring(path.read_bytes())


def outcomes(top: Xml.Element) -> dict[str, str]:
    """What each case came to, by its name."""
    result_by_name = {}
    for case in top.iter("testcase"):
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        result_by_name[str(case.get("name"))] = kinds[0] if kinds else "passed"
    return result_by_name


def test_a_script_and_each_program_compiled_are_cases_of_one_suite(tmp_path: Path) -> None:
    top = written(tmp_path / "junit.xml", [finished(2), finished(0)], summary(ok=True))
    (suite,) = top
    assert suite.get("name") == "matmul[dtype=f16] h100"
    names = ["matmul/0 h100", "matmul/2 h100", "matmul[dtype=f16] h100"]
    assert [case.get("name") for case in suite] == names
    assert {case.get("classname") for case in suite} == {"matmul[dtype=f16] h100"}
    assert [case.get("time") for case in suite] == ["1.500", "1.500", "0"]
    names = ["tests", "failures", "errors", "skipped", "time"]
    assert [top.get(name) for name in names] == ["3", "0", "0", "0", "3.250"]


@pytest.mark.parametrize(
    ("status", "ok", "outcome"),
    [
        ("failed", True, "skipped"),
        ("failed", False, "failure"),
        ("pruned", False, "skipped"),
        ("crashed", False, "error"),
        ("timed_out", False, "error"),
    ],
)
def test_a_schedule_fails_when_it_fails_the_build(tmp_path, status, ok, outcome) -> None:
    top = written(tmp_path / "f", [finished(0, status, "no")], summary(ok=ok))
    assert outcomes(top)["matmul/0 h100"] == outcome
    assert outcomes(top)["matmul[dtype=f16] h100"] == ("passed" if ok else "failure")


def test_a_failure_shows_the_log_with_the_templates_own_places(tmp_path: Path) -> None:
    log = 'kernels/matmul.cu.j2(12): error: tile "16" is\x1b[31m <too> wide & more\n'
    group = FailureGroup('error: tile "16" is wide', 2, ("matmul/0 h100",), "failed", log, None)
    events = [finished(0, "failed", "error: x"), finished(1, "failed", 'error: tile "8" is wide')]
    top = written(tmp_path / "f", events, summary(ok=False, failures=(group,)))
    texts = [failure.text for failure in top.iter("failure")][:2]
    assert texts == ['kernels/matmul.cu.j2(12): error: tile "16" is <too> wide & more\n'] * 2


def test_what_stopped_the_build_or_the_file_is_known(tmp_path: Path) -> None:
    top = written(tmp_path / "f", [], summary(ok=True, error="No space left on device"))
    assert outcomes(top) == {"matmul[dtype=f16] h100": "passed", "build": "error"}
    reporter = JUnitReporter(str(tmp_path / "no/such"))
    reporter.emit(summary(ok=True))
    assert "No such file" in str(reporter.lost)


@given(st.text())
def test_whatever_a_compiler_prints_the_file_is_xml(text: str) -> None:
    group = FailureGroup(text, 1, ("matmul/0 h100",), "failed", text, None)
    reporter = JUnitReporter("unused")
    reporter.emit(finished(0, "failed", text))
    document = reporter.format_document(summary(ok=False, failures=(group,), error=text))
    assert len(list(Xml.fromstring(document).iter("testcase"))) == 3
