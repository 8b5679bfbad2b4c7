"""The valid points of a set of parameters that rules connect, by a vectorised join.

One parameter at a time, in a greedy order, the partial points are crossed with its values, and each
rule filters as soon as all that it needs is there. Crossing goes block by block and depth first, so
that memory follows the points that survive and not the product. Old points stand on one axis and
new values on the other: what a rule computes from one side alone is computed once a side.

A point where a rule has no value is neither valid nor dropped: it is marked, and it is an error
only if no other rule excludes it. So the outcome does not depend on the order of rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from tilusbuild.expr.tree import Binary, walk_tree
from tilusbuild.expr.vector import evaluate_columns, pack_values
from tilusbuild.space.bounds import (
    Interval,
    NoBoundsError,
    bounds_of_value,
    impossible,
    intervals_of_columns,
)
from tilusbuild.space.model import Derived, Domain, Model, Rule, SpaceError, fault_at

BLOCK = 1 << 18  # points that one crossing may make: small enough for the cache
WORTH_BOUNDING = 1 << 22  # combinations ahead; below, looking ahead costs more than it saves
MAX_POINTS = 1 << 26  # survivors of one join: half a gigabyte of ranks
MAX_LOOKED = 1 << 46  # combinations that one join looks at: some two weeks
A_SECOND = 60_000_000  # combinations, about: for people who ask how long it would take
MAX_RANK = 1 << 62  # beyond, ranks are integers of Python, which are slow


class BudgetError(Exception):
    """A count would look at more points than was allowed."""


class _Points(Struct):
    """Partial points: their rank so far, the columns still needed, and the marks.

    `fault` is 0, or 1 + the number of the first rule that has no value at the point.
    """

    rank: Any
    columns: dict[str, Any]
    invalid: dict[str, Any]
    fault: Any = None

    def __len__(self) -> int:
        return len(self.rank)


class Join:
    """The join of `members` (positions, ascending) under `rules`, each of which needs only them."""

    def __init__(
        self,
        model: Model,
        members: Sequence[int],
        rules: Sequence[Rule],
        *,
        order: Sequence[int] | None = None,
    ) -> None:
        """`order` is that in which the members join; without it what is cheapest."""
        self._model = model
        self._members = members
        self._rules = rules
        self._numbers = {id(rule): number for number, rule in enumerate(rules, 1)}
        self.radix: dict[int, int] = {}
        """By position; the last member varies fastest."""
        size = 1
        for position in reversed(members):
            self.radix[position] = size
            size *= len(model.domains[position].rows)
        self._kind: Any = np.int64 if size <= MAX_RANK else object
        self._columns = {p: columns_of(model.domains[p], p) for p in members}
        self._bounds = {
            name: (int(column.min()), int(column.max()))
            for columns in self._columns.values()
            for name, column in columns.items()
            if column.dtype == np.int64
        }
        self._intervals: dict[str, Interval] = {}
        for columns in self._columns.values():
            self._intervals |= intervals_of_columns(columns)
        self._derived = {derived.name: derived.expr.tree for derived in model.derived}
        self._levels = levels_of(model, order or greedy_order(model, members, rules), rules)
        for level in self._levels:
            level.partial = [
                r for r in level.partial if r.pins is None and self._possible(r, {}) is not None
            ]
        self._budget: int | None = None
        self.looked = 0  # points that rules were applied to
        self._found: list[Any] = []
        self._count = 0
        self._counting = False
        self._strict = False
        self._wants_first = False

    def least_looked(self) -> int:
        """Return how many combinations are looked at before any rule can be expected to drop one:
        the bounds of a remainder exclude next to nothing."""
        found = 1
        for level in self._levels:
            found *= len(self._model.domains[level.position].rows)
            if level.rules or not all(_has_remainder(rule) for rule in level.partial):
                break
        return found

    def _check_work(self) -> None:
        """Raise `SpaceError` for what would take months, at once and not after them."""
        least = self.least_looked()
        if least > MAX_LOOKED:
            names = ", ".join(n for p in self._members for n in self._model.domains[p].names)
            raise SpaceError(
                f"{least:,} combinations of {names} would have to be looked at, one by one, before"
                f" a rule drops any: about {_duration(least / A_SECOND)}",
                hint="add a rule over fewer of them, or take values away",
            )

    def ranks(self, budget: int | None = None) -> Any:
        """Return the valid points, ascending. Raises `SpaceError`, and `BudgetError` once `budget`
        were looked at or there are too many points."""
        self._begin(budget)
        self._strict = True
        self._descend(0, self._origin())
        ranks = np.concatenate([np.array([], dtype=self._kind), *self._found])
        ranks.sort()
        return ranks

    def count(self, budget: int | None = None, *, strict: bool = False) -> int:
        """Return how many points no rule excludes. A point where a rule has no value is left by it;
        if a condition has none, so are the parameter's declared values. `strict`: such a point that
        no other rule excludes raises `SpaceError`, as in `ranks`. Raises `BudgetError` once
        `budget` were looked at."""
        self._begin(budget)
        self._counting, self._strict = True, strict
        self._descend(0, self._origin())
        return self._count

    def first(self, budget: int) -> dict[int, int] | None:
        """Return the digits (position → row) of the first point in the order of joining, None if
        there is none. Raises `SpaceError` where a rule has no value at it, `BudgetError`."""
        self._begin(None)
        self._budget, self._strict = budget, True
        self._wants_first = True
        self._descend(0, self._origin())
        if not self._count:
            return None
        return self._digits_of(self._found[0][0])

    def _begin(self, budget: int | None) -> None:
        self._budget, self._count, self._counting, self._wants_first = budget, 0, False, False
        self._found = []
        if budget is not None and self.least_looked() > budget:
            raise BudgetError
        if budget is None:
            self._check_work()

    def _origin(self) -> _Points:
        return _Points(np.array([0], dtype=self._kind), {}, {})

    def _descend(self, depth: int, points: _Points) -> None:
        """Join the rest of the members to `points`."""
        if not len(points):
            return
        if depth == len(self._levels):
            self._collect(points)
            return
        level = self._levels[depth]
        width = len(self._model.domains[level.position].rows)
        step = max(1, BLOCK // width)
        for start in range(0, len(points), step):
            block = points if len(points) <= step else _slice(points, start, start + step)
            self.looked += len(block) * width
            if self._budget is not None and self.looked > self._budget:
                raise BudgetError
            last = self._counting and depth == len(self._levels) - 1
            crossed = self._cross(level, block, width, count_only=last)
            if crossed is not None:
                self._descend(depth + 1, crossed)
            if self._wants_first and self._count:
                return

    def _cross(
        self, level: JoinLevel, points: _Points, width: int, *, count_only: bool
    ) -> _Points | None:
        """Return the points with each value of one more parameter that the rules allow."""
        shape = (len(points), width)
        columns = {name: column[:, None] for name, column in points.columns.items()}
        bad = {name: mask[:, None] for name, mask in points.invalid.items()}
        columns |= {n: column[None, :] for n, column in self._columns[level.position].items()}
        for derived in level.derived:
            values, marks = evaluate_columns(
                derived.expr, {n: columns[n] for n in derived.expr.names}, bad, self._bounds
            )
            columns[derived.name] = values
            if marks is not None:
                bad[derived.name] = marks
        holds: Any = None
        fault = None if points.fault is None else np.repeat(points.fault[:, None], width, axis=1)
        for rule in level.rules:
            here, marks = self._apply(rule, columns, bad)
            if marks is not None:
                here = here | (marks if self._strict else self._left_by(rule, columns, marks))
                if fault is None:
                    fault = np.zeros(shape, dtype=np.int32)
                fault = np.where((fault == 0) & marks, np.int32(self._numbers[id(rule)]), fault)
            holds = here if holds is None else holds & here
        for rule in level.partial if shape[0] * width * level.ahead > WORTH_BOUNDING else ():
            possible = self._possible(rule, columns)
            if possible is not None:
                holds = possible if holds is None else holds & possible
        if count_only and not (self._strict and fault is not None and fault.any()):
            kept = shape[0] * width
            if holds is not None:
                kept = int(np.count_nonzero(np.broadcast_to(holds, shape)))
            self._count += kept
            return None
        return self._gather(level, points, shape, holds, columns, bad, fault)

    def _apply(
        self, rule: Rule, columns: Mapping[str, Any], bad: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        needed = {name: columns[name] for name in rule.expr.names}
        values, marks = evaluate_columns(rule.expr, needed, bad, self._bounds)
        if rule.pins is None:
            return values, marks
        domain = self._model.domains[rule.pins]
        row = columns[row_name(rule.pins)]
        return np.where(values, row < domain.declared, row == domain.pinned), marks

    def _left_by(self, rule: Rule, columns: Mapping[str, Any], marks: Any) -> Any:
        """Return which points without a value of the rule count: of a condition, each of the
        declared rows once, so that no count is above that of all combinations."""
        if rule.pins is None:
            return marks
        return marks & (columns[row_name(rule.pins)] < self._model.domains[rule.pins].declared)

    def _possible(self, rule: Rule, columns: Mapping[str, Any]) -> Any:
        """Return where the rule may still be true; None if that is not known. A point that
        already has a fault is dropped too: whatever is false excludes it."""

        def interval_of(name: str) -> Interval:
            column = columns.get(name)
            if column is not None and column.dtype.kind in "bif":
                values = column.astype(np.float64)
                return values, values
            if column is None and name in self._intervals:
                return self._intervals[name]
            if column is None and name in self._derived:
                return bounds_of_value(self._derived[name], interval_of)
            raise NoBoundsError

        try:
            return ~impossible(rule.expr.tree, interval_of)
        except NoBoundsError:
            return None

    def _gather(
        self,
        level: JoinLevel,
        points: _Points,
        shape: tuple[int, int],
        holds: Any,
        columns: Mapping[str, Any],
        bad: Mapping[str, Any],
        fault: Any,
    ) -> _Points:
        if holds is None:
            kept = np.arange(shape[0] * shape[1], dtype=np.int64)
        else:
            kept = np.flatnonzero(np.broadcast_to(holds, shape))
        parent = kept // shape[1]
        digit = kept - parent * shape[1]

        def take(array: Any) -> Any:
            rows = parent if array.shape[0] > 1 or shape[0] == 1 else 0
            return array[rows, digit if array.shape[1] > 1 or shape[1] == 1 else 0]

        step = digit.astype(self._kind, copy=False) * self.radix[level.position]
        return _Points(
            points.rank[parent] + step,
            {name: take(columns[name]) for name in level.keep},
            {name: take(np.broadcast_to(bad[name], shape)) for name in level.keep if name in bad},
            None if fault is None else fault[parent, digit],
        )

    def _collect(self, points: _Points) -> None:
        if self._strict and points.fault is not None and points.fault.any():
            raise self._fault(points)
        if self._counting:
            self._count += len(points)
            return
        self._count += len(points)
        if self._count > MAX_POINTS:
            if self._budget is not None:
                raise BudgetError
            names = ", ".join(n for p in self._members for n in self._model.domains[p].names)
            raise SpaceError(
                f"more than {MAX_POINTS:,} points: the parameters {names}, which the rules connect,"
                " cannot be enumerated",
                hint="add a restriction, or take values away",
            )
        self._found.append(points.rank)

    def _fault(self, points: _Points) -> SpaceError:
        """Return the error of the first marked point, whose rule is evaluated for its words."""
        rows = np.flatnonzero(points.fault > 0)
        row = int(rows[np.argmin(points.rank[rows])])
        rule = self._rules[int(points.fault[row]) - 1]
        return fault_at(self._model, rule, self._digits_of(points.rank[row]))

    def _digits_of(self, rank: Any) -> dict[int, int]:
        """Return position → row of the point with this rank."""
        return {
            position: int(rank) // radix % len(self._model.domains[position].rows)
            for position, radix in self.radix.items()
        }


def _has_remainder(rule: Rule) -> bool:
    return any(isinstance(node, Binary) and node.op == "%" for node in walk_tree(rule.expr.tree))


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds / 60:,.0f} minutes"


def columns_of(domain: Domain, position: int) -> dict[str, Any]:
    """Return a parameter's values as numpy columns, and its rows' numbers as one more."""
    columns = {row_name(position): _integers(range(len(domain.rows)))}
    return columns | {name: pack_values(values) for name, values in domain.columns.items()}


def _integers(values: Any) -> Any:
    return np.array(values, dtype=np.int64)


def _slice(points: _Points, start: int, stop: int) -> _Points:
    return _Points(
        points.rank[start:stop],
        {name: column[start:stop] for name, column in points.columns.items()},
        {name: mask[start:stop] for name, mask in points.invalid.items()},
        None if points.fault is None else points.fault[start:stop],
    )


class JoinLevel(Struct):
    """What happens when one parameter joins."""

    position: int
    derived: list[Derived] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    partial: list[Rule] = field(default_factory=list)
    """Rules that need more, but may show already that a partial point leads nowhere."""
    keep: set[str] = field(default_factory=set)
    ahead: int = 1
    """With how many combinations each point of this level will yet be crossed, at most."""


def row_name(position: int) -> str:
    """Return the name of the column of a parameter's row numbers."""
    return f"#{position}"


