"""The valid points of one group of parameters, in order.

A group is one parameter that no rule mentions, whose points are its values, or several parameters
that rules connect, whose points are sorted ranks. A digit is a parameter's row at a point. Both
kinds of groups answer one question for many points at once: in a range of points that agree in the
earlier members, which digit has the r-th point for the next member, and which part of the range
has the same digit? The index of the whole space is computed from these answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tilusbuild.space.columns import smallest_row_type
from tilusbuild.space.join import Join
from tilusbuild.space.model import Model, Rule


class TreeLevel(NamedTuple):
    """One member's level in the tree of a group's points.

    The children of node i of the level above are the nodes `first[i]` to `first[i + 1] - 1` of this
    level. `digit` has the member's row at each node.
    """

    first: Any
    digit: Any


class FreeComponent:
    """One parameter that no rule mentions. Its methods are those of `JoinedComponent`."""

    def __init__(self, position: int, count: int) -> None:
        self.members: tuple[int, ...] = (position,)
        self.count = count

    def narrow_to_digit(self, position: int, low: Any, row: Any) -> tuple[Any, Any, Any]:
        digit = low + row
        return digit, digit, digit + 1

    def find_digit_range(self, position: int, low: int, high: int, digit: int) -> tuple[int, int]:
        return digit, digit + 1

    def digits_of(self, position: int) -> Any:
        return np.arange(self.count, dtype=np.int64)

    def build_levels(self) -> list[TreeLevel]:
        rows = np.arange(self.count, dtype=smallest_row_type(self.count))
        return [TreeLevel(np.array([0, self.count], dtype=np.int32), rows)]


class JoinedComponent:
    """Parameters that rules connect. `members` are their positions, ascending."""

    def __init__(self, model: Model, join: Join, ranks: Any) -> None:
        self.members = tuple(sorted(join.radix))
        self.count = len(ranks)
        self._ranks = ranks
        sizes = {position: len(model.domains[position].rows) for position in join.radix}
        self._radix_and_size = {p: (radix, sizes[p]) for p, radix in join.radix.items()}

    def narrow_to_digit(self, position: int, low: Any, row: Any) -> tuple[Any, Any, Any]:
        """Return the digit of `position` at each point `low + row`, and the range that shares it.

        The range is two arrays: first points and ends.
        """
        radix, size = self._radix_and_size[position]
        prefix = self._ranks[low + row] // radix
        first = np.searchsorted(self._ranks, prefix * radix)
        return prefix % size, first, np.searchsorted(self._ranks, (prefix + 1) * radix)

    def find_digit_range(self, position: int, low: int, high: int, digit: int) -> tuple[int, int]:
        """Return first and end of the part of `low..high` with this digit, which must exist."""
        radix, size = self._radix_and_size[position]
        prefix = int(self._ranks[low]) // (radix * size) * size + digit
        bounds = np.searchsorted(self._ranks, [prefix * radix, (prefix + 1) * radix])
        return int(bounds[0]), int(bounds[1])

    def digits_of(self, position: int) -> Any:
        """Return the digit of `position` at every point."""
        radix, size = self._radix_and_size[position]
        return self._ranks // radix % size

    def build_levels(self) -> list[TreeLevel]:
        """Return the points as a tree, with one level for each member."""
        tree_levels: list[TreeLevel] = []
        kind = np.int32 if self._ranks[-1] < 2**31 else self._ranks.dtype
        # The first point of each node. The last member has a node for each point.
        starts = np.arange(self.count, dtype=np.int32)
        for position in reversed(self.members):
            radix, size = self._radix_and_size[position]
            shorter = self._ranks[starts].astype(kind)
            shorter //= radix
            digit = (shorter % size).astype(smallest_row_type(size))
            shorter //= size
            begins = np.concatenate([[True], shorter[1:] != shorter[:-1], [True]])
            first = np.flatnonzero(begins).astype(np.int32)
            tree_levels.append(TreeLevel(first, digit))
            first = first[:-1]
            starts = starts[first]
        return tree_levels[::-1]


Enumerated: TypeAlias = FreeComponent | JoinedComponent
"""A group whose points are enumerated."""


def connect_parameters(model: Model, rules: Sequence[Rule]) -> list[tuple[list[int], list[Rule]]]:
    """Return the groups of parameters that rules connect, each as (members, rules).

    Groups are ordered by their first member. A parameter without rules is a group of its own.
    """
    parent = list(range(len(model.domains)))

    def find_root(position: int) -> int:
        while parent[position] != position:
            position = parent[position]
        return position

    for rule in rules:
        first, *others = sorted(rule.needs)
        for other in others:
            a, b = sorted((find_root(first), find_root(other)))
            parent[b] = a
    by_root: dict[int, tuple[list[int], list[Rule]]] = {}
    for position in range(len(model.domains)):
        by_root.setdefault(find_root(position), ([], []))[0].append(position)
    for rule in rules:
        by_root[find_root(min(rule.needs))][1].append(rule)
    return list(by_root.values())


def enumerate_group(
    model: Model,
    members: Sequence[int],
    rules: Sequence[Rule],
    budget: int | None = None,
) -> Enumerated:
    """Enumerate one group. Raises `SpaceError` at a point where a rule has no value.

    Raises `BudgetError` if the group needs more than `budget` combinations.
    """
    if not rules:
        return FreeComponent(members[0], len(model.domains[members[0]].rows))
    join = Join(model, members, rules)
    return JoinedComponent(model, join, join.list_ranks(budget))
