"""What `--exec` runs: its variables, a long list, and its end."""

import queue
import re
from pathlib import Path

import pytest

from tilusbuild.process.local import LocalRunner
from tilusbuild.watch.background import CommandRun, LineSplitter
from tilusbuild.watch.events import CommandEnded

PATH = {"PATH": "/usr/bin:/bin"}


def ran(
    runner: LocalRunner, directory: Path, command: str, rebuilt: tuple[str, ...] = ()
) -> tuple[int | None, list[str]]:
    """The exit status of a command, and the lines that it printed."""
    ended: queue.Queue[CommandEnded] = queue.Queue()
    lines: list[str] = []
    path = {"PATH": f"{directory}:{PATH['PATH']}"}
    CommandRun(runner, command, str(directory), path, rebuilt, lines.append, ended.put)
    return ended.get(timeout=60).status, lines


def test_a_cancelled_one_has_no_status(runner: LocalRunner, tmp_path: Path) -> None:
    ended: queue.Queue[CommandEnded] = queue.Queue()
    started = CommandRun(runner, "sleep 1000", str(tmp_path), PATH, [], print, ended.put)
    started.cancel()
    assert ended.get(timeout=60).status is None


def test_lines_are_whole_whatever_pieces_they_come_in() -> None:
    output_lines: list[str] = []
    lines = LineSplitter(output_lines.append)
    text = "one\r\n\n10%\r50%\rall\nh\u00e4lf"
    for byte in text.encode():
        lines.add_output(bytes([byte]))
    assert output_lines == ["one", "", "all"]
    lines.flush_line()
    assert output_lines[3:] == ["h\u00e4lf"]


def test_it_knows_what_was_rebuilt_and_an_error_is_reported(runner, tmp_path) -> None:
    script = 'pwd; echo "$TILUSBUILD_REBUILT"; exit 7'
    assert ran(runner, tmp_path, script, ("scale", "add")) == (7, [str(tmp_path), "scale", "add"])
    status, (line,) = ran(runner, tmp_path / "gone", "true")
    assert status == 127
    assert "gone" in line


@pytest.mark.parametrize("rebuilt", [(), ("scale", "add")])
def test_the_documented_command_runs_whatever_was_rebuilt(runner, tmp_path, rebuilt) -> None:
    page = (Path(__file__).parents[2] / "docs" / "watch.md").read_text()
    (command,) = re.findall(r"tilusbuild watch --exec '(.*)'", page)
    called = tmp_path / "tilusbuild"
    called.write_text('#!/bin/sh\n[ "$#" = 2 ] && echo "$@"\n')
    called.chmod(0o755)
    assert ran(runner, tmp_path, command, rebuilt) == (0, [f"run {name}" for name in rebuilt])
