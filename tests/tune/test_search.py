"""Which programs are looked at when the budget does not suffice for all."""

from typing import Any

from support.recorded_bench import make_work
from tilusbuild.tune.bench.race import Neighbourhood, look_around
from tilusbuild.tune.bench.session import Budget, BudgetSpent, Quota


def looked(work: Any, seconds: Any, runs: int | None) -> dict[int, float | None]:
    """What was looked at, in order, each look being one run."""
    spent, found = BudgetSpent(), dict[int, Any]()

    def look(program: Any) -> float | None:
        assert program.index not in found, "nobody is looked at twice"
        spent.runs += 1
        found[program.index] = seconds(program)
        return found[program.index]

    look_around(work, Quota(Budget(runs=runs), spent, 1), look, seed=1)
    return found


def bowl(program: Any) -> float:
    """Least at x = 11, y = 4."""
    return float(1 + (program.schedule["x"] - 11) ** 2 + 3 * (program.schedule["y"] - 4) ** 2)


def test_without_a_budget_everything_in_order() -> None:
    work = make_work(x=range(8), y=range(4))
    assert list(looked(work, bowl, None)) == list(range(32))


def test_with_a_budget_that_suffices_everything() -> None:
    work = make_work(x=range(8), y=range(4))
    assert sorted(looked(work, bowl, 100)) == list(range(32))


def test_local_search_finds_what_the_sample_missed() -> None:
    work = make_work(x=range(40), y=range(40))
    found = looked(work, bowl, 200)
    assert len(found) <= 161
    assert min(seconds for seconds in found.values() if seconds is not None) == 1.0


def test_programs_that_are_out_do_not_stop_the_search() -> None:
    work = make_work(x=range(30), y=range(30))

    def seconds(program: Any) -> float | None:
        return None if program.index % 3 else bowl(program)

    assert len(looked(work, seconds, 100)) == 80


def test_neighbours_differ_in_one_parameter() -> None:
    work = make_work(x=(1, 2, 4, 8), kind=("a", "b", "c"))
    around = Neighbourhood(work)
    (start,) = (p for p in work.programs if p.schedule == {"x": 4, "kind": "b"})
    near = [tuple(p.schedule.values()) for p in around.of(start.index)]
    assert near == [(2, "b"), (8, "b"), (4, "a"), (4, "c")]
