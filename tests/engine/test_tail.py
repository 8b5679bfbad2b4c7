"""The order of compiling, played through without a clock: how long it takes and how short its tail
is, on machines of so many places."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_engine import FakeJob
from tilusbuild.engine.history import History
from tilusbuild.engine.states import ReadyQueue, Ticket


@dataclass(frozen=True)
class Played:
    """What came of it, in seconds."""

    end: float
    tail: float
    """The part at the end in which fewer ran than could."""


def played(seconds: Sequence[float], places: int, known: bool) -> Played:
    """Build programs that take so long, in plan order or by what a history knows of them."""
    history = History(None)
    jobs = [FakeJob(f"matmul {number}", index=number) for number in range(len(seconds))]
    if known:
        for job, length in zip(jobs, seconds, strict=True):
            history.record_compile(job, length, 0)
    line = ReadyQueue(
        Ticket(
            job, number, history.estimate_job(job) if known else history.estimate_job(FakeJob("?"))
        )
        for number, job in enumerate(jobs)
    )
    running: list[tuple[float, int]] = []
    now = full_until = 0.0
    while True:
        while len(running) < places:
            ticket = line.pop_next(now, lambda _: True, not running)
            if ticket is None:
                break
            heapq.heappush(running, (now + seconds[ticket.number], ticket.number))
        if not running:
            return Played(now, now - full_until)
        full = len(running) == places
        now, _ = heapq.heappop(running)
        if full:
            full_until = now


@pytest.mark.parametrize("places", [2, 8, 64])
def test_one_long_compile_at_the_end_of_the_plan_is_not_waited_for(places: int) -> None:
    seconds = [1.0] * (20 * places) + [10.0]
    blind, known = played(seconds, places, known=False), played(seconds, places, known=True)
    assert blind == Played(end=30.0, tail=10.0)
    assert known.end == math.ceil(sum(seconds) / places)
    assert known.tail <= 1.0


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=60), st.integers(1, 12))
def test_no_place_is_idle_while_something_waits(seconds: list[float], places: int) -> None:
    done = played(seconds, places, known=True)
    assert done.end <= sum(seconds) / places + max(seconds) + 1e-6
    assert done.tail <= max(seconds) + 1e-6
