"""The choice for a case, on recorded timings."""

import threading
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.recorded_bench import Killed, Recorded, RecordedSource, make_case, make_work
from tilusbuild.errors import InputError
from tilusbuild.tune.bench.bench import WorkerUnusableError
from tilusbuild.tune.bench.race import (
    Decision,
    collect_logged_refusals,
    decide_cases,
)
from tilusbuild.tune.bench.scores import estimate_speedup, score_samples
from tilusbuild.tune.bench.search import (
    find_nearest_winners,
    index_programs,
    iterate_neighbors,
    search_programs,
)
from tilusbuild.tune.bench.session import (
    ROUNDS,
    Budget,
    Quota,
    SampleLog,
    TuningSession,
    read_lines,
)


def tuned(
    bench: Any,
    work: Any,
    cases: Any,
    log: Path,
    budget: Budget | None = None,
    rounds: int = ROUNDS,
    source: RecordedSource | None = None,
) -> list[Decision]:
    kept = SampleLog(str(log))
    benches = bench if isinstance(bench, list) else [bench]
    session = TuningSession(
        kept, benches, budget or Budget(), source or RecordedSource(), rounds=rounds
    )
    open_case = lambda number: nullcontext(cases[number])  # noqa: E731
    known = collect_logged_refusals(read_lines(str(log)))
    sizes = [case.sizes for case in cases]
    return decide_cases(session, work, open_case, sizes, 0, lambda _: None, known)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


@pytest.mark.parametrize(
    ("times", "rounds", "samples", "winner"),
    [
        ([1.0, 1.01, 1.1, 1.2, 1.4], ROUNDS, [32, 32, 4, 4, 2], 0),
        ([1.0, 1.01, 1.1], 8, [8, 8, 4], 0),
        ([1.0, 1.01, 1.1], 2, [2, 2, 2], 0),
        ([1.2, 1.005, 1.0, 1.009], ROUNDS, [32, 32, 32, 32], 1),
        ([1.4, 1.2, 1.0], ROUNDS, [32, 4, 32], 2),
    ],
    ids=["default", "8 rounds", "2 rounds", "a tie goes to the earlier one", "the fastest"],
)
def test_the_fast_ones_run_on_and_the_fastest_wins(
    log: Path, times: list[float], rounds: int, samples: list[int], winner: int
) -> None:
    bench = Recorded(lambda p: times[p.index], noise=0.0)
    (decision,) = tuned(bench, make_work(tile=range(len(times))), [make_case()], log, rounds=rounds)
    assert [len(o.samples) for o in decision.outcomes] == samples
    assert decision.winner == decision.outcomes[winner]
    assert decision.winner.seconds == pytest.approx(times[winner])


def test_one_slow_sample_ejects_no_program(log: Path) -> None:
    # As on a machine where another process ran meanwhile.
    bench = Recorded(lambda p: [1.0, 1.1][p.index], noise=0.0, first_factors={0: 50.0})
    (decision,) = tuned(bench, make_work(tile=range(2)), [make_case()], log)
    assert decision.winner is not None
    assert (decision.winner.program.index, decision.winner.seconds) == (0, 1.0)


def test_programs_of_the_same_bytes_are_measured_once_and_share_what_comes_of_it(
    log: Path,
) -> None:
    work = make_work(tile=range(4))
    contents = ("a", "b", "a", "b")
    programs = tuple(
        replace(program, content=content)
        for program, content in zip(work.programs, contents, strict=True)
    )
    bench = Recorded(lambda p: "incorrect" if p.index % 2 else 1.0, noise=0.0)
    (decision,) = tuned(bench, replace(work, default=2, programs=programs), [make_case()], log)
    assert {program for _, program, *_ in bench.asked} == {2, 1}, "the default, else the first"
    assert decision.winner is not None
    assert decision.winner.program.index == 2
    statuses = [(o.status, o.seconds, o.is_refusal) for o in decision.outcomes]
    assert statuses == [("ok", 1.0, False), ("incorrect", None, True)] * 2


@pytest.mark.parametrize(
    ("baseline", "samples", "text"),
    [
        ([2.0, 2.01, 1.99, 2.0], [1.0, 1.01, 0.99, 1.0], "2.01x (1.96-2.06)"),
        ([1.0, 1.2, 1.1, 0.9], [1.1, 0.9, 1.0, 1.2], "no difference"),
        ([2.0, 2.0], [1.0, 1.0], "2.00x (2.00-2.00)"),
        ([1.2] * 32, [1.0] * 32, "1.20x (1.20-1.20)"),
        ([1.2] * 32, ([1.0] * 8 + [1.3] * 8) * 2, "no difference"),
    ],
    ids=["one worker", "equal", "no spread", "four workers", "workers that differ"],
)
def test_a_speedup_is_claimed_only_where_its_interval_leaves_out_1(
    baseline: list[float], samples: list[float], text: str
) -> None:
    speedup = estimate_speedup(baseline, samples)
    assert speedup is not None
    assert speedup.format_text() == text


