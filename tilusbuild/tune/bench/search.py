"""The search for fast programs where a budget does not suffice to measure every program.

The winners at the nearest sizes and a random sample come first, and after these the programs that a
model of the times ranks highest (`surrogate.py`). Of a large space the model compares the neighbors
of the best programs, and others at random. The programs looked at follow from the seed and from the
times alone.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from typing import Any, TypeAlias

from tilusbuild.tune.bench.session import Quota
from tilusbuild.tune.bench.work import Candidate, Work

SAMPLE_SHARE, LOOK_SHARE = 0.16, 0.8
"""Of a case's quota: for the random sample, and for all first looks; the rest is for the race."""

_MAX_RANKED = 4096
"""Programs that are compared by the model, at most."""

Look: TypeAlias = Callable[[Iterable[Candidate]], float | None]
"""Looks at the first of these programs, and returns its seconds, None if it is out. The others
follow if it is not better than the best so far."""

Winner: TypeAlias = tuple[Mapping[str, Any], int]
"""Sizes, and the best program there."""
_MAX_STARTS = 5
"""Winners that a search begins with, at most."""


def find_nearest_winners(winners: Iterable[Winner], sizes: Mapping[str, Any]) -> list[int]:
    """Return the programs that won at the nearest sizes, by the sum of the differences in log2."""

    def measure_distance(winner: Winner) -> float:
        pairs = [(size, sizes.get(name)) for name, size in winner[0].items()]
        return sum(
            abs(math.log2(max(a, 1)) - math.log2(max(b, 1)))
            for a, b in pairs
            if type(a) is int and type(b) is int
        )

    ordered = sorted(winners, key=measure_distance)
    return [*dict.fromkeys(program for _, program in ordered)][:_MAX_STARTS]


def search_programs(
    work: Work, quota: Quota, seed: int, look: Look, starts: Sequence[int] = ()
) -> None:
    """Look at the programs `starts` and a random sample, and then by a model of the times, until
    `LOOK_SHARE` of the quota is used; at all programs if that suffices."""
    # The default comes first, whatever the budget is, because users compare with it.
    places = {index: rank for rank, index in enumerate(dict.fromkeys([work.baseline, *starts]))}
    first = sorted((p for p in work.programs if p.index in places), key=lambda p: places[p.index])
    rest = [p for p in work.programs if p.index not in places]
    # A resumed tuning has the same seed, and so draws the same sample.
    random.Random(seed).shuffle(rest)  # noqa: S311 - nothing secret
    waiting = deque([*first, *rest])
    scores: dict[int, float | None] = {}
    while waiting and quota.used_share < LOOK_SHARE:
        # If the looks so far used u of the quota for n programs, all N need about u * N / n. When
        # that is within the share of the looks, all programs are looked at, without a search.
        program_count = len(scores) + len(waiting)
        all_fit = quota.used_share * program_count <= LOOK_SHARE * len(scores)
        if quota.used_share >= SAMPLE_SHARE and not all_fit:
            break
        scores[waiting[0].index] = look(waiting)
        waiting.popleft()
    if waiting:
        _search_by_model(work, [*first, *rest], scores, quota, look)


def _search_by_model(
    work: Work,
    order: Sequence[Candidate],
    scores: dict[int, float | None],
    quota: Quota,
    look: Look,
) -> None:
    """Call `look` with rankings of candidates, best first by a model of the times, until
    `LOOK_SHARE` of the quota is used. Add the seconds of each ranking's first to `scores`."""
    # NumPy is imported where there is a search.
    from tilusbuild.tune.bench.surrogate import Surrogate

    coordinates = index_programs(work)
    surrogate = Surrogate(coordinates)
    programs = {program.index: program for program in order}
    find_neighbors = cache(lambda index: tuple(iterate_neighbors(coordinates, index)))
    while quota.used_share < LOOK_SHARE and len(scores) < len(programs):
        # Of a large space the neighbors of the best programs, and others in random order.
        unseen = _iterate_unseen(scores, find_neighbors, programs)
        numbers = [*islice(unseen, _MAX_RANKED)]
        if any(seconds is not None for seconds in scores.values()):
            numbers = surrogate.rank_programs(scores, numbers)
        # Only the first is looked at. The next ones may be built meanwhile.
        scores[numbers[0]] = look(map(programs.__getitem__, numbers))


def _iterate_unseen(
    scores: Mapping[int, float | None],
    find_neighbors: Callable[[int], Iterable[int]],
    order: Iterable[int],
) -> Iterator[int]:
    """Yield the programs without a score once: the neighbors of the best one, the nearest first,
    those of the next best, and so on; then the others in `order`."""
    fastest_first = sorted(
        (seconds, index) for index, seconds in scores.items() if seconds is not None
    )
    seen = {*scores}
    for index in chain(chain.from_iterable(find_neighbors(i) for _, i in fastest_first), order):
        if index not in seen:
            seen.add(index)
            yield index


def find_linked_groups(work: Work) -> tuple[tuple[str, ...], ...]:
    """Return the work's groups of parameters, with the groups joined that change together in all
    programs."""
    # A script in a package lists single parameters: which ones the manifest links is seen from the
    # columns, which are equal.
    columns: dict[tuple[int, ...], list[str]] = {}
    rows = index_programs(work).values()
    for number, group in enumerate(work.groups):
        columns.setdefault(tuple(row[number] for row in rows), []).extend(group)
    return tuple(map(tuple, columns.values()))


def index_programs(work: Work) -> dict[int, tuple[int, ...]]:
    """Return the coordinates of each program: for each group of parameters the index of its
    value, counted in the order of the programs."""
    value_indices: list[dict[object, int]] = [{} for _ in work.groups]
    return {
        program.index: tuple(
            indices.setdefault(tuple(program.schedule[name] for name in group), len(indices))
            for indices, group in zip(value_indices, work.groups, strict=True)
        )
        for program in work.programs
    }


def iterate_neighbors(coordinates: Mapping[int, tuple[int, ...]], index: int) -> Iterator[int]:
    """Yield the programs that differ from the program `index` in exactly one group of parameters,
    the nearest first."""
    neighbors = []
    for candidate, candidate_coordinates in coordinates.items():
        pairs = zip(candidate_coordinates, coordinates[index], strict=True)
        steps = [abs(a - b) for a, b in pairs if a != b]
        if len(steps) == 1:
            neighbors.append((steps[0], candidate))
    yield from (candidate for _, candidate in sorted(neighbors))
