"""A shard of a plan, for machines that build together and do not know of each other.

Each program is in exactly one shard, and all shards take about equally long. All machines must come
to the same split, so it follows from the plan and from a history that each was given alike; never
from what a cache remembers, which differs from machine to machine and changes with every build.
Without a history, the size of what is compiled stands for the time.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from tilusbuild.engine.events import Reporter, Sharded
from tilusbuild.engine.history import History
from tilusbuild.errors import InputError, input_error
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


class Split(Struct, frozen=True):
    """The programs of every shard, by their hashes. `seconds` is what each is expected to take."""

    shards: tuple[frozenset[str], ...]
    seconds: tuple[float, ...]

    def of(self, shard: Shard) -> frozenset[str]:
        """Return the programs of one."""
        return self.shards[shard.number - 1]

    @property
    def digest(self) -> str:
        """A digest that differs between two splits."""
        lines = (f"{i} {program}" for i, part in enumerate(self.shards) for program in sorted(part))
        return sha256_text("\n".join(lines))


def parse_shard(text: str, option: str = "--shard") -> Shard:
    """ "2/4" as a value. Raises `InputError`."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise _refused(f'{option} "{text}": not a shard', "write I/N, as in 2/4 for the second")
    number, count = int(match[1]), int(match[2])
    if not 1 <= count <= MAX_SHARDS:
        raise _refused(f'{option} "{text}": {count} shards', f"from 1 to {MAX_SHARDS} are possible")
    if not 1 <= number <= count:
        raise _refused(
            f'{option} "{text}": there is no shard {number} of {count}', f"from 1/{count} on"
        )
    return Shard(number, count)


def split(seconds: Mapping[str, float], count: int) -> Split:
    """Programs by hash, with what each is expected to take, over `count` shards.

    The longest first, each to the shard that is the shortest so far: the longest shard is at most
    a third longer than it has to be (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969).
    """
    parts: list[list[str]] = [[] for _ in range(count)]
    shortest = [(0.0, number) for number in range(count)]
    for program in sorted(seconds, key=lambda each: (-seconds[each], each)):
        total, number = shortest[0]
        parts[number].append(program)
        heapq.heapreplace(shortest, (total + seconds[program], number))
    totals = {number: total for total, number in shortest}
    return Split(
        tuple(frozenset(part) for part in parts), tuple(totals[number] for number in range(count))
    )


def _refused(message: str, hint: str) -> InputError:
    return input_error(message, hint=hint)


_SOURCE_BYTES = 10_000
_HEADERS = 30
"""So much source, or so many headers, are taken to take as long as starting the compiler does. nvcc
13.0 needs 0.9 s for `examples/quickstart` (1 to 3 kB) and 1 to 3 s for `examples/gemm` (18 kB): the
order of magnitude, which is all that a split without a history can go by."""


class ShardPart(Struct, frozen=True):
    """One shard of a plan."""

    plan: Plan
    shard: Shard
    split: Split
    measured: bool
    """Whether what is expected are seconds, and not only shares."""

    def jobs(self, reporter: Reporter) -> Iterator[ProgramJob]:
        """Yield the shard's programs, in plan order. Reports first which part this is: the engine
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
        yield from (job for job in _of_a_shard(self.plan) if job.hash in own)


def part_of(plan: Plan, shard: Shard, history: str | None) -> ShardPart:
    """Return the shard of a plan; `history` is a file that an earlier build left. Raises
    `InputError`."""
    known = History(None) if history is None else History.of_file(history)
    first: dict[str, ProgramJob] = {}
    for job in _of_a_shard(plan):
        first.setdefault(job.hash, job)
    expected = {program: known.estimate(job).seconds for program, job in first.items()}
    measured = {program: seconds for program, seconds in expected.items() if seconds is not None}
    if len(measured) == len(first):
        return ShardPart(plan, shard, split(measured, shard.count), bool(first))
    # A history knows all programs or none: one that it has not seen gets the mean of the others.
    sizes = {program: _size(job) for program, job in first.items()}
    return ShardPart(plan, shard, split(sizes, shard.count), False)


def _of_a_shard(plan: Plan) -> Iterator[ProgramJob]:
    """Yield what shards divide: a library is linked by the build after the merge, which has all of
    its objects."""
    return (job for job in jobs(plan) if not job.needs)


def _size(job: ProgramJob) -> float:
    """Return how much a compile has to do, in compiler starts."""
    made = job.render()
    source = len(made.recipe.source) / _SOURCE_BYTES
    return len(made.recipe.archs) * (1.0 + source + len(made.closure.headers) / _HEADERS)