def test_there_is_no_speedup_without_two_samples_that_a_clock_saw() -> None:
    assert estimate_speedup([], [1.0, 1.0]) is None
    assert estimate_speedup([1.0, 1.0], [1.0]) is None
    assert estimate_speedup([1.0, 1.0], [0.0, 1.0]) is None


@pytest.mark.parametrize("spread", [0.001, 0.02, 0.2])
def test_another_measurement_is_in_the_interval_in_95_of_100(spread: float) -> None:
    random = Random(0)

    def measure() -> list[float]:
        """Return 32 samples by four workers, whose memory makes each of them faster or slower."""
        workers = [random.lognormvariate(0, spread) for _ in range(4)]
        return [w * random.lognormvariate(0, spread / 4) for w in workers for _ in range(8)]

    hits = 0
    for _ in range(1000):
        speedup = estimate_speedup(measure(), measure())
        assert speedup is not None
        ratio = score_samples(measure()) / score_samples(measure())
        hits += speedup.low <= ratio <= speedup.high
    assert hits >= 950


def test_rounds_are_interleaved(log: Path) -> None:
    work = make_work(tile=range(3))
    bench = Recorded(lambda p: 1.0, noise=0.0)
    tuned(bench, work, [make_case()], log)
    samples = [program for _, program, what, _ in bench.asked if what == "sample"]
    rounds = [samples[i : i + 3] for i in range(3, len(samples), 3)]
    assert all(sorted(round_programs) == [0, 1, 2] for round_programs in rounds)
    assert rounds[0] == rounds[1][::-1]


def test_an_unusable_program_is_excluded_with_its_reason(log: Path) -> None:
    work = make_work(tile=range(5))
    ends: list[str | float] = ["crash", "timeout", "incorrect", "launch error", 1.0]
    bench = Recorded(lambda p: ends[p.index])
    (decision,) = tuned(bench, work, [make_case()], log)
    assert [outcome.status for outcome in decision.outcomes] == [*ends[:4], "ok"]
    assert decision.outcomes[0].why == "as recorded"
    assert decision.winner is not None
    assert decision.winner.program.index == 4


def test_correctness_comes_before_any_timing(log: Path) -> None:
    bench = Recorded(lambda p: "incorrect")
    (decision,) = tuned(bench, make_work(tile=range(3)), [make_case()], log)
    assert decision.winner is None
    assert {what for _, _, what, _ in bench.asked} == {"check"}


def test_a_winner_that_computes_wrong_later_gives_way(log: Path) -> None:
    bench = Recorded(lambda p: "flaky" if p.index == 1 else 1e-3)
    (decision,) = tuned(bench, make_work(tile=range(3)), [make_case()], log)
    assert decision.winner is not None
    assert decision.winner.program.index != 1
    assert decision.outcomes[1].status == "incorrect"


@pytest.mark.parametrize(
    ("budget", "ahead"),
    [(Budget(), 0), (Budget(runs=90), 0), (Budget(seconds=0.9), 0), (Budget(runs=120), 2)],
    ids=["none", "runs", "time", "compiles"],
)
def test_interrupted_anywhere_and_resumed_it_ends_the_same(
    tmp_path: Path, budget: Budget, ahead: int
) -> None:
    work = make_work(tile=(1, 2, 4, 8), unroll=(1, 2, 3), split=(False, True))
    cases = [make_case("first", n=1), make_case("second", n=2)]

    def seconds(program: Any) -> float | str:
        if program.index % 11 == 3:
            return "crash"
        tile, unroll = program.schedule["tile"], program.schedule["unroll"]
        return 1e-3 * (1 + abs(tile - 4) / 8 + abs(unroll - 2) / 50)

    full_bench = Recorded(seconds)
    make_source = partial(RecordedSource, ahead, broken=(2, 9))
    expected = tuned(full_bench, work, cases, tmp_path / "whole", budget, source=make_source())
    for lives in range(0, len(full_bench.asked), 7):
        log = tmp_path / f"cut-{lives}"
        source = make_source()
        with pytest.raises(Killed):
            tuned(Recorded(seconds, lives=lives), work, cases, log, budget, source=source)
        rest, source = Recorded(seconds), make_source(built=source.built)
        assert tuned(rest, work, cases, log, budget, source=source) == expected
        assert len(rest.asked) == len(full_bench.asked) - lives, "nothing is measured twice"


