"""What each rule of a space removes, and which rules empty it.

Counts come from joins over the parameters that the counted rules connect, times the sizes of the
rest: the Cartesian product is never walked. How many points there are is counted as the space
itself counts them: as long as it takes, and a rule that has no value at one of them is the same
error. What single rules do has a budget; a count that would visit too many points is None.
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

MAX_POINTS = 400_000_000  # visited for one report: some seconds


class RuleEffect(Struct, frozen=True):
    """`removed`: the points that the rule takes of those that the rules before it left. `alone`:
    those that it would take if it were the only rule. None: too many to count. A point where the
    rule has no value counts as left. `empties`: alone, it leaves no point."""

    name: str
    removed: int | None
    alone: int | None
    empties: bool


class DeclaredParameter(Struct, frozen=True):
    """Parameters that are given values together, and these."""

    names: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


class SpaceReport(Struct, frozen=True):
    """`cartesian`: combinations of declared values; `conditional`: how many of them a `when` makes
    equal to another; `count`: points left by the conditions and all rules (None: too many)."""

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
        """By which rule each combination goes, as `few.removed` has it: only some ask."""
        return find_removing_rules(self.model)

    @property
    def empties(self) -> tuple[str, ...]:
        """The rules that leave no point, each on its own."""
        return tuple(rule.name for rule in self.rules if rule.empties)


class PointCounter:
    """Counts the points that some of the rules leave; a budget is shared by all its counts."""

    def __init__(self, model: Model, budget: int | None = MAX_POINTS) -> None:
        self._model = model
        self._budget = budget

    def count_points(self, restrictions: Collection[int], *, strict: bool = False) -> int | None:
        """Return the points that conditions and these restrictions (positions) leave; None beyond
        the budget. Raises `SpaceError`, where it is `strict`, for a rule without a value."""
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
            except SpaceError as error:  # it counts only if no other group excludes everything
                failures.append(error)
            if self._budget is not None:
                self._budget -= join.examined
        if failures and 0 not in counts:
            raise failures[0]
        return 0 if failures else math.prod(counts)


def report_space(model: Model, budget: int = MAX_POINTS) -> SpaceReport:
    """Return the report of a whole space, which may be empty. Raises `SpaceError` where a rule has
    no value at a point that no other one excludes."""
    total = PointCounter(model, None).count_points(range(len(model.rule_names)), strict=True)
    counter = PointCounter(model, budget)
    free = counter.count_points(())
    effects = []
    before = free
    for position, name in enumerate(model.rule_names):
        after = counter.count_points(range(position + 1))
        left = counter.count_points((position,))
        gone = None if before is None or after is None else before - after
        alone = None if free is None or left is None else free - left
        effects.append(RuleEffect(name, gone, alone, left == 0))
        before = after
    conditional = None if free is None else model.cartesian - free
    return SpaceReport(model.cartesian, conditional, tuple(effects), total, model)


def find_emptying_rules(model: Model) -> tuple[str, ...]:
    """Of a space without points: a smallest set of rules, in order, that excludes every point."""
    counter = PointCounter(model)
    names = model.rule_names
    needed = list(range(len(names)))
    for end in range(1, len(names) + 1):
        if counter.count_points(range(end)) == 0:
            needed = list(range(end))
            break
    for position in list(needed[:-1]):
        rest = [other for other in needed if other != position]
        if counter.count_points(rest) == 0:
            needed = rest
    return tuple(names[position] for position in needed)
