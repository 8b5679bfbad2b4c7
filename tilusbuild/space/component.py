"""The valid points of one group of parameters, in order.

A group is one parameter that no rule mentions, or several parameters that rules connect. A digit is
a parameter's row at a point. The rank of a point is the number that its digits are in a mixed
radix, so that sorted ranks are the points in order, and the points that agree in the first members
are a range of them. The index of the whole space is computed from such ranges.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tilusbuild.space.join import Join, make_strides
from tilusbuild.space.model import Model, Rule


class Component:
    """The points of one group. `members` are the positions of its parameters, ascending."""

    def __init__(self, strides: Mapping[int, tuple[int, int]], ranks: Any) -> None:
        """Store the ranks of the points, ascending, and the result of `make_strides`."""
        self.members = tuple(sorted(strides))
        self.count = len(ranks)
        self._strides = strides
        self._ranks = ranks

    def get_digit(self, position: int, index: Any) -> Any:
        """Return the digit of `position` at the points with these indices."""
        stride, size = self._strides[position]
        prefix = self._ranks[index] // stride
        # The same as `prefix % size`, in a third of the time: NumPy divides faster by one number.
        return prefix - prefix // size * size

    def find_range(self, position: int, low: Any, digit: Any) -> tuple[Any, Any]:
        """Return first and end of the points with this digit, among those that agree with the point
        `low` in all earlier members. There must be such points."""
        stride, size = self._strides[position]
        prefix = self._ranks[low] // (stride * size) * size + digit
        return (
            np.searchsorted(self._ranks, prefix * stride),
            np.searchsorted(self._ranks, (prefix + 1) * stride),
        )

    def find_first(self, allowed: Mapping[int, Collection[int]]) -> dict[int, int] | None:
        """Return the rows of the first point whose rows are among `allowed`, by position.

        None if there is no such point. A position that is not in `allowed` may have any row.
        """
        indices = np.arange(self.count)
        for position, digits in allowed.items():
            indices = indices[np.isin(self.get_digit(position, indices), list(digits))]
        if not len(indices):
            return None
        return {position: int(self.get_digit(position, indices[0])) for position in self.members}


def connect_parameters(model: Model, rules: Sequence[Rule]) -> list[tuple[list[int], list[Rule]]]:
    """Return the groups of parameters that rules connect, each as (members, rules).

    Groups are ordered by their first member. A parameter without rules is a group of its own.
    """
    groups = [{position} for position in range(len(model.domains))]
    for rule in rules:
        # The rule makes one group of all groups that have a parameter of it.
        connected = set[int]().union(*(group for group in groups if group & rule.needs))
        groups = [group for group in groups if not group & rule.needs] + [connected]
    return [
        (sorted(group), [rule for rule in rules if rule.needs <= group])
        for group in sorted(groups, key=min)
    ]


def enumerate_group(
    model: Model, members: Sequence[int], rules: Sequence[Rule], budget: int | None = None
) -> Component:
    """Return the points of one group. Raises `SpaceError` for a point at which a rule has no value,
    and `BudgetError` if the group needs more than `budget` combinations.
    """
    if rules:
        ranks = Join(model, members, rules).list_ranks(budget)
    else:
        # A parameter that no rule mentions has each row as a point.
        ranks = np.arange(len(model.domains[members[0]].rows))
    return Component(make_strides(model, members), ranks)
