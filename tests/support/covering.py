"""Few points of a space that stand for all: of any two values that occur together, one has them.

What breaks a schedule is mostly one value, or two that meet; a test that compiles every schedule of
a large space takes minutes. With TILUSBUILD_TEST_ALL=1 all points are taken."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

P = TypeVar("P")


def covering(points: Sequence[P], values: Sequence[Mapping[str, object]]) -> list[P]:
    """The points to take, in order; `values` are the parameters' values of each."""
    if os.environ.get("TILUSBUILD_TEST_ALL") == "1":
        return [*points]
    pairs = [set(combinations(_known(of.items()), 2)) for of in values]
    left = set().union(*pairs)
    taken: set[int] = set()
    while left:
        best = max(range(len(points)), key=lambda index: len(pairs[index] & left))
        taken.add(best)
        left -= pairs[best]
    return [points[index] for index in sorted(taken)]


def _known(items: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    return sorted((name, repr(value)) for name, value in items)
