"""What is written for which event, to a stream in memory."""

import io
import json
from typing import Any

import pytest

from support.build_story import summary
from tilusbuild.engine.events import Event
from tilusbuild.report.plain import PlainReporter
from tilusbuild.watch import events
from tilusbuild.watch.screen import Screen

CHANGED = events.Changed(("kernels/a.j2", "include/b.h"), 3, ("scale gpu", "add gpu"))
WATCHING = events.Watching(12, True)
PROBLEM = events.Problem("kernels/a.j2:1:2: error: no\x1b[31m")
STARTED = events.CommandStarted("make")
ENDED = events.CommandEnded("make", 2, 1.0)


def screen_on(err: io.StringIO, **how: Any) -> Screen:
    options = {"json": None, **dict.fromkeys(("terminal", "quiet", "verbose", "clear"), False)}
    return Screen(reporter=lambda: PlainReporter(err), stderr=err, **{**options, **how})


def shown(*sequence: Event, **how: Any) -> str:
    """What stderr has after these events."""
    err = io.StringIO()
    screen = screen_on(err, **how)
    for event in sequence:
        screen.emit(event)
    screen.close()
    return err.getvalue()


def test_plain_lines_elsewhere() -> None:
    rebuilt = events.Rebuilt(True, 2, ("scale",), 0.5, False)
    many = events.Changed(("a.h",), 0, tuple(f"scale t{number}" for number in range(7)))
    assert shown(CHANGED, rebuilt, WATCHING, many).splitlines() == [
        "changed: kernels/a.j2, include/b.h and 3 more → scale gpu, add gpu",
        "rebuilt 2 programs of scale, 0.50 s after the save",
        "changed: a.h → scale t0, scale t1, scale t2, scale t3, scale t4 and 2 more",
    ]


@pytest.mark.parametrize("programs", [0, 3])
def test_one_line_says_that_nothing_was_built(programs: int) -> None:
    err = io.StringIO()
    screen = screen_on(err)
    screen.start_display().emit(summary(programs=programs, cached=programs))
    screen.emit(events.Rebuilt(False, 0, (), 0.5, False))
    screen.start_display().emit(summary(programs=programs + 1, cached=programs, compiled=1))
    first, second = err.getvalue().splitlines()
    assert first == "not built (0.50 s after the save)"
    assert "1 compiled" in second


def test_the_last_line_of_a_terminal_is_taken_away_before_another() -> None:
    text = shown(WATCHING, CHANGED, terminal=True)
    assert text.startswith("watching 12 paths; Ctrl-C ends\r\x1b[2Kchanged: ")
    assert shown(WATCHING, terminal=True).endswith("\r\x1b[2K"), "and at the end"


def test_lines_go_above_the_line_of_the_running_command() -> None:
    sequence = (STARTED, events.Printed("one\x1b[31m"), ENDED, WATCHING)
    assert shown(*sequence, terminal=True).split("\r\x1b[2K") == [
        "running make; Ctrl-C ends",
        "one\nrunning make; Ctrl-C ends",
        "error: make: exit status 2\nwatching 12 paths; Ctrl-C ends",
        "",
    ]
    assert shown(*sequence).splitlines() == ["one", "error: make: exit status 2"]


def test_a_long_command_leaves_the_last_line_one_line() -> None:
    command = "make " + "x" * 200
    text = shown(events.CommandStarted(command), terminal=True).split("\r")[0]
    assert len(text) < 80
    assert text.startswith("running make xxx")


def test_clear_is_for_terminals() -> None:
    assert "\x1b[2J" in shown(CHANGED, terminal=True, clear=True)
    assert "\x1b" not in shown(CHANGED, clear=True)


def test_errors_are_shown_also_when_quiet_and_without_foreign_escapes() -> None:
    text = shown(CHANGED, PROBLEM, ENDED, WATCHING, quiet=True, terminal=True)
    assert "changed" not in text
    assert "kernels/a.j2:1:2: error: no" in text
    assert "error: make: exit status 2" in text
    assert "\x1b" not in text


def test_json_has_every_event() -> None:
    out = io.StringIO()
    shown(CHANGED, PROBLEM, STARTED, events.Printed("one"), ENDED, WATCHING, json=out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    names = ["changed", "problem", "running", "output", "command", "watching"]
    assert [line["event"] for line in lines] == names
    assert lines[0]["paths"] == ["kernels/a.j2", "include/b.h"]
    assert (lines[3]["line"], lines[4]["status"]) == ("one", 2)
