"""A tuning space as an ordered sequence of its valid points, the schedules.

The first declared parameter varies slowest. The values of a parameter keep their order; an `else`
that is not among the values comes last. Only groups of parameters that rules connect are
enumerated. The number of points, the i-th point and a sample are computed from the groups, so that
a space of 10^17 points costs no more than its groups. Equal specs give equal spaces on every
machine. `select_schedules` returns the schedules of a level: the default alone, a sample, or all.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tilusbuild.errors import did_you_mean
from tilusbuild.expr import Value
from tilusbuild.space.few import SmallSpace, enumerate_small
from tilusbuild.space.model import (
    CHUNK,
    DefaultError,
    Domain,
    EmptySpaceError,
    Model,
    Schedule,
    Schedules,
    SpaceError,
    SpaceSpec,
    build_model,
    format_row,
    make_outside_error,
)

if TYPE_CHECKING:
    from tilusbuild.space.component import Component
    from tilusbuild.space.open import OpenComponent

# The numbers of valid points (None: not counted) and of all combinations.
Size: TypeAlias = tuple[int | None, int]


class _MatchingRows(NamedTuple):
    """The rows that a parameter may have at a point that is searched for."""

    is_given: bool
    """Whether the caller gave values. Otherwise the row is the default, which an `else` may
    replace."""
    rows: set[int]


class Space:
    """The valid points of `spec`. Raises `SpaceError`, also when there are none.

    `size` is the `size` of an equal space: with it nothing is enumerated before a point is needed.
    `budget` is a number of combinations. A group that needs more of them to be enumerated is open:
    its points can be searched for and drawn, but not counted. The index of a schedule then counts
    all combinations, valid or not, and `count` is not known.
    """

    def __init__(
        self, spec: SpaceSpec, size: Size | None = None, *, budget: int | None = None
    ) -> None:
        self.spec = spec
        self._budget = budget
        # Without a known size the space is enumerated now, so that its mistakes are raised here.
        if size is None:
            count = None if self._is_open else self._index_count
            size = count, self._model.cartesian
        self.size = size

    @cached_property
    def _model(self) -> Model:
        return build_model(self.spec)

    @cached_property
    def _small(self) -> SmallSpace | None:
        """The points of a small space, which needs no arrays; None for any other."""
        return enumerate_small(self._model, self._budget)

    @cached_property
    def _components(self) -> list[Component | OpenComponent]:
        """The groups of parameters, enumerated where the budget allows it."""
        from tilusbuild.space.component import connect_parameters, enumerate_group
        from tilusbuild.space.join import BudgetError
        from tilusbuild.space.open import OpenComponent

        model = self._model
        if model.never:
            raise self._make_empty_error()
        components: list[Component | OpenComponent] = []
        # A rule without a value is an error only at a point that nothing else excludes. If one
        # group is empty there is no such point, so the error of an empty space is raised first.
        failures: list[SpaceError] = []
        for members, rules in connect_parameters(model, model.rules):
            try:
                components.append(enumerate_group(model, members, rules, self._budget))
            except BudgetError:
                components.append(OpenComponent(model, members, rules))
            except SpaceError as error:
                failures.append(error)
        if any(part.count == 0 for part in components):
            raise self._make_empty_error()
        if failures:
            raise failures[0]
        return components

    @cached_property
    def _component_of(self) -> Mapping[int, int]:
        """The index of the component of each parameter, by the parameter's position."""
        members = ((part.members, index) for index, part in enumerate(self._components))
        return {position: index for positions, index in members for position in positions}

    @property
    def _index_count(self) -> int:
        """The number of points; of an open space, where each combination has an index, of these."""
        if self._small is not None:
            return len(self._small)
        return math.prod(part.count for part in self._components)

    @cached_property
    def _is_open(self) -> bool:
        if self._small is not None:
            return False
        from tilusbuild.space.open import OpenComponent

        return any(isinstance(part, OpenComponent) for part in self._components)

    @property
    def count(self) -> int:
        """The number of valid points, maybe beyond 64 bits. Raises `SpaceError` if not counted."""
        if self.size[0] is None:
            raise SpaceError("the points of this space were not counted")
        return self.size[0]

    @property
    def cartesian(self) -> int:
        """The number of combinations of declared values, restricted by nothing."""
        return self.size[1]

    def __getitem__(self, index: int) -> Schedule:
        """Return the point with this index. Raises `IndexError`.

        Raises `SpaceError` if a derived value cannot be computed there.
        """
        count = self._index_count
        if index < 0:
            index += count
        if not 0 <= index < count:
            raise IndexError(f"schedule {index} of {count}")
        schedule: Schedule = self.take_points([index])[0]
        return schedule

    def has_point(self, index: int) -> bool:
        """Return whether the combination `index` is a point; in an open space most are not."""
        if not 0 <= index < self._index_count:
            return False
        if not self._is_open:
            return True
        try:
            values = self[index].values
            point = self.complete_point({n: values[n] for n in self.spec.parameter_names})
        except SpaceError:
            return False
        # All values are given, so the point is the combination itself if that is valid.
        return point.index == index

    def __iter__(self) -> Iterator[Schedule]:
        for first in range(0, self.count, CHUNK):
            yield from self.take_points(range(first, min(self.count, first + CHUNK)))

    def take_points(self, indices: Iterable[int]) -> Schedules:
        """Return the points with these indices, which must exist.

        Raises `SpaceError` if a derived value cannot be computed.
        """
        sequence = indices if isinstance(indices, range) else list(indices)
        if self._small is not None:
            columns = self._small.make_columns(sequence)
            if columns is not None:
                return Schedules(sequence, columns)
        from tilusbuild.space.columns import decode_columns

        is_all = not self._is_open and sequence == range(self._index_count)
        digits = self._decode_all() if is_all else self._decode_indices(sequence)
        return Schedules(sequence, decode_columns(self._model, digits))

    def take_all(self) -> Schedules:
        """Return all points in order. Raises `SpaceError` if a derived value cannot be computed."""
        return self.take_points(range(self.count))

    def sample_points(self, n: int, seed: int = 0, include: Iterable[int] = ()) -> Schedules:
        """Return `n` different points (all, if there are fewer), in the order of their indices.

        The indices `include` are taken first, as many as `n` permits, and the others are drawn
        uniformly. A larger `n` with the same seed returns all points of a smaller one. The result
        depends on the space and the arguments only.
        """
        random_indices = (
            self._draw_indices(seed) if self._is_open else shuffle_range(self._index_count, seed)
        )
        indices = itertools.chain(include, random_indices)
        chosen: set[int] = set()
        while len(chosen) < n:
            index = next(indices, None)
            if index is None:
                break
            chosen.add(index)
        return self.take_points(sorted(chosen))

    def _draw_indices(self, seed: int) -> Iterator[int]:
        """Yield the indices of random points of an open space, with repetition."""
        from tilusbuild.space.open import draw_digits

        for digits in draw_digits(self._components, seed):
            yield self._rank_point(digits)

    def complete_point(self, partial: Mapping[str, Value]) -> Schedule:
        """Return the first point with the values of `partial` and the defaults of the other
        parameters.

        Where the condition of a parameter is false its `else` replaces the default. Raises
        `SpaceError` for a name that is not a parameter, for a value outside of the space, and if
        there is no such point.
        """
        rows_by_position = self._match_rows(partial)
        if self._small is not None:
            # Without such a point the groups make the error: it names the parameters of one group.
            with suppress(SpaceError):
                return self[self._rank_point(self._find_first(self._small, rows_by_position))]
        digits: dict[int, int] = {}
        for part in self._components:
            digits |= self._find_first(part, rows_by_position)
        return self[self._rank_point(digits)]

    def _make_empty_error(self) -> EmptySpaceError:
        """Return the error of an empty space; it names the rules that empty it."""
        from tilusbuild.space.report import find_emptying_rules

        rules = find_emptying_rules(self._model)
        if not rules:
            return EmptySpaceError("the space is empty: its conditions exclude every point")
        names = " and ".join(f'"{name}"' for name in rules)
        exclude = "excludes every point" if len(rules) == 1 else "together exclude every point"
        word = "the rule" if len(rules) == 1 else "the rules"
        return EmptySpaceError(
            f"the space is empty: {word} {names} {exclude}",
            rule=rules[-1],
            hint="relax a rule, or give a parameter more values",
        )

    def _match_rows(self, partial: Mapping[str, Value]) -> dict[int, _MatchingRows]:
        """Return the rows with the values of `partial`, or else the default's, by position.

        A parameter that `partial` does not name and that has no default is left out. Raises
        `SpaceError` for an unknown name, and for values that no row has.
        """
        for name in partial:
            if name not in self._model.positions:
                hint = did_you_mean(name, self._model.positions)
                raise SpaceError(f'the default names "{name}", which is not a parameter', hint=hint)
        rows_by_position: dict[int, _MatchingRows] = {}
        for position, domain in enumerate(self._model.domains):
            values = {
                index: partial[name] for index, name in enumerate(domain.names) if name in partial
            }
            if values:
                rows_by_position[position] = _MatchingRows(
                    is_given=True, rows=_find_rows(domain, values)
                )
            elif domain.default is not None:
                rows_by_position[position] = _MatchingRows(is_given=False, rows={domain.default})
        return rows_by_position

    def _find_first(
        self,
        part: SmallSpace | Component | OpenComponent,
        rows_by_position: Mapping[int, _MatchingRows],
    ) -> dict[int, int]:
        """Return the row of each member at the part's first point that matches `rows_by_position`.

        Where no point has a default, the `else` of its parameter may stand for it. Raises
        `SpaceError` if no point matches.
        """
        # Values that the caller gave come before defaults, because an `else` may replace a default.
        matched = (position for position in part.members if position in rows_by_position)
        ordered = sorted(matched, key=lambda position: not rows_by_position[position].is_given)
        point = part.find_first({position: rows_by_position[position].rows for position in ordered})
        # Mostly there is such a point. If not, the parameters are added one by one, each with its
        # rows or else with its `else`, to learn which default has to be replaced.
        if point is None:
            allowed: dict[int, set[int]] = {}
            for position in ordered:
                is_given, rows = rows_by_position[position]
                pinned = self._model.domains[position].pinned
                allowed[position] = rows
                if part.find_first(allowed):
                    continue
                if not is_given and pinned is not None:
                    allowed[position] = {pinned}
                    if part.find_first(allowed):
                        continue
                raise self._make_missing_default_error(ordered, position, rows_by_position)
            point = part.find_first(allowed)
        if point is None:
            raise self._make_empty_error()
        return point

    def _make_missing_default_error(
        self, ordered: list[int], position: int, rows_by_position: Mapping[int, _MatchingRows]
    ) -> SpaceError:
        """Return the error that no valid point has the default's values in the domains of
        `ordered` up to and including `position`."""
        texts = []
        for earlier in ordered[: ordered.index(position) + 1]:
            domain = self._model.domains[earlier]
            title = ", ".join(domain.names)
            # Several rows may have the value of one of their linked names: the first one is shown.
            first_row = domain.rows[min(rows_by_position[earlier].rows)]
            texts.append(f"{title} = {format_row(first_row)}")
        rules_of_position = (rule for rule in self._model.rules if position in rule.needs)
        rules = ", ".join(dict.fromkeys(f'"{rule.name}"' for rule in rules_of_position))
        return DefaultError(
            f"the default is outside the space: no valid point has {', '.join(texts)}",
            rule=", ".join(self._model.domains[position].names),
            hint=f"rules to check: {rules}" if rules else None,
        )

    def _rank_point(self, digits: Mapping[int, int]) -> int:
        """Return the index of the point with these rows, by position."""
        if self._small is not None:
            return self._small.compute_index(digits[position] for position in range(len(digits)))
        # Each parameter in turn narrows the range of the points of its group. `total` is the number
        # of points of the space that have the digits so far.
        lows = [0 for _ in self._components]
        sizes = [part.count for part in self._components]
        total, rank = self._index_count, 0
        for position in range(len(digits)):
            group = self._component_of[position]
            bounds = self._components[group].find_range(position, lows[group], digits[position])
            first, end = (int(bound) for bound in bounds)
            # The points of the other groups that go with each point of this one.
            other_points = total // sizes[group]
            rank += (first - lows[group]) * other_points
            lows[group], sizes[group] = first, end - first
            total = other_points * sizes[group]
        return rank

    def _decode_indices(self, indices: Sequence[int]) -> list[Any]:
        """Return for each parameter an array of its rows at the points of `indices`.

        This is `_rank_point` backwards, for all indices at once.
        """
        import numpy as np

        from tilusbuild.space.columns import choose_row_type

        def choose_integer_type(count: int) -> Any:
            return np.int64 if count <= 2**63 - 1 else object  # Python's integers beyond 64 bits

        index_type = choose_integer_type(self._index_count)
        counts = [part.count for part in self._components]
        remainder = np.array(indices, dtype=index_type)
        total = np.full(len(remainder), self._index_count, dtype=index_type)
        lows = [np.zeros(len(remainder), dtype=choose_integer_type(count)) for count in counts]
        sizes = [
            np.full(len(remainder), count, dtype=choose_integer_type(count)) for count in counts
        ]
        columns = []
        for position, domain in enumerate(self._model.domains):
            group = self._component_of[position]
            part = self._components[group]
            other_points = total // sizes[group]
            offset = (remainder // other_points).astype(choose_integer_type(part.count))
            digit = part.get_digit(position, lows[group] + offset)
            first, end = part.find_range(position, lows[group], digit)
            remainder = remainder - (first - lows[group]) * other_points
            lows[group], sizes[group] = first, end - first
            total = other_points * sizes[group]
            columns.append(digit.astype(choose_row_type(len(domain.rows))))
        return columns

    def _decode_all(self) -> list[Any]:
        """Return for each parameter an array of its rows at all points, of a closed space.

        `_decode_indices` would search the ranks for each point and parameter: this sorts instead.
        """
        import numpy as np

        from tilusbuild.space.columns import choose_row_type

        counts = [part.count for part in self._components]
        # The product of the groups has all points, in the order of the groups: at each, the index
        # of its point of each group.
        group_indices = np.unravel_index(np.arange(self._index_count), counts) if counts else ()
        columns: list[Any] = [None] * len(self._model.domains)
        for part, indices in zip(self._components, group_indices, strict=True):
            for position in part.members:
                row_type = choose_row_type(len(self._model.domains[position].rows))
                digits = part.get_digit(position, np.arange(part.count))
                columns[position] = digits.astype(row_type)[indices]
        # The points are in the space's order already if the members of the groups, one group after
        # the other, are ascending. A group with one point does not change the order.
        members = [
            position for part in self._components if part.count > 1 for position in part.members
        ]
        if members != sorted(members):
            order = np.lexsort(columns[::-1])
            columns = [column[order] for column in columns]
        return columns


def _find_rows(domain: Domain, values: Mapping[int, Value]) -> set[int]:
    """Return the rows with these values, by their index in a row. Raises `SpaceError` if there are
    none."""
    if not (rows := domain.find_rows(values)):
        names = tuple(domain.names[index] for index in values)
        # Of linked parameters the message shows only the given names, each row once.
        partial_rows = dict.fromkeys(tuple(row[index] for index in values) for row in domain.rows)
        raise make_outside_error(Domain(names, tuple(partial_rows)), tuple(values.values()))
    return rows


MAX_SCHEDULES = 1_000_000
SAMPLE_BUDGET = 1 << 27
"""Combinations to examine for a sample before a group is left open; they take some seconds."""


def select_schedules(
    space: Space, level: int, sample: int, default: Mapping[str, Value], seed: int = 0
) -> Schedules:
    """Return the schedules of a level, in the space's order.

    Level 0 is the default alone: the first point with the values of `default` and the parameters'
    own defaults. Level 1 is `sample` points, the default among them. Level 2 is all points. Raises
    `SpaceError` for a default outside of the space, and for more than `MAX_SCHEDULES`.
    """
    default_point = space.complete_point(default)
    if level == 0:
        return space.take_points((default_point.index,))
    count, _ = space.size
    if level == 2:
        # `space.count` raises for a space that was not counted: its points cannot be listed.
        size = space.count
    elif count is None:
        size = sample
    else:
        size = min(sample, count)
    if size > MAX_SCHEDULES:
        raise SpaceError(
            f"{size:,} schedules to build, at most {MAX_SCHEDULES:,}",
            hint="restrict the space, or build a sample of it: levels.sample and level 1",
        )
    if level == 2:
        return space.take_all()
    return space.sample_points(size, seed, include=(default_point.index,))


def shuffle_range(count: int, seed: int) -> Iterator[int]:
    """Yield 0..count-1 in a random order that depends on `seed` only.

    This is Fisher and Yates' shuffle that stores only the numbers that have moved, so that the
    first few of 10^17 cost nothing. The randomness is sha256, which is the same everywhere.
    """
    moved: dict[int, int] = {}
    for position in range(count):
        digest = hashlib.sha256(f"{seed}:{position}".encode()).digest()
        # The remainder of 256 bits is uniform: its bias is far too small to be seen.
        drawn = position + int.from_bytes(digest, "big") % (count - position)
        yield moved.get(drawn, drawn)
        # The number at `position` moves to `drawn`. No later step draws `position`.
        moved[drawn] = moved.pop(position, position)
