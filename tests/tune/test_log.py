"""The log of samples: what a kill leaves of it."""

import json
import math
from pathlib import Path

import pytest

from tilusbuild.tune.bench.bench import Answer
from tilusbuild.tune.bench.race import collect_logged_refusals
from tilusbuild.tune.bench.session import QuestionKey, SampleLog

FIRST: QuestionKey = ("case", "program", "sample", 0)
SECOND: QuestionKey = ("case", "program", "sample", 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of two answers."""
    log = SampleLog(str(tmp_path / "folder" / "log.jsonl"))
    log.append_line({"what": "run", "device": "é"})
    log.append_answer(FIRST, Answer("ok", 0.5, 1e-5))
    log.append_answer(SECOND, Answer("crash", 0.25, why="killed by SIGSEGV"))
    return tmp_path / "folder" / "log.jsonl"


def test_answers_are_read_as_they_were_written(path: Path) -> None:
    assert SampleLog(str(path)).answers == {
        FIRST: Answer("ok", 0.5, 1e-5),
        SECOND: Answer("crash", 0.25, why="killed by SIGSEGV"),
    }


def test_cut_anywhere_it_loses_the_last_line_only(path: Path) -> None:
    content = path.read_bytes()
    last = content.rstrip(b"\n").rindex(b"\n") + 1
    for size in range(last, len(content) - 1):
        path.write_bytes(content[:size])
        assert list(SampleLog(str(path)).answers) == [FIRST]


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"},
        {"seconds": -1.0},
        {"seconds": math.nan},
        {"cost": math.inf},
        {"number": "x"},
    ],
)
def test_an_impossible_answer_is_ignored(path: Path, change: dict[str, object]) -> None:
    run, first, second = (json.loads(line) for line in path.read_text().splitlines())
    path.write_text("".join(json.dumps(line) + "\n" for line in (run, {**first, **change}, second)))
    assert list(SampleLog(str(path)).answers) == [SECOND]


def test_after_a_cut_the_next_line_is_whole(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])
    log = SampleLog(str(path))
    log.append_answer(SECOND, Answer("ok", 1.0, 2e-5))
    assert SampleLog(str(path)).answers[SECOND] == Answer("ok", 1.0, 2e-5)


def test_of_two_answers_the_first_counts(path: Path) -> None:
    line = json.loads(path.read_text().splitlines()[1])
    with path.open("a") as file:
        file.write(json.dumps({**line, "seconds": 99.0}) + "\n")
    assert SampleLog(str(path)).answers[FIRST].seconds == 1e-5


@pytest.mark.parametrize("line", ["[]", "null", '{"case": 1}', '{"case"', "\x00", '{"what": "x"}'])
def test_strange_lines_count_for_nothing(path: Path, line: str) -> None:
    path.write_text(line + "\n" + path.read_text())
    assert list(SampleLog(str(path)).answers) == [FIRST, SECOND]


def test_sizes_of_another_type_do_not_reach_a_refusal() -> None:
    case: dict[str, object] = {"what": "case", "case": "c", "sizes": {"n": 4, "m": [1]}}
    crash = {"case": "c", "program": "p", "what": "check", "number": 0, "status": "crash"}
    rows = [case, {**crash, "cost": 1, "seconds": None, "why": "", "note": ""}]
    assert collect_logged_refusals(rows)["p"].sizes == {"n": 4}
