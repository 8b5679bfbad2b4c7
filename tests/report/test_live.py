"""The live display on a terminal in memory: what stands there after each draw."""

from typing import Any

import pytest

from support.build_story import Clock, Screen, Story, summary
from tilusbuild.report.live import LiveReporter


@pytest.fixture
def reporter(screen: Screen, clock: Clock) -> LiveReporter:
    return LiveReporter(screen, colour=False, now=clock, size=screen.size)


def play(reporter: LiveReporter, clock: Clock, *tales: Any) -> None:
    for event in tales:
        reporter.emit(event)
    clock.time += 1.0
    reporter.tick()


def test_it_shows_how_far_the_build_is_and_what_runs(reporter, screen, clock) -> None:
    tale = Story(10, expected=4.0)
    play(reporter, clock, tale.start, tale.plan, tale.started(0), tale.started(1))
    play(reporter, clock, tale.finished(0, seconds=4.0), tale.started(2))
    assert screen.lines == [
        "10 programs: 10 to compile 2 at a time, about 0:20",
        "━" * 24 + " 1/10  0:16 left",
        "  matmul/1 sm_90a  2.0 of 4.00 s",
        "  matmul/2 sm_90a  1.0 of 4.00 s",
    ]


def test_equal_failures_stay_above_the_frame_as_one_line(reporter, screen, clock) -> None:
    tale = Story(6)
    failures = [tale.finished(index, "failed", reason="error: no") for index in range(3)]
    play(reporter, clock, tale.plan, *failures, tale.started(3))
    play(reporter, clock, tale.finished(3), tale.started(4))
    assert screen.lines[1] == "matmul/0 sm_90a does not compile: error: no"
    assert "4/6  3 failed" in screen.lines[2]
    assert screen.lines[3] == "  matmul/4 sm_90a  1.0 s"
    assert len(screen.lines) == 4


def test_the_end_leaves_only_what_is_worth_keeping(reporter, screen, clock) -> None:
    tale = Story(1)
    play(reporter, clock, tale.plan, tale.started(0))
    play(reporter, clock, tale.finished(0), summary(programs=1, compiled=1))
    reporter.close()
    assert screen.lines == [
        "1 program: 1 to compile 1 at a time",
        "1 program: 1 compiled (1.50 s)",
        "",
    ]


def test_a_build_with_nothing_to_do_draws_nothing(reporter, screen, clock) -> None:
    tale = Story(0)
    play(reporter, clock, tale.start, tale.plan)
    play(reporter, clock, summary(programs=7, cached=7))
    assert screen.lines == ["7 programs, nothing to do (1.50 s)", ""]


@pytest.mark.parametrize("columns", [1, 2, 10, 33, 59, 60, 200])
def test_no_line_wraps_however_narrow_the_terminal(columns, screen, clock) -> None:
    screen.columns = columns
    reporter = LiveReporter(screen, now=clock, size=screen.size)
    tale = Story(10, expected=4.0)
    reporter.emit(tale.started(0, "größe-" * 40))
    reporter._progress.total = 10
    for _ in range(3):
        clock.time += 1.0
        reporter.tick()
    assert len(screen.lines) == 2
    assert all(len(line) < max(2, columns) for line in screen.lines)


def test_wide_letters_count_double(screen: Screen, clock: Clock) -> None:
    reporter = LiveReporter(screen, colour=False, now=clock, size=screen.size)
    tale = Story(2)
    play(reporter, clock, tale.plan, tale.started(0, "矩阵" * 50))
    row = screen.lines[-1]
    assert sum(2 if ord(letter) > 0x2E80 else 1 for letter in row) <= 79


def test_a_terminal_made_narrower_leaves_no_rest_of_the_old_frame(reporter, screen, clock) -> None:
    tale = Story(10, expected=4.0)
    play(reporter, clock, tale.start, tale.plan, tale.started(0, "x" * 70), tale.started(1))
    screen.narrow(30)
    play(reporter, clock)
    frame = screen.lines[2:]
    assert [line.split()[0] for line in frame] == ["0/10", "x" * 11 + "…", "matmul/1"]
    screen.columns = 100
    play(reporter, clock)
    assert len(screen.lines) == 5


def test_many_compilers_are_summed_up(reporter: LiveReporter, screen: Screen, clock: Clock) -> None:
    tale = Story(64)
    play(reporter, clock, tale.plan, *(tale.started(i) for i in range(20)))
    assert screen.lines[-1] == "  … and 13 more"
    assert len(screen.lines) == 2 + 8
    screen.height = 2
    play(reporter, clock)
    assert len(screen.lines) == 2, "a low terminal shows only the head"


def test_each_frame_is_one_write(reporter: LiveReporter, screen: Screen, clock: Clock) -> None:
    tale = Story(4)
    play(reporter, clock, tale.plan, tale.started(0), tale.started(1))
    before = len(screen.writes)
    play(reporter, clock)
    assert len(screen.writes) == before + 1
    assert screen.writes[-1].startswith("\x1b[?2026h")
    assert screen.writes[-1].endswith("\x1b[?2026l")


def test_compiles_on_other_machines_are_shown_where_they_are(reporter, screen, clock) -> None:
    tale = Story(10)
    started = [tale.started(number) for number in range(5)]
    play(reporter, clock, tale.start, tale.plan, *started)
    placed = [
        tale.placed(1, "waiting"),
        tale.placed(2, "sent"),
        tale.placed(3, "queued"),
        tale.placed(4, "executing", "w-\x1b[31m7"),
    ]
    play(reporter, clock, *placed)
    assert screen.lines[-5:] == [
        "  matmul/0 sm_90a  2.0 s",
        "  matmul/1 sm_90a  2.0 s  waits for a core",
        "  matmul/2 sm_90a  2.0 s  sent",
        "  matmul/3 sm_90a  2.0 s  waits for a worker",
        "  matmul/4 sm_90a  2.0 s  by w-7",
    ]
    assert "  1 here, 3 elsewhere (1 queued), 1 waiting" in screen.lines[-6]
    play(reporter, clock, tale.placed(1, "here"), tale.finished(4))
    assert "  2 here, 2 elsewhere (1 queued)" in screen.lines[-5]
