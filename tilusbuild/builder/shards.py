"""A shard of a plan, for machines that build together and do not know of each other.

Each program is in exactly one shard, and all shards take about equally long. All machines must come
to the same split, so it follows from the plan; never from what a cache remembers, which differs
from machine to machine and changes with every build. The price: the size of what is compiled stands
for the time that it takes.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from tilusbuild.engine.events import Reporter, Sharded
from tilusbuild.errors import input_error
from tilusbuild.plan.planner import Plan, ProgramJob, jobs
from tilusbuild.state.files import sha256_text

MAX_SHARDS = 10_000
"""Shards."""
_FORM = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)


class Shard(Struct, frozen=True):
    """The part `number` of `count`; numbers count from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def parse_shard(text: str) -> Shard:
    """ "2/4" as a value. Raises `InputError`."""
    match = _FORM.fullmatch(text)
    if match is None:
        hint = "write I/N, as in 2/4 for the second"
        raise input_error(f'--shard "{text}": not a shard', hint=hint)
    number, count = int(match[1]), int(match[2])
    if not 1 <= count <= MAX_SHARDS:
        hint = f"from 1 to {MAX_SHARDS} are possible"
        raise input_error(f'--shard "{text}": {count} shards', hint=hint)
    if not 1 <= number <= count:
        message = f'--shard "{text}": there is no shard {number} of {count}'
        raise input_error(message, hint=f"from 1/{count} on")
    return Shard(number, count)


def split(sizes: Mapping[str, float], count: int) -> tuple[frozenset[str], ...]:
    """Programs by hash, with how long each is expected to take, over `count` shards.

    The longest first, each to the shard that is the shortest so far: the longest shard is at most
    a third longer than it has to be (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969).
    """
    parts: list[list[str]] = [[] for _ in range(count)]
    shortest = [(0.0, number) for number in range(count)]
    for program in sorted(sizes, key=lambda each: (-sizes[each], each)):
        total, number = shortest[0]
        parts[number].append(program)
        heapq.heapreplace(shortest, (total + sizes[program], number))
    return tuple(map(frozenset, parts))


def digest_of(parts: Sequence[frozenset[str]]) -> str:
    """Return a digest that differs between two splits."""
    lines = (f"{i} {program}" for i, part in enumerate(parts) for program in sorted(part))
    return sha256_text("\n".join(lines))


_SOURCE_BYTES = 10_000
_HEADERS = 30
"""So much source, or so many headers, are taken to take as long as starting the compiler does. nvcc
13.0 needs 0.9 s for `examples/quickstart` (1 to 3 kB) and 1 to 3 s for `examples/gemm` (18 kB): the
order of magnitude, which is all that a split can go by."""


def jobs_of(plan: Plan, shard: Shard, reporter: Reporter) -> Iterator[ProgramJob]:
    """Return the shard's programs, in plan order. The first that is asked for has reported which
    part this is: the engine asks when it has emitted that the build began. Raises `InputError`."""
    sizes: dict[str, float] = {}
    for job in _of_a_shard(plan):
        if job.hash not in sizes:
            sizes[job.hash] = _size(job)
    parts = split(sizes, shard.count)
    own = parts[shard.number - 1]

    def wanted() -> Iterator[ProgramJob]:
        reporter.emit(Sharded(shard.number, shard.count, len(own), len(sizes), digest_of(parts)))
        yield from (job for job in _of_a_shard(plan) if job.hash in own)

    return wanted()


def _of_a_shard(plan: Plan) -> Iterator[ProgramJob]:
    """Yield what shards divide: a library is linked after the merge, which has all its objects."""
    return (job for job in jobs(plan) if not job.needs)


def _size(job: ProgramJob) -> float:
    """Return how much a compile has to do, in compiler starts."""
    made = job.render()
    source = len(made.recipe.source) / _SOURCE_BYTES
    return len(made.recipe.archs) * (1.0 + source + len(made.closure.headers) / _HEADERS)
