"""Enumerate the valid points of parameters that rules connect, by a vectorized join.

A partial point has values for some parameters. The join adds one parameter at a time, in a greedy
order: it crosses the partial points with the parameter's values, and applies each rule as soon as
all of its parameters are present. Crossing goes block by block and depth first, so that memory
follows the surviving points and not the product. Partial points are one axis of an array and new
values the other, so that an operand of one side alone is computed once for that side.

A point where a rule has no value is marked. It becomes an error only if no other rule excludes the
point, so that the result does not depend on the order of rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from tilusbuild.expr.tree import Binary, walk_tree
from tilusbuild.expr.vector import evaluate_columns, pack_values
from tilusbuild.space.bounds import Interval, NoBoundsError, bound_value, find_impossible
from tilusbuild.space.model import Derived, Domain, Model, Rule, SpaceError, make_rule_error

BLOCK = 1 << 18  # points of one crossing: small enough for the processor's cache
WORTH_BOUNDING = 1 << 22  # combinations ahead; with fewer, intervals cost more than they save
MAX_POINTS = 1 << 26  # survivors of one join: half a gigabyte of ranks
MAX_EXAMINED = 1 << 46  # combinations of one join: they take some two weeks
MAX_RANK = 1 << 62  # beyond, ranks are integers of Python, which are slow


class BudgetError(Exception):
    """A join needs more combinations than its budget, or finds too many points."""


class _PartialPoints(Struct):
    """Partial points: the rank of each so far, and columns by name that later rules need.

    `invalid` has, by name, a mask of the points at which a column has no value. `fault` is, for
    each point, 0 or the number (from 1) of the first rule without a value there; None: all 0.
    """

    ranks: Any
    columns: dict[str, Any]
    invalid: dict[str, Any]
    fault: Any = None

    def __len__(self) -> int:
        return len(self.ranks)


class Join:
    """The join of the parameters `members` (positions, ascending) under `rules` over them."""

    def __init__(
        self,
        model: Model,
        members: Sequence[int],
        rules: Sequence[Rule],
        *,
        order: Sequence[int] | None = None,
    ) -> None:
        """`order` is the order in which the members are added; None: a greedy one."""
        self._model = model
        self._names = model.format_names(members)
        self._rules = rules
        self._strides = make_strides(model, members)
        combinations = math.prod(size for _, size in self._strides.values())
        # Most ranks fit 32 bits, in which NumPy divides five times as fast as in 64.
        small_type = np.int32 if combinations < 1 << 31 else np.int64
        self._rank_type: Any = small_type if combinations <= MAX_RANK else object
        self._columns = {p: make_row_columns(model.domains[p], p) for p in members}
        # The lowest and the highest value of each name that has numbers only.
        self._intervals: dict[str, Interval] = {
            name: (float(column.min()), float(column.max()))
            for columns in self._columns.values()
            for name, column in columns.items()
            if column.dtype.kind in "bif"
        }
        self._derived = {derived.name: derived.expr.tree for derived in model.derived}
        self._levels = plan_levels(model, order or order_greedily(model, members, rules), rules)
        # A rule that has no bounds over the whole domains has none over a block, so it is dropped
        # here and not tried at every block.
        for level in self._levels:
            level.partial = [
                rule
                for rule in level.partial
                if rule.pinned_parameter is None and self._find_possible(rule, {}) is not None
            ]
        self.examined = 0  # combinations that rules were applied to
        self._strict = True
        self._counting = False

    def estimate_examined(self) -> int:
        """Return the least number of combinations to examine before a rule drops any.

        Bounds of a rule with a remainder (%) are not counted on: they exclude next to nothing.
        """
        combinations = 1
        for level in self._levels:
            combinations *= len(self._model.domains[level.position].rows)
            if level.rules or not all(_has_remainder(rule) for rule in level.partial):
                break
        return combinations

    def _check_work(self, budget: int | None) -> None:
        """Raise `BudgetError` for a join beyond its budget, and `SpaceError` for one that would
        take weeks, before either starts."""
        least = self.estimate_examined()
        if budget is not None and least > budget:
            raise BudgetError
        if budget is None and least > MAX_EXAMINED:
            raise SpaceError(
                f"{least:,} combinations of {self._names} would have to be looked at, one by one,"
                " before a rule drops any",
                hint="add a rule over fewer of them, or take values away",
            )

    def list_ranks(self, budget: int | None = None) -> Any:
        """Return the ranks of the valid points, ascending.

        Raises `SpaceError` for a point where a rule has no value and, without a budget, for too
        many points. Raises `BudgetError` after `budget` combinations, and for too many points.
        """
        self._check_work(budget)
        # With an empty block the ranks of no point have a type, too.
        rank_blocks = [np.array([], dtype=self._rank_type)]
        count = 0
        for points in self._join_remaining(0, self._start_points(), budget):
            count += len(points)
            if count > MAX_POINTS and budget is not None:
                raise BudgetError
            if count > MAX_POINTS:
                raise SpaceError(
                    f"more than {MAX_POINTS:,} points: the parameters {self._names}, which the"
                    " rules connect, cannot be enumerated",
                    hint="add a restriction, or take values away",
                )
            rank_blocks.append(points.ranks)
        ranks = np.concatenate(rank_blocks)
        # The join adds the members in another order, so the ranks come unsorted.
        ranks.sort()
        return ranks

    def count_points(self, budget: int | None = None, *, strict: bool = False) -> int:
        """Return the number of points that no rule excludes.

        The join cannot list points afterwards. A rule without a value at a point does not exclude
        the point. A condition without a value excludes the pinned row (the `else`) only. With
        `strict`, raises `SpaceError` for a point at which a rule has no value, unless another rule
        excludes the point. Raises `BudgetError` after `budget` combinations.
        """
        self._check_work(budget)
        self._strict, self._counting = strict, True
        return sum(map(len, self._join_remaining(0, self._start_points(), budget)))

    def find_first(self, budget: int) -> dict[int, int] | None:
        """Return the row of each member, by position, at the first point in the order of the join.

        None if there is no point. Raises `SpaceError` if a rule has no value at the first point,
        and `BudgetError` after `budget` combinations.
        """
        # `_check_work` would refuse a join of very many combinations, and the first point may be
        # among the first of them.
        points = next(self._join_remaining(0, self._start_points(), budget), None)
        return None if points is None else self._decode_rank(points.ranks[0])

    def _start_points(self) -> _PartialPoints:
        """Return the one point without values that each join begins with."""
        return _PartialPoints(np.array([0], dtype=self._rank_type), {}, {})

    def _join_remaining(
        self, depth: int, points: _PartialPoints, budget: int | None
    ) -> Iterator[_PartialPoints]:
        """Join the members from `depth` on to `points`; yield blocks of complete points.

        Adds the combinations of each crossing to `examined`. Raises `BudgetError` if these are more
        than `budget`, and `SpaceError` for a marked point if the join is strict.
        """
        if depth == len(self._levels):
            if self._strict and points.fault is not None and points.fault.any():
                raise self._make_first_rule_error(points)
            yield points
            return
        level = self._levels[depth]
        row_count = len(self._model.domains[level.position].rows)
        # So many partial points have about `BLOCK` combinations with the rows of the next member.
        step = max(1, BLOCK // row_count)
        for start in range(0, len(points), step):
            block = points if len(points) <= step else _slice_points(points, start, start + step)
            self.examined += len(block) * row_count
            if budget is not None and self.examined > budget:
                raise BudgetError
            crossed = self._cross_level(level, block, row_count)
            # Depth first: the other blocks of this level wait, and take no memory.
            if len(crossed):
                yield from self._join_remaining(depth + 1, crossed, budget)

    def _cross_level(
        self, level: JoinLevel, points: _PartialPoints, row_count: int
    ) -> _PartialPoints:
        """Return the points crossed with the rows of one more parameter, without those that the
        rules of the level exclude.

        A point at which a rule has no value stays, marked in `fault`. At the last level of a count
        only the number of the points is right, unless a marked one is an error.
        """
        shape = (len(points), row_count)
        columns = {name: column[:, None] for name, column in points.columns.items()}
        invalid = {name: mask[:, None] for name, mask in points.invalid.items()}
        # Partial points are the first axis, and the values of the new parameter the second one.
        columns |= {name: column[None, :] for name, column in self._columns[level.position].items()}
        for derived in level.derived:
            needed = {name: columns[name] for name in derived.expr.names}
            values, marks = evaluate_columns(derived.expr, needed, invalid)
            columns[derived.name] = values
            if marks is not None:
                invalid[derived.name] = marks
        holds: Any = None
        fault = (
            None if points.fault is None else np.repeat(points.fault[:, None], row_count, axis=1)
        )
        for rule in level.rules:
            rule_holds, marks = self._apply_rule(rule, columns, invalid)
            if marks is not None:
                if fault is None:
                    fault = np.zeros(shape, dtype=np.int32)
                # An error names the first rule without a value, so a number that is there stays.
                rule_number = np.int32(1 + self._rules.index(rule))
                fault = np.where((fault == 0) & marks, rule_number, fault)
            holds = rule_holds if holds is None else holds & rule_holds
        if len(points) * row_count * level.ahead > WORTH_BOUNDING:
            for rule in level.partial:
                possible = self._find_possible(rule, columns)
                if possible is not None:
                    holds = possible if holds is None else holds & possible
        # A count needs only the number of complete points. An error needs the point, to show it.
        is_counted = self._counting and level is self._levels[-1]
        needs_error = self._strict and fault is not None and fault.any()
        if is_counted and not needs_error:
            survivors = np.broadcast_to(True if holds is None else holds, shape)
            return _PartialPoints(np.broadcast_to(0, int(np.count_nonzero(survivors))), {}, {})
        return self._gather_points(level, points, shape, holds, columns, invalid, fault)

    def _apply_rule(
        self, rule: Rule, columns: Mapping[str, Any], invalid: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """Return a mask of the points that a rule keeps, and one of the points at which it has no
        value; None for the second if there are no such points."""
        needed = {name: columns[name] for name in rule.expr.names}
        values, marks = evaluate_columns(rule.expr, needed, invalid)
        kept_unevaluated = marks
        if rule.pinned_parameter is not None:
            domain = self._model.domains[rule.pinned_parameter]
            row = columns[name_row_column(rule.pinned_parameter)]
            is_declared = row < domain.declared
            values = np.where(values, is_declared, row == domain.pinned)
            # Where a condition has no value, a count keeps the declared rows only. If it kept the
            # pinned row too, it could exceed the number of combinations.
            if marks is not None and not self._strict:
                kept_unevaluated = marks & is_declared
        return (values if marks is None else values | kept_unevaluated), marks

    def _find_possible(self, rule: Rule, columns: Mapping[str, Any]) -> Any:
        """Return a mask of the partial points that the rule may still allow; None if unknown.

        Marked points are dropped too: a false rule excludes them, whatever marked them.
        """

        def find_interval(name: str) -> Interval:
            """Return a name's values where it has a column already, else the interval of all of its
            values. Raises `NoBoundsError`."""
            column = columns.get(name)
            if column is not None and column.dtype.kind in "bif":
                values = column.astype(np.float64)
                return values, values
            if column is None and name in self._intervals:
                return self._intervals[name]
            if column is None and name in self._derived:
                return bound_value(self._derived[name], find_interval)
            raise NoBoundsError

        try:
            return ~find_impossible(rule.expr.tree, find_interval)
        except NoBoundsError:
            return None

    def _gather_points(
        self,
        level: JoinLevel,
        points: _PartialPoints,
        shape: tuple[int, int],
        holds: Any,
        columns: Mapping[str, Any],
        invalid: Mapping[str, Any],
        fault: Any,
    ) -> _PartialPoints:
        """Return the points at which `holds` is true, with the columns that later levels need.

        All arrays broadcast to `shape`: the partial points × the rows of the new parameter.
        """
        point_count, row_count = shape
        survivors = np.flatnonzero(np.broadcast_to(True if holds is None else holds, shape))
        # The two indices of each survivor in an array of this shape.
        parents = survivors // row_count
        digits = survivors - parents * row_count

        def take_survivors(array: Any) -> Any:
            """Return the elements of an array at the survivors."""
            # An array that depends on one axis only has the length 1 on the other.
            point_indices = parents if array.shape[0] == point_count else 0
            row_indices = digits if array.shape[1] == row_count else 0
            return array[point_indices, row_indices]

        stride, _ = self._strides[level.position]
        rank_increase = digits.astype(self._rank_type, copy=False) * stride
        return _PartialPoints(
            points.ranks[parents] + rank_increase,
            {name: take_survivors(columns[name]) for name in level.keep},
            {
                name: take_survivors(np.broadcast_to(invalid[name], shape))
                for name in level.keep
                if name in invalid
            },
            None if fault is None else fault[parents, digits],
        )

    def _make_first_rule_error(self, points: _PartialPoints) -> SpaceError:
        """Return the error of the marked point with the lowest rank.

        The rule is evaluated there once more, by the scalar form, for the words of the message.
        """
        rows = np.flatnonzero(points.fault > 0)
        row = int(rows[np.argmin(points.ranks[rows])])
        rule = self._rules[int(points.fault[row]) - 1]
        return make_rule_error(self._model, rule, self._decode_rank(points.ranks[row]))

    def _decode_rank(self, rank: Any) -> dict[int, int]:
        """Return the row of each member, by position, at the point with this rank."""
        return {
            position: int(rank) // stride % size
            for position, (stride, size) in self._strides.items()
        }


def make_strides(model: Model, members: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return for each member, by position, its stride in the rank of a combination, and its number
    of rows. The last member varies fastest."""
    strides: dict[int, tuple[int, int]] = {}
    combinations = 1
    for position in reversed(members):
        size = len(model.domains[position].rows)
        strides[position] = combinations, size
        combinations *= size
    return strides


