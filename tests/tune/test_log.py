"""The log of samples: what a kill leaves of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilusbuild.tune.bench.bench import Answer
from tilusbuild.tune.bench.log import Key, Log

FIRST: Key = ("case", "program", "sample", 0)
SECOND: Key = ("case", "program", "sample", 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of two answers."""
    log = Log(str(tmp_path / "folder" / "log.jsonl"))
    log.note({"what": "run", "device": "é"})
    log.add(FIRST, Answer("ok", 0.5, 1e-5))
    log.add(SECOND, Answer("crash", 0.25, why="killed by SIGSEGV"))
    log.close()
    return tmp_path / "folder" / "log.jsonl"


def test_answers_are_read_as_they_were_written(path: Path) -> None:
    assert Log(str(path)).known == {
        FIRST: Answer("ok", 0.5, 1e-5),
        SECOND: Answer("crash", 0.25, why="killed by SIGSEGV"),
    }


def test_cut_anywhere_it_loses_the_last_line_only(path: Path) -> None:
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rindex(b"\n") + 1
    for size in range(last, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert list(Log(str(path)).known) == [FIRST]


def test_after_a_cut_the_next_line_is_whole(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])
    log = Log(str(path))
    log.add(SECOND, Answer("ok", 1.0, 2e-5))
    log.close()
    assert Log(str(path)).known[SECOND] == Answer("ok", 1.0, 2e-5)


def test_of_two_answers_the_first_counts(path: Path) -> None:
    line = json.loads(path.read_text().splitlines()[1])
    with path.open("a") as file:
        file.write(json.dumps({**line, "seconds": 99.0}) + "\n")
    assert Log(str(path)).known[FIRST].seconds == 1e-5


@pytest.mark.parametrize("line", ["[]", "null", '{"case": 1}', '{"case"', "\x00", '{"what": "x"}'])
def test_strange_lines_count_for_nothing(path: Path, line: str) -> None:
    path.write_text(line + "\n" + path.read_text())
    assert list(Log(str(path)).known) == [FIRST, SECOND]
