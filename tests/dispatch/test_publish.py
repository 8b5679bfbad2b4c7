"""What is written of decisions: whose bucket, which program, which row goes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.marks import Marks
from tilusbuild.runtime.device import cpu
from tilusbuild.runtime.tables import read_dispatch
from tilusbuild.tune.bench.race import Decision, Outcome
from tilusbuild.tune.bench.work import Candidate, Case
from tilusbuild.tune.tune import Publisher


def decision(n: int, *times: float | str) -> Decision:
    """Programs 0, 1, … with these times, or what they came to."""
    outcomes = []
    for index, time in enumerate(times):
        program = Candidate(index, str(index), "", {"variant": index})
        if isinstance(time, str):
            outcomes.append(Outcome(program, None, (), time, "as said"))
        else:
            outcomes.append(Outcome(program, time, (time,), "ok", ""))
    right = [outcome for outcome in outcomes if outcome.seconds is not None]
    winner = min(right, key=lambda outcome: outcome.seconds or 0.0) if right else None
    return Decision(Case(str(n), {"n": n}, (), True), winner, tuple(outcomes), 0, False)


@pytest.fixture
def publish(copied: Marks) -> Callable[..., Any]:
    """publish(decision, …) as one tuning; the script."""

    def make(*decisions: Decision) -> Any:
        script = copied.script("mark")
        publisher = Publisher(script, cpu().fingerprint(script.hash))
        for each in decisions:
            publisher.add(each.case.sizes, each)
        return script

    return make


def rows(script: Any) -> dict[int, int]:
    return {e.key[0]: e.program for table in read_dispatch(script).tables for e in table.entries}


def test_the_greatest_size_decides_for_its_bucket(publish: Callable[..., Any]) -> None:
    for sizes in ((1000, 1024, 900), (1024, 900, 1000)):
        decisions = [decision(n, 1.0 if n == 1024 else 3.0, 2.0) for n in sizes]
        assert rows(publish(*decisions)) == {1024: 0}


def test_what_is_wrong_at_any_size_of_a_bucket_is_not_chosen(publish) -> None:
    small, great = decision(1000, "incorrect", 3.0, 2.0), decision(1024, 1.0, 1.02, 1.011)
    for order in ((small, great), (great, small)):
        script = publish(*order)
        assert rows(script) == {1024: 1}, "within 1 % the earlier one"
        (measured,) = json.loads(Path(script.path, "latency/1024/measured.json").read_text())[
            "measured"
        ]
        assert measured["refused"] == {"0": "at n=1000: incorrect: as said"}
        assert set(measured["seconds"]) == {"1", "2"}


def test_a_row_that_no_program_is_left_for_goes(publish: Callable[..., Any]) -> None:
    assert rows(publish(decision(1024, 1.0, 2.0), decision(64, 2.0, 1.0))) == {1024: 0, 64: 1}
    assert rows(publish(decision(1024, "incorrect", "crash"))) == {64: 1}
    assert rows(publish(decision(60, "crash", 1.0), decision(64, 1.0, "incorrect"))) == {}