def _has_remainder(rule: Rule) -> bool:
    """Return whether the rule's expression has a `%`."""
    return any(isinstance(node, Binary) and node.op == "%" for node in walk_tree(rule.expr.tree))


def make_row_columns(domain: Domain, position: int) -> dict[str, Any]:
    """Return a parameter's values as arrays by name, and its row numbers as one more."""
    columns = {name_row_column(position): np.arange(len(domain.rows))}
    return columns | {name: pack_values(values) for name, values in domain.columns.items()}


def _slice_points(points: _PartialPoints, start: int, stop: int) -> _PartialPoints:
    """Return the partial points from `start` to before `stop`."""
    return _PartialPoints(
        points.ranks[start:stop],
        {name: column[start:stop] for name, column in points.columns.items()},
        {name: mask[start:stop] for name, mask in points.invalid.items()},
        None if points.fault is None else points.fault[start:stop],
    )


class JoinLevel(Struct):
    """One step of a join: the parameter that is added, and what is evaluated then."""

    position: int
    derived: list[Derived] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    partial: list[Rule] = field(default_factory=list)
    """Rules that need further parameters. Their bounds may already exclude a partial point."""
    keep: set[str] = field(default_factory=set)
    ahead: int = 1
    """The number of combinations of all later parameters."""


