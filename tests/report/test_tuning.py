"""What is said while a tuning or a long count goes on."""

import io

import pytest

from support.build_story import Clock
from tilusbuild.report import tuning
from tilusbuild.report.tuning import TuningReporter


@pytest.mark.parametrize("redraws", [False, True])
def test_the_end_of_a_count_is_told_once_and_only_where_it_was_spoken_of(redraws) -> None:
    clock = iter([0.0, 2.0, 2.0, 10.0, 10.0, 12.0, 12.1, 12.2])
    out = io.StringIO()
    short = tuning.counting(out, redraws, "short", clock.__next__)
    for _ in range(2):
        short(1.0)
    assert out.getvalue() == "", "it took two seconds, and there is nothing left to wait for"
    long = tuning.counting(out, redraws, "long", clock.__next__)
    for part in (0.0, 0.5, 1.0, 1.0):
        long(part)
    told = out.getvalue()
    assert told.count("50.0%") == 1
    assert told.count("\r\x1b[K" if redraws else "100.0%") == (2 if redraws else 1)


def test_a_file_gets_a_line_now_and_then_and_every_decision() -> None:
    out, clock = io.StringIO(), Clock()
    reporter = TuningReporter(out, live=False, now=clock)
    reporter.begin("scale cpu", "a cpu", 10, 2)
    for _ in range(12):
        clock.time += 1
        reporter.run(0.5, False)
    reporter.end_case("n=16: program 3, 0.1 ms")
    clock.time += 5
    reporter.run(9.0, True)  # from the log: it took no time
    assert out.getvalue().splitlines() == [
        "scale cpu on a cpu: 10 programs, 2 sizes",
        "size 1/2: run 5",
        "size 1/2: run 10",
        "n=16: program 3, 0.1 ms",
        "size 2/2: run 1, about 0:02 left",
    ]


def test_a_terminal_gets_one_line_that_is_redrawn() -> None:
    out, clock = io.StringIO(), Clock()
    reporter = TuningReporter(out, live=True, now=clock)
    reporter.begin("scale cpu", "a cpu", 10, 1)
    for _ in range(2):
        clock.time += 1
        reporter.run(0.5, False)
    reporter.close()
    _, redrawn = out.getvalue().split("\n")
    assert redrawn.split("\r\x1b[2K") == ["", "size 1/1: run 1", "size 1/1: run 2", ""]


def test_quiet_says_nothing() -> None:
    out = io.StringIO()
    reporter = TuningReporter(out, live=False, quiet=True, now=Clock())
    reporter.begin("scale cpu", "a cpu", 10, 1)
    reporter.run(0.5, False)
    reporter.end_case("n=16: program 3")
    assert out.getvalue() == ""
