"""Which programs are looked at, and in which order: all of them, where the budget suffices.

Else a random sample comes first, and after it a local search that starts at the best program
examined, moves to the best neighbour while that is better, and starts again from the next best.
Neighbours differ in one parameter (or in one group of linked ones): by one step where it is a
number, by anything else where it is not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from tilusbuild.tune.bench.session import Quota
from tilusbuild.tune.bench.work import Candidate, Scalar, Work

SAMPLE_SHARE, LOOK_SHARE = 0.4, 0.8
"""Of a case's quota: for the random sample, and for all first looks; the rest is for the race."""

Look = Callable[[Candidate], "float | None"]
"""The seconds of a first look, or None for a program that is out."""


def look_around(work: Work, quota: Quota, look: Look, seed: int) -> None:
    """Look at programs until all are known or the share of the quota is used."""
    default = [p for p in work.programs if p.index == work.default]
    rest = [p for p in work.programs if p.index != work.default]
    if not quota.is_limited:
        for program in work.programs:
            look(program)
        return
    random.Random(seed).shuffle(rest)  # noqa: S311 - nothing secret
    waiting = [*default, *rest]
    scores: dict[int, float | None] = {}
    while waiting and quota.used < LOOK_SHARE:
        if quota.used >= SAMPLE_SHARE and not _all_fit(quota, len(scores), len(waiting)):
            break
        program = waiting.pop(0)
        scores[program.index] = look(program)
    if waiting:
        _climb(Neighbourhood(work), waiting, scores, quota, look)


def _all_fit(quota: Quota, looked: int, left: int) -> bool:
    return quota.used * (looked + left) <= LOOK_SHARE * looked


def _climb(
    around: Neighbourhood,
    waiting: Sequence[Candidate],
    scores: dict[int, float | None],
    quota: Quota,
    look: Look,
) -> None:
    """Local search with restarts; random programs when there is no start left."""
    climbed: set[int] = set()
    strangers = iter(waiting)
    while quota.used < LOOK_SHARE:
        starts = [(s, i) for i, s in scores.items() if s is not None and i not in climbed]
        if not starts:
            program = next((p for p in strangers if p.index not in scores), None)
            if program is None:
                return
            scores[program.index] = look(program)
            continue
        seconds, at = min(starts)
        while at not in climbed:
            climbed.add(at)
            near = list(around.of(at))
            for program in near:
                if program.index not in scores and quota.used < LOOK_SHARE:
                    scores[program.index] = look(program)
            better = [
                (score, p.index)
                for p in near
                if (score := scores.get(p.index)) is not None and score < seconds
            ]
            if better:
                seconds, at = min(better)


class Neighbourhood:
    """Who is next to whom among the programs that there are."""

    def __init__(self, work: Work) -> None:
        self._programs = {program.index: program for program in work.programs}
        self._groups = work.groups
        self._lines: dict[tuple[int, tuple[Scalar, ...]], list[Candidate]] = {}
        for program in work.programs:
            for number in range(len(self._groups)):
                self._lines.setdefault(self._line(number, program), []).append(program)
        for (number, _), line in self._lines.items():
            if self._is_ordered(number):
                line.sort(key=lambda p: (p.schedule[self._groups[number][0]], p.index))

    def of(self, index: int) -> Iterator[Candidate]:
        """Yield the neighbours of a program, parameter by parameter."""
        program = self._programs[index]
        for number in range(len(self._groups)):
            line = self._lines[self._line(number, program)]
            at = line.index(program)
            if self._is_ordered(number):
                yield from (*line[max(0, at - 1) : at], *line[at + 1 : at + 2])
            else:
                yield from (*line[:at], *line[at + 1 :])

    def _line(self, number: int, program: Candidate) -> tuple[int, tuple[Scalar, ...]]:
        """Return what programs have in common that differ in one group only."""
        own = self._groups[number]
        return number, tuple(v for name, v in program.schedule.items() if name not in own)

    def _is_ordered(self, number: int) -> bool:
        group = self._groups[number]
        if len(group) != 1:
            return False
        return all(
            isinstance(v := program.schedule[group[0]], int | float) and not isinstance(v, bool)
            for program in self._programs.values()
        )
