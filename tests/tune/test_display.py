"""What is said while a tuning goes on."""

import io

from support.build_story import Clock
from tilusbuild.tune.bench.bench import Answer
from tilusbuild.tune.display import TuningReporter


def test_a_file_gets_a_line_now_and_then_and_every_decision() -> None:
    out, clock = io.StringIO(), Clock()
    reporter = TuningReporter(out, live=False, now=clock)
    reporter.begin_tuning("scale cpu", "a cpu", 10, 2)
    for _ in range(12):
        clock.time += 1
        reporter.report_run(Answer("ok", 0.5), False)
    reporter.end_case("n=16: program 3, 0.1 ms")
    clock.time += 5
    reporter.report_run(Answer("ok", 9.0), True)  # from the log: it took no time
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
    reporter.begin_tuning("scale cpu", "a cpu", 10, 1)
    for _ in range(2):
        clock.time += 1
        reporter.report_run(Answer("ok", 0.5), False)
    reporter.close()
    _, redrawn = out.getvalue().split("\n")
    assert redrawn.split("\r\x1b[2K") == ["", "size 1/1: run 1", "size 1/1: run 2", ""]


def test_quiet_says_nothing() -> None:
    out = io.StringIO()
    reporter = TuningReporter(out, live=False, quiet=True, now=Clock())
    reporter.begin_tuning("scale cpu", "a cpu", 10, 1)
    reporter.report_run(Answer("ok", 0.5), False)
    reporter.end_case("n=16: program 3")
    assert out.getvalue() == ""
