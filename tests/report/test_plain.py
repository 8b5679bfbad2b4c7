"""Plain lines: what is printed, what is left out, and that nothing of it can hurt the build."""

import io
import os

from support.build_story import Clock, Story, summary
from tilusbuild.engine import events
from tilusbuild.report.plain import PlainReporter


def test_a_build_reads_as_lines(clock: Clock) -> None:
    out = io.StringIO()
    reporter, tale = PlainReporter(out, now=clock), Story(3)
    reporter.emit(tale.start)
    reporter.emit(tale.plan)
    reporter.emit(tale.finished(0, seconds=0.42))
    reporter.emit(tale.finished(1, "failed", reason="source.cu(3): error: no"))
    reporter.emit(tale.finished(2, cached=True))
    reporter.emit(summary(programs=3, compiled=1, cached=1, failed=1))
    assert out.getvalue().splitlines() == [
        "3 programs: 3 to compile 2 at a time",
        "[1/3] matmul/0 sm_90a 0.42 s",
        "[2/3] matmul/1 sm_90a does not compile: source.cu(3): error: no",
        "[3/3] matmul/2 sm_90a by another build",
        "3 programs: 1 compiled, 1 up to date, 1 failed (1.50 s)",
    ]


def test_after_the_first_few_one_line_a_second_and_the_last(clock: Clock) -> None:
    out = io.StringIO()
    reporter, tale = PlainReporter(out, now=clock), Story(1000)
    reporter.emit(tale.plan)
    for index in range(1000):
        clock.time = index / 100
        reporter.emit(tale.finished(index))
    counters = [line.split("]")[0].strip("[ ") for line in out.getvalue().splitlines()[1:]]
    assert counters[:11] == [*(f"{n}/1000" for n in range(1, 11)), "110/1000"]
    assert counters[-1] == "1000/1000"
    assert len(counters) < 25


def test_verbose_prints_every_program(clock: Clock) -> None:
    out = io.StringIO()
    reporter, tale = PlainReporter(out, verbose=True, now=clock), Story(100)
    for index in range(100):
        reporter.emit(tale.finished(index))
    assert len(out.getvalue().splitlines()) == 100


def test_quiet_prints_nothing_when_all_is_well() -> None:
    out = io.StringIO()
    reporter, tale = PlainReporter(out, quiet=True), Story(1)
    for event in (tale.start, tale.plan, tale.started(0), tale.finished(0), summary(programs=1)):
        reporter.emit(event)
    assert out.getvalue() == ""


def test_quiet_still_prints_what_failed() -> None:
    out = io.StringIO()
    reporter, tale = PlainReporter(out, quiet=True), Story(1)
    reporter.emit(tale.finished(0, "crashed", reason="signal 11"))
    verdict = events.Verdict(
        "matmul", ("matmul", "h100"), 1, 0, 0, 0, False, "none of it builds", "matmul h100"
    )
    reporter.emit(summary(programs=1, crashed=1, exit_status=1, scripts=(verdict,)))
    assert out.getvalue().splitlines() == [
        "[1/1] matmul/0 sm_90a was not compiled: signal 11",
        "error: matmul h100: none of it builds (0 of 1 built)",
    ]


def test_names_and_reasons_cannot_write_to_the_terminal() -> None:
    out = io.StringIO()
    reporter, tale = PlainReporter(out), Story(1)
    reporter.emit(tale.finished(0, "failed", label="a\nb\x1b[2J", reason="\x1b]0;title\x07x\x9b"))
    assert out.getvalue() == "[1/1] a\\nb does not compile: x\\x9b\n"


def test_a_closed_pipe_does_not_stop_the_build() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    reporter, tale = PlainReporter(stream), Story(2)
    reporter.emit(tale.finished(0))
    reporter.emit(tale.finished(1))
    stream.close()


def test_a_stream_that_knows_no_unicode_gets_escapes() -> None:
    raw = io.BytesIO()
    reporter = PlainReporter(io.TextIOWrapper(raw, encoding="ascii"))
    reporter.emit(Story(1).finished(0, label="größe"))
    assert raw.getvalue() == b"[1/1] gr\\xf6\\xdfe 1.00 s\n"
