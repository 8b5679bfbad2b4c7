"""The schedules to build at a search-space level: the default alone, a sample, or all."""

from __future__ import annotations

from collections.abc import Mapping

from tilusbuild.expr import Value
from tilusbuild.space.errors import SpaceError
from tilusbuild.space.space import Schedule, Space

MAX_SCHEDULES = 1_000_000


def select(
    space: Space, level: int, sample: int, default: Mapping[str, Value], seed: int = 0
) -> tuple[Schedule, ...]:
    """Return the schedules of `level`, in the space's order.

    0: the default, which is the first point that agrees with `default` and with the parameters' own
    defaults. 1: `sample` points, the default among them. 2: all. Raises `SpaceError` for a default
    outside the space, and for more than 1,000,000 schedules.
    """
    start = space.complete(default)
    if level == 0:
        return (start,)
    wanted = space.count if level == 2 else min(sample, space.count)
    if wanted > MAX_SCHEDULES:
        raise SpaceError(
            f"{wanted:,} schedules to build, at most {MAX_SCHEDULES:,}",
            hint="restrict the space, or build a sample of it: levels.sample and level 1",
        )
    if level == 2:
        return tuple(space.iterate())
    return space.sample(wanted, seed, include=(start.index,))
