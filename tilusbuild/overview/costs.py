"""What programs cost: to compile in seconds and memory, as code in registers, spills and bytes.

Compiles are known from the cache's history, code from the cache's entries. The history keeps one
record for each place in a plan, and only a record of this very program counts: after an edit, or a
build of another level, the time of another program may be there. What is not known is None, counts
as nothing and is an empty cell; a program that several scripts share counts once in the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.cache.entries import get_product, lookup_entry, read_compiler_log
from tilusbuild.cache.tree import Tree
from tilusbuild.dispatch.model import list_resources
from tilusbuild.engine.attempt import locate_reason
from tilusbuild.engine.history import History
from tilusbuild.expr import Value
from tilusbuild.plan.planner import Plan, ProgramJob, iterate_jobs
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.report.text import format_count
from tilusbuild.status import KNOWN_IN_CACHE, Status
from tilusbuild.table import Cell, format_cell, format_table

_MAX_LOG = 20_000


class Usage(Struct, frozen=True):
    """The registers of a thread of one kernel for one architecture, and the bytes of its spill
    stores and spill loads together."""

    kernel: str
    arch: str
    registers: int
    spills: int


class Cost(JsonLine, frozen=True):
    """What a program costs. Also a line of `report --json`."""

    event: ClassVar[str] = "program"
    script: str
    target: str
    label: str
    hash: str
    status: Status
    values: Mapping[str, Value]
    """Constants, parameters and derived values."""
    seconds: float | None = None
    """Of its last compile: the sum over the compile's processes."""
    peak_rss: int | None = None
    """Bytes: the largest of the compile's processes."""
    library: int | None = None
    """Bytes of lib.so."""
    usages: tuple[Usage, ...] = ()
    instance: str = ""
    index: int = 0
    """Its number in the instance."""
    default: bool = False
    """Whether it is the instance's default schedule."""
    smem: int | None = None
    """Bytes of shared memory of a block, when the schedule fixes them."""
    occupancy: float | None = None
    """The share of a multiprocessor's warps that fit, from 0 to 1."""
    blocks: int | None = None
    """Blocks that fit on a multiprocessor at once."""
    reason: str = ""
    """Why it is not built, at the template's place."""
    log: str = ""
    """The compiler's, of the first program of an instance that has this reason."""

    @property
    def registers(self) -> int | None:
        """The most that one of its kernels takes."""
        return max((usage.registers for usage in self.usages), default=None)

    @property
    def spills(self) -> int | None:
        """The most bytes that one of its kernels spills."""
        return max((usage.spills for usage in self.usages), default=None)


class Total(Struct, frozen=True):
    """Several programs together."""

    programs: int
    statuses: Mapping[str, int]
    timed: int
    """Of how many the seconds are known: the next three fields are about these."""
    seconds: float
    median: float | None
    longest: float | None
    peak_rss: int | None
    library: int
    registers: int | None
    spilling: int
    """How many spill."""


def collect_costs(plan: Plan, cache: Tree) -> list[Cost]:
    """Return every program, in plan order. Reads only."""
    history = History(cache.state_path)
    reasons: set[tuple[str, str]] = set()
    return [_make_cost(job, cache, history, reasons) for job in iterate_jobs(plan)]


def _make_cost(
    job: ProgramJob, cache: Tree, history: History, reasons: set[tuple[str, str]]
) -> Cost:
    """Return the cost of a job, with the status `MISSING` if its program has no entry.

    `reasons` has the pairs of instance and reason so far. The first program with a pair gets the
    compiler's log, and adds its pair.
    """
    last = history.find_measurement(job)
    values = job.planned.spec.merge_values(job.schedule)
    cost = Cost(
        script=job.script,
        target=job.planned.target.name,
        label=job.label,
        hash=job.hash,
        status=Status.MISSING,
        values=values,
        seconds=last.seconds,
        peak_rss=last.peak_rss,
        instance=job.planned.label,
        index=job.index,
        default=job.is_default,
    )
    if (entry := lookup_entry(cache, job.hash)) is None:
        return cost
    resources = list_resources(job.planned, values, entry.meta)
    static, dynamic = resources.get("static_smem"), resources.get("dynamic_smem")
    if static is not None and dynamic is not None:
        cost = replace(
            cost,
            smem=int(static) + int(dynamic),
            occupancy=resources.get("occupancy"),
            blocks=resources.get("blocks_per_sm"),
        )
    reason, log = str(entry.meta.get("reason") or ""), ""
    # Only the first program with a reason has a log: else a report of a thousand equal failures
    # would hold the same log a thousand times.
    if reason and (job.planned.label, reason) not in reasons:
        reasons.add((job.planned.label, reason))
        log = job.translate_log(read_compiler_log(cache, job.hash)[:_MAX_LOG])
    usages = []
    # `kernels` of meta.json is such as {"gemm": {"sm_90a": {"registers": 168, …}}}.
    for kernel, usage_by_arch in entry.meta["kernels"].items():
        for arch, usage in usage_by_arch.items():
            spills = usage["spill_stores"] + usage["spill_loads"]
            usages.append(Usage(kernel, arch, usage["registers"], spills))
    return replace(
        cost,
        status=entry.status,
        library=get_product(entry.meta).size,
        usages=tuple(usages),
        reason=locate_reason(job, reason),
        log=log,
    )


