"""A shard of a plan, for machines that build together and do not know of each other.

All of them must come to the same split, so it follows from the plan and from a history that each
was given alike; never from what a cache remembers, which differs from machine to machine and
changes with every build. Without a history, the size of what is compiled stands for the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilusbuild.engine.events import Reporter, Sharded
from tilusbuild.engine.history import History
from tilusbuild.plan.jobs import ProgramJob, jobs
from tilusbuild.plan.planner import Plan
from tilusbuild.plan.shards import Shard, Split, split

_SOURCE_BYTES = 10_000
_HEADERS = 30
"""So much source, or so many headers, are taken to take as long as starting the compiler does. nvcc
13.0 needs 0.9 s for `examples/quickstart` (1 to 3 kB) and 1 to 3 s for `examples/gemm` (18 kB): the
order of magnitude, which is all that a split without a history can go by."""


@dataclass(frozen=True, slots=True)
class Part:
    """One shard of a plan."""

    plan: Plan
    shard: Shard
    split: Split
    measured: bool
    """Whether what is expected are seconds, and not only shares."""

    def jobs(self, reporter: Reporter) -> Iterator[ProgramJob]:
        """Yield the shard's programs, in plan order. Tells first which part this is: the engine
        asks for jobs when it has emitted that the build began."""
        own = self.split.of(self.shard)
        expected = self.split.seconds[self.shard.number - 1]
        reporter.emit(
            Sharded(
                number=self.shard.number,
                count=self.shard.count,
                programs=len(own),
                of=sum(map(len, self.split.shards)),
                expected_seconds=expected if self.measured else None,
                split=self.split.digest,
            )
        )
        yield from (job for job in jobs(self.plan) if job.hash in own)


def part_of(plan: Plan, shard: Shard, history: str | None) -> Part:
    """Return the shard of a plan; `history` is a file that an earlier build left. Raises
    `InputError`."""
    known = History(None) if history is None else History.of_file(history)
    first: dict[str, ProgramJob] = {}
    for job in jobs(plan):
        first.setdefault(job.hash, job)
    expected = {program: known.estimate(job).seconds for program, job in first.items()}
    measured = {program: seconds for program, seconds in expected.items() if seconds is not None}
    if len(measured) == len(first):
        return Part(plan, shard, split(measured, shard.count), bool(first))
    # A history knows all programs or none: one that it has not seen gets the mean of the others.
    sizes = {program: _size(job) for program, job in first.items()}
    return Part(plan, shard, split(sizes, shard.count), False)


def _size(job: ProgramJob) -> float:
    """Return how much a compile has to do, in compiler starts."""
    made = job.render()
    source = len(made.recipe.source) / _SOURCE_BYTES
    return len(made.recipe.archs) * (1.0 + source + len(made.closure.headers) / _HEADERS)
