"""What programs cost, in sums and in lists of those that cost most."""

from typing import Any

from tilusbuild.overview.costs import (
    Cost,
    Usage,
    format_costs,
    rank_costs,
    sum_by_target,
    sum_costs,
)


def cost(number: int, **facts: Any) -> Cost:
    fields = {"script": "mm", "target": "h100", "hash": f"{number}" * 64, "status": "built"}
    return Cost(**{**fields, "label": f"mm/{number} h100", "values": {"tile": number}, **facts})


def test_what_is_not_known_counts_for_nothing() -> None:
    usages = (Usage("mm", "sm_80", 40, 0), Usage("mm", "sm_90a", 255, 16))
    totals = sum_costs(
        [
            cost(0, seconds=1.0, peak_rss=100, library=10, usages=usages),
            cost(1, seconds=3.0, peak_rss=50, library=20, usages=usages[:1]),
            cost(2, seconds=8.0, status="failed"),
            cost(3, status="missing"),
        ]
    )
    assert (totals.programs, totals.statuses["built"], totals.statuses["missing"]) == (4, 2, 1)
    assert (totals.timed, totals.seconds, totals.median, totals.longest) == (3, 12.0, 3.0, 8.0)
    assert (totals.peak_rss, totals.library) == (100, 30)
    assert (totals.registers, totals.spilling) == (255, 1)

    nothing = sum_costs([cost(0, status="missing")])
    assert (nothing.seconds, nothing.median, nothing.peak_rss, nothing.registers) == (
        0,
        *[None] * 3,
    )


def test_a_program_that_two_scripts_share_counts_once_in_all() -> None:
    shared = [cost(0), cost(0, script="mm2", seconds=2.0)]
    assert {pair: cost.timed for pair, cost in sum_by_target(shared).items()} == {
        ("mm", "h100"): 0,
        ("mm2", "h100"): 1,
    }
    assert (sum_costs(shared).programs, sum_costs(shared).seconds) == (1, 2.0)
    assert rank_costs(shared, lambda program_cost: program_cost.seconds, 5) == shared[1:]


def test_the_text_ranks_what_is_worth_it() -> None:
    text = format_costs(
        [
            cost(0, seconds=0.5, peak_rss=94_000_000, library=26_000),
            cost(1, seconds=1.5, usages=(Usage("mm", "sm_90a", 255, 24),), library=9_000),
            cost(2, status="missing"),
        ],
        top=1,
    )
    sums, remembered, *lists = text.split("\n\n")
    row = ["mm", "h100", 3, 2, 0, 2.0, 1.0, 1.5, 94, 255, 1, 35]
    assert sums.splitlines()[2].split() == [str(cell) for cell in row]
    assert remembered == "the compiles of 2 of 3 programs are remembered"
    first = [[line.split()[0] for line in part.splitlines()[2:]] for part in lists[1::2]]
    assert dict(zip(lists[::2], first, strict=True)) == {
        "Slowest to compile": ["mm/1"],
        "Most spills": ["mm/1"],
        "Largest libraries": ["mm/0"],
    }
    assert lists[3].splitlines()[2].split()[-4:] == ["255", "24", "9", "tile=1"]
