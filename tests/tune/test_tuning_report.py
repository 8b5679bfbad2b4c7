"""What people see while a tuning goes on."""

from __future__ import annotations

import io

import pytest

from tilusbuild.report.tuning import Pace, TuningReporter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_left_follows_from_the_cases_that_are_done() -> None:
    pace = Pace()
    pace.begin(programs=10, cases=4)
    for _ in range(50):
        pace.run(0.1, replayed=False)
    pace.end_case()
    assert pace.remaining() == pytest.approx(3 * 50 * 0.1)
    for _ in range(20):
        pace.run(0.1, replayed=False)
    assert pace.remaining() == pytest.approx(2 * 50 * 0.1 + 30 * 0.1)


def test_answers_from_the_log_take_no_time() -> None:
    pace = Pace()
    pace.begin(programs=10, cases=1)
    pace.run(5.0, replayed=True)
    assert pace.remaining() is None
    pace.run(0.5, replayed=False)
    assert pace.remaining() == pytest.approx(28 * 0.5)


def test_a_file_gets_a_line_now_and_then_and_every_decision() -> None:
    out, clock = io.StringIO(), Clock()
    reporter = TuningReporter(out, live=False, now=clock)
    reporter.begin("scale cpu", "a cpu", 10, 2)
    for _ in range(12):
        clock.now += 1
        reporter.run("sample", 0.5, False)
    reporter.end_case("n=16: program 3, 0.1 ms")
    assert out.getvalue().splitlines() == [
        "scale cpu on a cpu: 10 programs, 2 sizes",
        "size 1/2: run 5, about 0:28 left",
        "size 1/2: run 10, about 0:25 left",
        "n=16: program 3, 0.1 ms",
    ]


def test_a_terminal_gets_one_line_that_is_redrawn() -> None:
    out, clock = io.StringIO(), Clock()
    reporter = TuningReporter(out, live=True, now=clock)
    reporter.begin("scale cpu", "a cpu", 10, 1)
    for _ in range(2):
        clock.now += 1
        reporter.run("sample", 0.5, False)
    reporter.close()
    _, redrawn = out.getvalue().split("\n")
    assert redrawn.split("\r\x1b[2K") == [
        "",
        "size 1/1: run 1, about 0:14 left",
        "size 1/1: run 2, about 0:14 left",
        "",
    ]


def test_quiet_says_nothing() -> None:
    out = io.StringIO()
    reporter = TuningReporter(out, live=False, quiet=True, now=Clock())
    reporter.begin("scale cpu", "a cpu", 10, 1)
    reporter.run("sample", 0.5, False)
    reporter.end_case("n=16: program 3")
    assert out.getvalue() == ""
