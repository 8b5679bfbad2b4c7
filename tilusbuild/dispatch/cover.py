"""How few programs serve how well: greedy set cover over measured times.

A program serves a key when it takes at most `slowdown` times the key's best. Greedy choice is at
most ln(keys) times the smallest possible set (Chvátal, 1979), and is the same every time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Key: TypeAlias = tuple[int, ...]
Times: TypeAlias = Mapping[Key, Mapping[int, float]]


@dataclass(frozen=True, slots=True)
class Cover:
    """A set of programs, in the order of choice, and what it costs against the best of each key."""

    programs: tuple[int, ...]
    worst: float
    """The greatest ratio of times over all keys; infinite when a key is served by none of them."""
    mean: float
    """The geometric mean of the ratios."""
    chosen: Mapping[Key, int]
    """The best of them for each key."""


def cover(times: Times, slowdown: float) -> Cover:
    """The fewest programs, as far as greed finds them, that serve every key within `slowdown`.

    Raises `ValueError` for a slowdown below 1.
    """
    if not slowdown >= 1:
        raise ValueError(f"a slowdown is at least 1, not {slowdown}")
    serves: dict[int, dict[Key, float]] = {}
    for key, measured in times.items():
        best = min(measured.values())
        for program, seconds in measured.items():
            if seconds <= best * slowdown:
                serves.setdefault(program, {})[key] = seconds / best
    open_keys, picked = set(times), list[int]()
    while open_keys:
        program = min(
            serves,
            key=lambda p: (
                -len(open_keys & serves[p].keys()),
                sum(math.log(serves[p][k]) for k in sorted(open_keys & serves[p].keys())),
                p,
            ),
        )
        picked.append(program)
        open_keys -= serves[program].keys()
    return measure(times, picked)


def curve(times: Times, limit: int = 16) -> list[Cover]:
    """The cost of 1, 2, 3 … programs, each added to make the mean least; ends at no cost."""
    everyone = sorted({program for measured in times.values() for program in measured})
    found: list[Cover] = []
    picked: list[int] = []
    while everyone and len(picked) < limit and (not found or found[-1].worst > 1.0):
        rest = [program for program in everyone if program not in picked]
        if not rest:
            break
        best = min((measure(times, [*picked, program]) for program in rest), key=_cost)
        picked = list(best.programs)
        found.append(best)
    return found


def _cost(cover: Cover) -> tuple[int, float, float]:
    return -len(cover.chosen), cover.mean, cover.worst


def measure(times: Times, programs: Sequence[int]) -> Cover:
    """What a set of programs costs."""
    ratios, chosen = [], {}
    for key, measured in times.items():
        there = [(measured[program], program) for program in programs if program in measured]
        if there:
            seconds, chosen[key] = min(there)
            ratios.append(seconds / min(measured.values()))
    whole = len(chosen) == len(times)
    worst = max(ratios, default=1.0) if whole else math.inf
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0
    return Cover(tuple(programs), worst, mean, chosen)
