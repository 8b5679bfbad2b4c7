"""Lines of `report --json` to draw: of any size, with names that would be markup if they could."""

from collections.abc import Iterator
from itertools import product

from tilusbuild.builder.timeline import BuildTimeline, TimedAttempt
from tilusbuild.cli.plan import SpaceLine
from tilusbuild.expr import Value
from tilusbuild.overview.costs import Cost, Usage, sum_costs
from tilusbuild.overview.measured import MeasuredLine
from tilusbuild.overview.verb_dispatch import CoverageLine
from tilusbuild.overview.verb_report import CostSummary, ProjectLine
from tilusbuild.report.jsonl import JsonLine, format_json_line
from tilusbuild.space.report import DeclaredParameter, RuleEffect
from tilusbuild.status import Status

HOSTILE = '<img src=x onerror="document.title=1">'
"""The name of a script."""
LOG = "</script><script>alert(1)</script>\nkernels/a.cu.j2(3): error: <b>bold</b>"
TILES = (16, 32, 64, 128)


PARAMETERS = (
    *(
        DeclaredParameter((name,), tuple((tile,) for tile in TILES))
        for name in ("tile_m", "tile_n")
    ),
    DeclaredParameter(("stages",), tuple((stages,) for stages in range(5))),
    DeclaredParameter(("order",), tuple((f"<i>{order}</i>",) for order in range(4))),
)
REMOVED = tuple(
    1 if tile_n >= 64 and stages == 2 else -1
    for _, tile_n, stages, _ in product(TILES, TILES, range(5), range(4))
)
"""By which rule a combination goes: the second of stages and tile_n."""


def costs(count: int) -> list[Cost]:
    """So many programs of one instance; every seventh does not compile."""
    return [_cost(number) for number in range(count)]


def _cost(number: int) -> Cost:
    failed = number % 7 == 6
    values: dict[str, Value] = {
        "tile_m": TILES[number % 4],
        "tile_n": TILES[number // 4 % 4],
        "stages": number // 16 % 5,
        "order": f"<i>{number // 80}</i>",
    }
    return Cost(
        script=HOSTILE,
        target="gpu",
        label=f"{HOSTILE}/{number} gpu",
        hash=f"{number:064x}",
        status=Status.FAILED if failed else Status.BUILT,
        values=values,
        seconds=1 + number % 13 / 4,
        peak_rss=100_000_000 + number,
        library=None if failed else 20_000 + number % 100,
        usages=() if failed else (Usage("k", "sm_80", 32 + number % 97, number % 5 * 8),),
        instance=f"{HOSTILE} gpu",
        index=number,
        smem=None if failed else 1024 * (number % 48),
        occupancy=None if failed else (1 + number % 8) / 8,
        reason="kernels/a.cu.j2:3: error: <b>bold</b>" if failed else "",
        log=LOG if number == 6 else "",
    )


def timeline(program_costs: list[Cost], places: int = 4) -> BuildTimeline:
    """A build of all of them."""
    free = [0.5] * places
    attempts = []
    for cost in program_costs:
        start = min(free)
        end = start + (cost.seconds or 0)
        free[free.index(start)] = end
        attempts.append(
            TimedAttempt(
                hash=cost.hash,
                label=cost.label,
                start=start,
                end=end,
                status=str(cost.status),
                reason=cost.reason,
                seconds=cost.seconds or 0,
                peak_rss=cost.peak_rss or 0,
                elsewhere="",
            )
        )
    end = max(free)
    return BuildTimeline(
        began=1.7e9,
        seconds=end + 0.1,
        version="0",
        jobs=places,
        planned=0.5,
        attempts=tuple(attempts),
    )


def _measured(program_costs: list[Cost]) -> Iterator[MeasuredLine]:
    usable = [cost for cost in program_costs if cost.status == Status.BUILT][:40]
    for m in (16, 128):
        for n in (64, 512):
            times = {str(c.index): 1e-5 * (1 + (c.index * m + n) % 17 / 9) for c in usable}
            ranked = sorted(times, key=lambda program: times[program])
            yield MeasuredLine(
                instance=f"{HOSTILE} gpu",
                device="GPU <0>",
                sizes={"m": m, "n": n},
                program=int(ranked[m == 16]),
                seconds=times,
                refused={"6": "incorrect: <b>"},
                bytes=4.0 * m * n,
                flops=200.0 * m * n,
                bandwidth=1e12,
                peak=1e13,
            )


def lines(count: int) -> list[str]:
    """A whole report of so many programs."""
    program_costs = costs(count)
    rules = (RuleEffect("<u>fits</u>", 600, 700, False), RuleEffect("few", 300, 320, False))
    instance = f"{HOSTILE} gpu"
    json_lines: list[JsonLine] = [
        ProjectLine("<b>p</b>", "1", "0"),
        *program_costs,
        SpaceLine(instance, 1200, None, 300, rules, PARAMETERS, REMOVED),
        *_measured(program_costs),
        CoverageLine(instance, {"m": 16, "n": 64}, 1, "measured", "measured", None),
        CoverageLine(instance, {"m": 7, "n": 7}, 1, "nearest", "nearest <b>", None),
        timeline(program_costs),
        CostSummary(sum_costs(program_costs)),
    ]
    return [format_json_line(line) for line in json_lines]
