"""A shard of a plan, for machines that build together and do not know of each other.

Each program is in exactly one shard, and all shards have equally many. All machines must come to
the same split, so it follows from the plan; never from what a cache remembers, which differs from
machine to machine and changes with every build. The programs are dealt out in the order of their
hashes, so that no shard gets all of a kind. The price: of few programs, one shard may take longer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from tilusbuild.engine.events import Reporter, Sharded
from tilusbuild.errors import input_error
from tilusbuild.plan.planner import Plan, ProgramJob, iterate_jobs
from tilusbuild.state.files import sha256_text

MAX_SHARDS = 10_000
_SHARD_PATTERN = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)


class Shard(Struct, frozen=True):
    """The part `number` of `count`; numbers count from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def parse_shard(text: str) -> Shard:
    """Return the shard that a text such as "2/4" stands for. Raises `InputError`."""
    match = _SHARD_PATTERN.fullmatch(text)
    if match is None:
        hint = "write I/N, as in 2/4 for the second"
        raise input_error(f'--shard "{text}": not a shard', hint=hint)
    number, count = int(match[1]), int(match[2])
    if not 1 <= count <= MAX_SHARDS:
        hint = f"from 1 to {MAX_SHARDS} are possible"
        raise input_error(f'--shard "{text}": {count} shards', hint=hint)
    if not 1 <= number <= count:
        message = f'--shard "{text}": there is no shard {number} of {count}'
        raise input_error(message, hint=f"they are 1/{count} to {count}/{count}")
    return Shard(number, count)


def select_programs(programs: Iterable[str], shard: Shard) -> frozenset[str]:
    """Return the shard's part of these hashes."""
    # The sorted hashes are dealt out like cards: shard 2 of 4 gets the second, the sixth, ….
    return frozenset(sorted(programs)[shard.number - 1 :: shard.count])


def list_shard_jobs(plan: Plan, shard: Shard, reporter: Reporter) -> Iterator[ProgramJob]:
    """Report the shard, and yield its programs in plan order."""
    # This is a generator, so that `Sharded` is emitted after `BuildStarted`: the engine iterates
    # the jobs only then. A job that needs others is a link, and is left out, as it needs the
    # objects of all shards.
    jobs = [job for job in iterate_jobs(plan) if not job.needs]
    all_programs = {job.hash for job in jobs}
    shard_programs = select_programs(all_programs, shard)
    split = sha256_text("\n".join([str(shard.count), *sorted(all_programs)]))
    reporter.emit(Sharded(shard.number, shard.count, len(shard_programs), len(all_programs), split))
    yield from (job for job in jobs if job.hash in shard_programs)
