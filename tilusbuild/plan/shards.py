"""Splitting a plan over machines: each program in exactly one shard, all shards about equally long.

Pure. The split follows from the programs, their hashes and their expected seconds, and from nothing
else, so that machines which never talk to each other come to the same one.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tilusbuild.errors import InputError, input_error
from tilusbuild.state.hashing import sha256_text

MOST = 10_000
"""Shards."""
_FORM = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Shard:
    """The part `number` of `count`; numbers count from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True, slots=True)
class Split:
    """The programs of every shard, by their hashes. `seconds` is what each is expected to take."""

    shards: tuple[frozenset[str], ...]
    seconds: tuple[float, ...]

    def of(self, shard: Shard) -> frozenset[str]:
        """The programs of one."""
        return self.shards[shard.number - 1]

    @property
    def digest(self) -> str:
        """What tells two splits apart."""
        lines = (f"{i} {program}" for i, part in enumerate(self.shards) for program in sorted(part))
        return sha256_text("\n".join(lines))


def parse_shard(text: str, option: str = "--shard") -> Shard:
    """ "2/4" as a value. Raises `InputError`."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise _refused(f'{option} "{text}": not a shard', "write I/N, as in 2/4 for the second")
    number, count = int(match[1]), int(match[2])
    if not 1 <= count <= MOST:
        raise _refused(f'{option} "{text}": {count} shards', f"from 1 to {MOST} are possible")
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
