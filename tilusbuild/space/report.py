"""Report how many points each rule of a space removes, and which rules empty the space.

A count is a join over the parameters that its rules connect, times the sizes of the other
parameters: the Cartesian product is never enumerated. The number of points in the space is counted
without a budget, and raises the same errors as the space. The counts of single rules share a
budget; a count beyond the budget is None.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from msgspec import Struct

from tilusbuild.expr import Value
from tilusbuild.space.component import connect_parameters
from tilusbuild.space.few import find_removing_rules
from tilusbuild.space.join import BudgetError, Join
from tilusbuild.space.model import Model, SpaceError

MAX_POINTS = 400_000_000  # combinations to examine for one report: some seconds


class RuleEffect(Struct, frozen=True):
    """The effect of one rule.

    `removed` counts the points that the rules before it keep and it removes. `alone` counts the
    points that it removes if it is the only rule. None: too many to count. A rule does not remove a
    point at which it has no value. `empties`: alone, the rule leaves no point.
    """

    name: str
    removed: int | None
    alone: int | None
    empties: bool


class DeclaredParameter(Struct, frozen=True):
    """One parameter, or several linked ones, with the declared rows of values."""

    names: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


class SpaceReport(Struct, frozen=True):
    """The counts of a space.

    `cartesian` counts the combinations of declared values, `conditional` those of them that a
    `when` makes equal to another one, `count` the points of the space. None: too many to count.
    """

    cartesian: int
    conditional: int | None
    rules: tuple[RuleEffect, ...]
    count: int | None
    model: Model

    @property
    def parameters(self) -> tuple[DeclaredParameter, ...]:
        """The declared values."""
        return tuple(
            DeclaredParameter(d.names, tuple(d.rows[: d.declared])) for d in self.model.domains
        )

    @property
    def removed(self) -> tuple[int, ...]:
        """The rule that removes each combination, as `find_removing_rules` returns it."""
        return find_removing_rules(self.model)


class PointCounter:
    """Counts points under some of the rules. All counts share one budget."""

    def __init__(self, model: Model, budget: int | None = MAX_POINTS) -> None:
        self._model = model
        self._budget = budget

    def count_points(self, restrictions: Collection[int], *, strict: bool = False) -> int | None:
        """Return the number of points under all conditions and these restrictions (positions).

        None beyond the budget, which the examined combinations reduce. With `strict`, raises
        `SpaceError` for a rule without a value at a point that nothing excludes.
        """
        if any(position in restrictions for position in self._model.never):
            return 0
        rules = [
            rule
            for rule in self._model.rules
            # A parameter's condition always applies.
            if rule.pinned_parameter is not None or rule.position in restrictions
        ]
        counts: list[int] = []
        failures: list[SpaceError] = []
        for members, connecting in connect_parameters(self._model, rules):
            if not connecting:
                counts.append(len(self._model.domains[members[0]].rows))
                continue
            join = Join(self._model, members, connecting)
            try:
                counts.append(join.count_points(self._budget, strict=strict))
            except BudgetError:
                return None
            except SpaceError as error:
                # If a later group is empty, the space has no point, and this is not an error.
                failures.append(error)
            # All counts share one budget, so that a report of many rules takes no longer than a
            # report of one large rule.
            if self._budget is not None:
                self._budget -= join.examined
        # A count of 0 comes before an error: an empty space has no point that could be at fault.
        if 0 in counts:
            return 0
        if failures:
            raise failures[0]
        return math.prod(counts)


def report_space(model: Model, budget: int = MAX_POINTS) -> SpaceReport:
    """Return the report of a space, which may be empty.

    Raises `SpaceError` for a rule without a value at a point that no other rule excludes.
    """
    # This count comes first, because it raises the space's errors. It has no budget, as the
    # enumeration of the space has none.
    total = PointCounter(model, None).count_points(range(len(model.rule_names)), strict=True)
    counter = PointCounter(model, budget)
    unrestricted = counter.count_points(())
    effects = []
    points_before = unrestricted
    for position, name in enumerate(model.rule_names):
        points_after = counter.count_points(range(position + 1))
        points_alone = counter.count_points((position,))
        removed = alone = None
        if points_before is not None and points_after is not None:
            removed = points_before - points_after
        if unrestricted is not None and points_alone is not None:
            alone = unrestricted - points_alone
        effects.append(RuleEffect(name, removed, alone, empties=points_alone == 0))
        points_before = points_after
    conditional = None if unrestricted is None else model.cartesian - unrestricted
    return SpaceReport(model.cartesian, conditional, tuple(effects), total, model)


def find_emptying_rules(model: Model) -> tuple[str, ...]:
    """Return names of rules, in order, that together exclude every point of an empty space.

    None of them can be left out.
    """
    counter = PointCounter(model)
    names = model.rule_names
    needed = list(range(len(names)))
    for end in range(1, len(names) + 1):
        if counter.count_points(range(end)) == 0:
            # The rules before `end` leave points, so the one at its end is needed.
            needed = list(range(end))
            break
    # A rule is dropped if the others still empty the space. One after the other, so that none of
    # those that remain can be left out.
    for candidate in list(needed[:-1]):
        other_rules = [position for position in needed if position != candidate]
        if counter.count_points(other_rules) == 0:
            needed = other_rules
    return tuple(names[position] for position in needed)