def levels_of(model: Model, order: Sequence[int], rules: Sequence[Rule]) -> list[JoinLevel]:
    """Return when each rule applies, when derived values are computed, and what is kept."""
    levels = [JoinLevel(position) for position in order]
    depth_of = {level.position: depth for depth, level in enumerate(levels)}
    used_until: dict[str, int] = {}

    def use(names: frozenset[str], depth: int) -> None:
        for name in names:
            used_until[name] = max(depth, used_until.get(name, 0))

    for rule in rules:
        depth = max(depth_of[position] for position in rule.needs)
        levels[depth].rules.append(rule)
        for earlier in sorted(depth_of[position] for position in rule.needs)[:-1]:
            levels[earlier].partial.append(rule)
        use(rule.expr.names, depth)
        if rule.pins is not None:
            use(frozenset((row_name(rule.pins),)), depth)
    for derived in reversed(model.derived):
        if derived.name in used_until:
            depth = max(depth_of[position] for position in derived.needs)
            levels[depth].derived.insert(0, derived)
            use(derived.expr.names, depth)
    made = {derived.name: depth for depth, level in enumerate(levels) for derived in level.derived}
    for position, depth in depth_of.items():
        made |= dict.fromkeys((*model.domains[position].names, row_name(position)), depth)
    for later, level in zip(levels[:0:-1], levels[-2::-1], strict=True):
        level.ahead = later.ahead * len(model.domains[later.position].rows)
    for depth, level in enumerate(levels):
        level.keep = {n for n, until in used_until.items() if made[n] <= depth < until}
    return levels


def greedy_order(model: Model, members: Sequence[int], rules: Sequence[Rule]) -> list[int]:
    """First what completes the most rules, then what comes nearest to one, then what is small."""
    left, done, order = list(members), set[int](), list[int]()
    while left:

        def worth(position: int) -> tuple[float, float, int, int]:
            after = done | {position}
            touching = [rule.needs for rule in rules if position in rule.needs]
            complete = sum(needs <= after for needs in touching)
            nearest = max(
                (len(needs & after) / len(needs) for needs in touching if not needs <= after),
                default=0.0,
            )
            return complete, nearest, -len(model.domains[position].rows), -position

        best = max(left, key=worth)
        order.append(best)
        done.add(best)
        left.remove(best)
    return order