def crowded(program: Any) -> float | str:
    """A time, or a crash that concerns all later cases."""
    return "crash" if program.index == 2 else 1e-3 * (1 + program.index / 5)


def test_cases_run_on_as_many_devices_as_there_are_and_end_as_on_one(tmp_path: Path) -> None:
    work, cases = make_work(tile=range(9)), [make_case(str(n)) for n in range(4)]
    met = threading.Barrier(2, timeout=60)

    class Meeting(Recorded):
        """Answers its first question while the other one is asked, too."""

        def _live(self, *question: Any) -> None:
            if not self.asked:
                met.wait()
            super()._live(*question)

    benches = [Meeting(crowded), Meeting(crowded)]
    together = tuned(benches, work, cases, tmp_path / "together")
    alone = tuned(Recorded(crowded), work, cases, tmp_path / "alone")
    winners = [decision.winner and decision.winner.program.index for decision in alone]
    assert [d.winner and d.winner.program.index for d in together] == winners == [0] * 4
    first, second = ({case for case, *_ in bench.asked} for bench in benches)
    assert (first | second, first & second) == ({"0", "1", "2", "3"}, set())


@pytest.mark.parametrize("count", [1, 2])
def test_a_log_of_two_devices_goes_on_as_they_would_have(tmp_path: Path, count: int) -> None:
    work, cases = make_work(tile=range(40)), [make_case(str(n)) for n in range(4)]
    log, budget = tmp_path / "log", Budget(runs=200)
    expected = tuned([Recorded(crowded), Recorded(crowded)], work, cases, log, budget)
    lines = log.read_bytes().splitlines(keepends=True)
    last = max(n for n, line in enumerate(lines) if b'"what": "case"' in line)
    for end in range(last + 1, len(lines), 9):
        log.write_bytes(b"".join(lines[:end]))
        benches = [Recorded(crowded) for _ in range(count)]
        assert tuned(benches, work, cases, log, budget) == expected
        assert sum(len(bench.asked) for bench in benches) == len(lines) - end


class Lost(Recorded):
    """A device that is gone after its `lives` answers."""

    def _live(self, *question: Any) -> None:
        try:
            super()._live(*question)
        except Killed:
            raise WorkerUnusableError("it is gone") from None


def test_the_case_of_a_lost_device_goes_elsewhere(tmp_path: Path) -> None:
    work, cases = make_work(tile=range(9)), [make_case(str(n)) for n in range(4)]
    expected = tuned(Recorded(crowded), work, cases, tmp_path / "alone")
    lost, other = Lost(crowded, lives=12), Recorded(crowded)
    decisions = tuned([lost, other], work, cases, tmp_path / "log")
    assert [d.winner for d in decisions] == [d.winner for d in expected]
    assert not {*lost.asked} & {*other.asked}, "nothing is measured twice"
    with pytest.raises(WorkerUnusableError, match="it is gone"):
        tuned([Lost(crowded, lives=3), Lost(crowded, lives=9)], work, cases, tmp_path / "none")


def test_a_program_that_is_new_is_all_that_is_measured(log: Path) -> None:
    seconds = lambda p: 1e-3 * (1 + p.schedule["tile"])  # noqa: E731
    tuned(Recorded(seconds), make_work(tile=range(6)), [make_case()], log)
    bench = Recorded(seconds)
    tuned(bench, make_work(tile=range(7)), [make_case()], log)
    assert {program for _, program, _, _ in bench.asked} == {6}


