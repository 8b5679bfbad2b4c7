"""What is known of each program of a plan: of its compile from the cache's history, of its code
from its entry.

The history keeps one record for each place in a plan. Only a record of this very program counts:
after an edit, or a build of another level, another program's time may stand there.
"""

from __future__ import annotations

from typing import Any

from tilusbuild.cache import layout
from tilusbuild.cache.cache import Cache
from tilusbuild.cache.entries import Entry, listed
from tilusbuild.engine.history import History
from tilusbuild.plan.jobs import ProgramJob, jobs
from tilusbuild.plan.planner import Plan
from tilusbuild.report.costs import Cost, Usage
from tilusbuild.status import Status


def costs(plan: Plan, cache: Cache) -> list[Cost]:
    """Return every program, in plan order. Reads only."""
    history = History(cache.state_path)
    return [_cost(job, cache.lookup(job.hash), history) for job in jobs(plan)]


def _cost(job: ProgramJob, entry: Entry | None, history: History) -> Cost:
    last = history.measured(job)
    schedule = job.schedule
    sizes = {name: size for name, size, _ in listed(entry.meta)} if entry else {}
    return Cost(
        script=job.script,
        target=job.planned.target.name,
        label=job.label,
        hash=job.hash,
        status=entry.status if entry else Status.MISSING,
        values=job.script_instance.values(schedule),
        seconds=last.seconds,
        peak_rss=last.peak_rss,
        library=sizes.get(layout.LIBRARY),
        usages=_usages(entry.meta["kernels"]) if entry else (),
    )


def _usages(kernels: dict[str, dict[str, Any]]) -> tuple[Usage, ...]:
    return tuple(
        Usage(kernel, arch, used["registers"], used["spill_stores"] + used["spill_loads"])
        for kernel, archs in kernels.items()
        for arch, used in archs.items()
    )
