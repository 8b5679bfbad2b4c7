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
        rules = [r for r in self._model.rules if r.position < 0 or r.position in restrictions]
        counts, failures = [], list[SpaceError]()
        for members, connecting in connect_parameters(self._model, rules):
            if not connecting:
                counts.append(len(self._model.domains[members[0]].rows))
                continue
            join = Join(self._model, members, connecting)
            try:
                counts.append(join.count_points(self._budget, strict=strict))
            except BudgetError:
                return None
            except SpaceError as error:  # not an error if another group turns out to be empty
                failures.append(error)
            # One budget for all counts: a report of many rules takes no longer than one of a large
            # rule.
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
    # First, since it raises the space's errors; without a budget, since the space has none.
    total = PointCounter(model, None).count_points(range(len(model.rule_names)), strict=True)
    counter = PointCounter(model, budget)
    unrestricted = counter.count_points(())
    effects = []
    before = unrestricted
    for position, name in enumerate(model.rule_names):
        after = counter.count_points(range(position + 1))
        remaining = counter.count_points((position,))
        removed = None if before is None or after is None else before - after
        alone = None
        if unrestricted is not None and remaining is not None:
            alone = unrestricted - remaining
        effects.append(RuleEffect(name, removed, alone, remaining == 0))
        before = after
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
    # One by one, each without those that turned out to be needless: what remains is minimal.
    for position in list(needed[:-1]):
        rest = [other for other in needed if other != position]
        if counter.count_points(rest) == 0:
            needed = rest
    return tuple(names[position] for position in needed)