class TestBudget:
    def test_is_kept(self, log: Path) -> None:
        work = make_work(tile=range(1000))
        bench = Recorded(lambda p: 1e-3 * (1 + p.index))
        (decision,) = tuned(bench, work, [make_case()], log, Budget(runs=200))
        assert len(bench.asked) <= 200 + 8
        assert decision.unseen > 0
        assert decision.winner is not None

    def test_is_shared_by_the_cases(self, log: Path) -> None:
        work = make_work(tile=range(1000))
        cases = [make_case(str(n)) for n in range(4)]
        bench = Recorded(lambda p: 1e-3 * (1 + p.index))
        tuned(bench, work, cases, log, Budget(runs=400))
        count_by_case = Counter(case for case, *_ in bench.asked)
        assert len(count_by_case) == 4
        assert max(count_by_case.values()) <= 2 * min(count_by_case.values())

    def test_counts_compiles_which_begin_when_a_search_wants_them(self, log: Path) -> None:
        work = make_work(x=range(64), y=range(64))
        bench, source = Recorded(lambda p: 1e-3 * bowl(p)), RecordedSource(2, broken=range(1000))
        (decision,) = tuned(bench, work, [make_case()], log, Budget(runs=100), source=source)
        compiles = [row for row in read_lines(str(log)) if row.get("status") == "not built"]
        looked_at = {program for _, program, *_ in bench.asked}
        assert decision.winner is not None
        assert decision.unseen == 4096 - len(looked_at) - len(compiles)
        assert len(bench.asked) + len(looked_at) + len(compiles) <= 100 + 8
        assert len(looked_at) < len(source.built) <= 100 + 2 * 2
        assert source.built[:1] == [0], "the default, although it is not built"

    def test_is_written_as_time_or_runs(self) -> None:
        seconds = {"60s": 60, "1.5m": 90, "2h": 7200, "1h30m": 5400}
        for text, number in seconds.items():
            assert Budget.parse_budget(text) == Budget(seconds=number)
        assert Budget.parse_budget("500") == Budget(runs=500)
        for text in ("", "s", "-5", "1.5", "ten", "5 s 5", "1e9s", "٣", "٣s"):
            with pytest.raises(InputError, match="is not a budget"):
                Budget.parse_budget(text)


# Which programs are looked at when the budget does not suffice for all.
def looked(work: Any, seconds: Any, runs: int) -> dict[int, float | None]:
    """What was looked at, in order, each look being one run."""
    quota, seconds_by_index = Quota(Budget(runs=runs)), dict[int, Any]()

    def look(wanted: Any) -> float | None:
        program, *following = wanted
        assert not any(p.index in seconds_by_index for p in following)
        assert program.index not in seconds_by_index, "nobody is looked at twice"
        quota.runs += 1
        seconds_by_index[program.index] = seconds(program)
        return seconds_by_index[program.index]

    search_programs(work, quota, 1, look)
    return seconds_by_index


def bowl(program: Any) -> float:
    """Least at x = 11, y = 4."""
    return float(1 + (program.schedule["x"] - 11) ** 2 + 3 * (program.schedule["y"] - 4) ** 2)


def test_everything_with_a_budget_that_suffices() -> None:
    work = make_work(x=range(8), y=range(4))
    assert sorted(looked(work, bowl, 100)) == list(range(32))


def test_local_search_finds_what_the_sample_missed() -> None:
    work = make_work(x=range(40), y=range(40))
    seconds_by_index = looked(work, bowl, 200)
    assert len(seconds_by_index) <= 161
    assert min(seconds for seconds in seconds_by_index.values() if seconds is not None) == 1.0


def test_programs_that_are_out_do_not_stop_the_search() -> None:
    work = make_work(x=range(30), y=range(30))

    def seconds(program: Any) -> float | None:
        return None if program.index % 3 else bowl(program)

    assert len(looked(work, seconds, 100)) == 80


def test_neighbours_differ_in_one_parameter_and_the_nearest_come_first() -> None:
    work = make_work(x=(1, 2, 4, 8), kind=("a", "b", "c"))
    named = {p.index: tuple(p.schedule.values()) for p in work.programs}
    (start,) = (index for index, values in named.items() if values == (4, "b"))
    near = [named[index] for index in iterate_neighbors(index_programs(work), start)]
    assert near == [(2, "b"), (4, "a"), (4, "c"), (8, "b"), (1, "b")]


def test_a_search_begins_with_the_winners_at_the_nearest_sizes() -> None:
    """Given winners at three sizes, then a search looks at the default, and at theirs distance."""
    work = make_work(x=range(40), y=range(40))
    winners = [({"m": 1, "n": 8}, 700), ({"m": 64, "n": 8}, 800), ({"m": 70, "n": 16}, 900)]
    starts = find_nearest_winners(winners, {"m": 64, "n": 8, "k": 3})
    assert starts == [800, 900, 700]
    quota, looks = Quota(Budget(runs=20)), []

    def look(wanted: Any) -> float:
        looks.append(next(iter(wanted)))
        quota.runs += 1
        return bowl(looks[-1])

    search_programs(work, quota, 1, look, starts)
    assert [program.index for program in looks[:4]] == [work.baseline, 800, 900, 700]