# Sums and text.


def sum_costs(costs: Iterable[Cost]) -> Total:
    """Return the sums of some programs, each counted once."""
    unique = _drop_duplicates(costs)
    seconds = [cost.seconds for cost in unique if cost.seconds is not None]
    peaks = [cost.peak_rss for cost in unique if cost.peak_rss is not None]
    registers = [cost.registers for cost in unique if cost.registers is not None]
    statuses = [cost.status for cost in unique]
    return Total(
        programs=len(unique),
        statuses={status: statuses.count(status) for status in KNOWN_IN_CACHE},
        timed=len(seconds),
        seconds=round(sum(seconds), 3),
        median=median(seconds) if seconds else None,
        longest=max(seconds, default=None),
        peak_rss=max(peaks, default=None),
        library=sum(cost.library or 0 for cost in unique),
        registers=max(registers, default=None),
        spilling=len([cost for cost in unique if cost.spills]),
    )


def sum_by_target(costs: Iterable[Cost]) -> dict[tuple[str, str], Total]:
    """Return the sums for each pair of script and target, in the order of `costs`."""
    groups: dict[tuple[str, str], list[Cost]] = {}
    for cost in costs:
        groups.setdefault((cost.script, cost.target), []).append(cost)
    return {pair: sum_costs(group) for pair, group in groups.items()}


def _drop_duplicates(costs: Iterable[Cost]) -> list[Cost]:
    """Return one cost for each program: the first that has a compile time, else the first."""
    # The history keeps a record for each place in the plan: of several jobs that share a program,
    # only the one that was compiled has a compile time.
    by_hash: dict[str, Cost] = {}
    for cost in costs:
        if cost.hash not in by_hash or by_hash[cost.hash].seconds is None:
            by_hash[cost.hash] = cost
    return list(by_hash.values())


def rank_costs(costs: Iterable[Cost], key: Callable[[Cost], float | None], top: int) -> list[Cost]:
    """Return the `top` programs with the largest `key`, without those whose key is 0 or None."""
    ranked = [cost for cost in _drop_duplicates(costs) if key(cost)]
    return sorted(ranked, key=lambda cost: -(key(cost) or 0))[:top]


def format_costs(costs: Sequence[Cost], top: int) -> str:
    """Return a text: a table of the sums by script and target, and for each of `_RANKINGS` a table
    of its `top` programs."""
    overall = sum_costs(costs)
    rows = [
        _make_total_row(script, target, total)
        for (script, target), total in sum_by_target(costs).items()
    ]
    if len(rows) > 1:
        rows.append(_make_total_row("all", "", overall))
    parts = [format_table(_TOTAL_COLUMNS, rows)]
    if overall.timed < overall.programs:
        programs = format_count(overall.programs, "program")
        parts.append(f"the compiles of {overall.timed} of {programs} are remembered\n")
    for title, key in _RANKINGS.items():
        ranked = rank_costs(costs, key, top)
        if ranked:
            table = format_table(_PROGRAM_COLUMNS, map(_make_program_row, ranked))
            parts.append(f"{title}\n\n{table}")
    return "\n".join(parts)


_RANKINGS: Mapping[str, Callable[[Cost], float | None]] = {
    "Slowest to compile": lambda cost: cost.seconds,
    "Most spills": lambda cost: cost.spills,
    "Largest libraries": lambda cost: cost.library,
}

_TOTAL_COLUMNS = (
    *("script", "target", "programs", "built", "refused", "total s", "median s", "max s"),
    *("peak MB", "registers", "spilling", "lib.so KB"),
)
_PROGRAM_COLUMNS = (
    *("program", "hash", "status", "s", "peak MB", "registers", "spill bytes", "lib.so KB"),
    "schedule",
)


def _make_total_row(script: str, target: str, total: Total) -> tuple[Cell, ...]:
    """Return a row of the table with the columns `_TOTAL_COLUMNS`."""
    return (
        script,
        target,
        total.programs,
        total.statuses[Status.BUILT],
        total.statuses[Status.FAILED] + total.statuses[Status.PRUNED],
        _round_seconds(total.seconds if total.timed else None),
        _round_seconds(total.median),
        _round_seconds(total.longest),
        _scale_size(total.peak_rss, 1e6),
        total.registers,
        total.spilling,
        _scale_size(total.library, 1e3),
    )


def _make_program_row(cost: Cost) -> tuple[Cell, ...]:
    """Return a row of a table with the columns `_PROGRAM_COLUMNS`."""
    return (
        cost.label,
        cost.hash[:12],
        cost.status,
        _round_seconds(cost.seconds),
        _scale_size(cost.peak_rss, 1e6),
        cost.registers,
        cost.spills,
        _scale_size(cost.library, 1e3),
        " ".join(f"{name}={format_cell(value)}" for name, value in cost.values.items()),
    )


def _round_seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _scale_size(size: int | None, unit: float) -> int | None:
    return None if size is None else round(size / unit)