def name_row_column(position: int) -> str:
    """Return the name of the column of a parameter's row numbers."""
    return f"#{position}"


def plan_levels(model: Model, order: Sequence[int], rules: Sequence[Rule]) -> list[JoinLevel]:
    """Return a level for each parameter of `order`, with its rules, derived values and columns.

    A rule is applied, and a derived value computed, at the first level that has all it needs.
    """
    levels = [JoinLevel(position) for position in order]
    depth_of = {level.position: depth for depth, level in enumerate(levels)}
    used_until: dict[str, int] = {}

    def extend_use(names: frozenset[str], depth: int) -> None:
        for name in names:
            used_until[name] = max(depth, used_until.get(name, 0))

    for rule in rules:
        *earlier_depths, depth = sorted(depth_of[position] for position in rule.needs)
        levels[depth].rules.append(rule)
        for earlier_depth in earlier_depths:
            levels[earlier_depth].partial.append(rule)
        extend_use(rule.expr.names, depth)
        if rule.pinned_parameter is not None:
            extend_use(frozenset((name_row_column(rule.pinned_parameter),)), depth)
    # Reversed: a derived value extends the use of those that it is computed from.
    for derived in reversed(model.derived):
        if derived.name in used_until:
            depth = max(depth_of[position] for position in derived.needs)
            # The loop goes backwards, so inserting in front keeps the model's order.
            levels[depth].derived.insert(0, derived)
            extend_use(derived.expr.names, depth)
    available_from = {
        derived.name: depth for depth, level in enumerate(levels) for derived in level.derived
    }
    for position, depth in depth_of.items():
        available_from |= dict.fromkeys(
            (*model.domains[position].names, name_row_column(position)), depth
        )
    # From the last pair of neighbors to the first: each level counts on from the one after it.
    for later, level in zip(levels[:0:-1], levels[-2::-1], strict=True):
        level.ahead = later.ahead * len(model.domains[later.position].rows)
    for depth, level in enumerate(levels):
        level.keep = {
            name for name, until in used_until.items() if available_from[name] <= depth < until
        }
    return levels


def order_greedily(model: Model, members: Sequence[int], rules: Sequence[Rule]) -> list[int]:
    """Return the members in the order of the join.

    The next member is the one that completes the most rules; of several, the one that brings a rule
    nearest to completion, then the one with the fewest values.
    """
    remaining, joined, order = list(members), set[int](), list[int]()
    while remaining:

        def rate_position(position: int) -> tuple[float, float, int, int]:
            """Return how good a member is as the next one: the greatest of these tuples wins."""
            joined_after = joined | {position}
            needs_of_rules = [rule.needs for rule in rules if position in rule.needs]
            complete_rules = sum(needs <= joined_after for needs in needs_of_rules)
            joined_shares = (
                len(needs & joined_after) / len(needs)
                for needs in needs_of_rules
                if not needs <= joined_after
            )
            largest_share = max(joined_shares, default=0.0)
            # The position decides between equal ones, so that the order is always the same.
            return complete_rules, largest_share, -len(model.domains[position].rows), -position

        best = max(remaining, key=rate_position)
        order.append(best)
        joined.add(best)
        remaining.remove(best)
    return order
