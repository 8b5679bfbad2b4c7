"""A group of parameters that is too large to enumerate: its points are drawn or searched for.

Every combination has an index, valid or not, so that an index is decoded by arithmetic. A random
point is a random combination that meets the rules: all points are equally likely. The first point
with given values is searched for in order. Both depend only on the space and the seed, and give up
after a fixed number of combinations.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilusbuild.expr import Expr
from tilusbuild.expr.tree import Const, Member, Name
from tilusbuild.expr.vector import evaluate_columns, pack_values
from tilusbuild.space.component import Component
from tilusbuild.space.join import BudgetError, Join, make_strides, name_row_column
from tilusbuild.space.model import Model, Rule, SpaceError, make_rule_error

BATCH = 1 << 16  # random combinations to try at once: mostly few of them are points
DRAWN_AT_ONCE = 256  # random points of an enumerated group, all of which are valid
MAX_DRAWN = 1 << 31  # combinations to draw for one sample: a minute or two
MAX_SEARCHED = 1 << 32  # combinations that one search examines


class OpenComponent:
    """The points of a group that is not enumerated. `count` counts all combinations."""

    def __init__(self, model: Model, members: Sequence[int], rules: Sequence[Rule]) -> None:
        self.members = tuple(members)
        self._names = model.format_names(members)
        self._model = model
        # Rules over few parameters are cheap. They come first, because the later rules are
        # evaluated only where the earlier ones hold.
        self._rules = sorted(rules, key=lambda rule: len(rule.needs))
        self._strides = make_strides(model, members)
        self.count = math.prod(size for _, size in self._strides.values())
        self._arrays = {
            name: (position, pack_values(values))
            for position in members
            for name, values in model.domains[position].columns.items()
        }
        """The values of each name by row, with the position of its parameter."""

    def get_digit(self, position: int, index: Any) -> Any:
        """Return the digit of `position` at the combinations with these indices."""
        stride, size = self._strides[position]
        return index // stride % size

    def find_range(self, position: int, low: Any, digit: Any) -> tuple[Any, Any]:
        """Return the same as `Component.find_range`, of combinations."""
        stride, _ = self._strides[position]
        first = low + digit * stride
        return first, first + stride

    def find_first(self, allowed: Mapping[int, Collection[int]]) -> dict[int, int] | None:
        """Return the rows of the first point whose rows are among `allowed`, by position.

        None if there is no such point. Raises `SpaceError` after `MAX_SEARCHED` combinations.
        """
        rules = [*self._rules]
        for position, digits in allowed.items():
            # A rule `row in (…)`: the join applies it as soon as it adds the parameter, so it
            # crosses no other rows.
            choices = tuple(Const(digit) for digit in sorted(digits))
            name = name_row_column(position)
            membership = Expr(name, Member(Name(name), choices, negated=False))
            rules.append(Rule(name, position=-1, expr=membership, needs=frozenset((position,))))
        # In the space's order, so that the first point of the join is the first of the space.
        join = Join(self._model, self.members, rules, order=self.members)
        try:
            return join.find_first(MAX_SEARCHED)
        except BudgetError:
            raise SpaceError(
                f"no valid point was found among the first {join.examined:,} combinations of"
                f" {self._names}",
                hint="give them defaults that the rules allow",
            ) from None

    def draw_points(self, seed: int) -> Iterator[dict[int, int]]:
        """Yield the rows of random points, by position, with repetition and without end.

        Raises `SpaceError` at a point without a value of a rule, and after `MAX_DRAWN` tries.
        """
        for start in range(0, MAX_DRAWN, BATCH):
            tries = np.arange(start, start + BATCH, dtype=np.uint64)
            digits = {
                position: draw_numbers(f"{seed}:{position}", tries, size)
                for position, (_, size) in self._strides.items()
            }
            points = self._filter_points(digits)
            # Python's integers, since an index may be beyond 64 bits.
            columns = [points[position].tolist() for position in self.members]
            for row in zip(*columns, strict=True):
                yield dict(zip(self.members, row, strict=True))
        raise SpaceError(
            f"too few of {MAX_DRAWN:,} random combinations of {self._names} are valid",
            hint="build a smaller sample, or all points: that takes a count of them",
        )

    def _filter_points(self, digits: Mapping[int, Any]) -> dict[int, Any]:
        """Return the rows of the combinations that are points.

        Raises `SpaceError` for a combination at which a rule has no value and no rule is false.
        """
        remaining = dict(digits)
        # Rules with a mask of the remaining combinations at which they have no value.
        faults: list[tuple[Rule, Any]] = []
        for rule in self._rules:
            holds, marks = self._evaluate_rule(rule, remaining)
            if marks is not None:
                # The combination stays for now: it is not an error if a later rule excludes it.
                holds = holds | marks
                faults.append((rule, marks))
            if holds.all():
                continue
            remaining = {position: rows[holds] for position, rows in remaining.items()}
            faults = [(faulty, marks[holds]) for faulty, marks in faults]
        for rule, marks in faults:
            if marks.any():
                first = int(np.argmax(marks))
                point = {position: int(rows[first]) for position, rows in remaining.items()}
                raise make_rule_error(self._model, rule, point)
        return remaining

    def _evaluate_rule(self, rule: Rule, digits: Mapping[int, Any]) -> tuple[Any, Any]:
        """Return a mask of where a rule is true, and one of where it has no value, or None."""
        columns = {
            name: values[digits[position]]
            for name, (position, values) in self._arrays.items()
            if position in rule.needs
        }
        invalid: dict[str, Any] = {}
        for derived in self._model.derived:
            # The rule may read a derived value, or one that another derived value reads.
            if derived.needs <= rule.needs:
                needed = {name: columns[name] for name in derived.expr.names}
                columns[derived.name], marks = evaluate_columns(derived.expr, needed, invalid)
                if marks is not None:
                    invalid[derived.name] = marks
        needed = {name: columns[name] for name in rule.expr.names}
        values, marks = evaluate_columns(rule.expr, needed, invalid)
        if rule.pinned_parameter is not None:
            rows, domain = digits[rule.pinned_parameter], self._model.domains[rule.pinned_parameter]
            values = np.where(values, rows < domain.declared, rows == domain.pinned)
        return values, marks


def draw_digits(parts: Sequence[Component | OpenComponent], seed: int) -> Iterator[dict[int, int]]:
    """Yield the rows of random points of all groups together, by position, without end."""
    streams = [
        part.draw_points(seed) if isinstance(part, OpenComponent) else _draw_enumerated(part, seed)
        for part in parts
    ]
    for digits in zip(*streams, strict=True):
        yield {position: digit for point in digits for position, digit in point.items()}


def _draw_enumerated(part: Component, seed: int) -> Iterator[dict[int, int]]:
    """Yield the rows of random points of an enumerated group, by position, without end."""
    for start in itertools.count(0, DRAWN_AT_ONCE):
        tries = np.arange(start, start + DRAWN_AT_ONCE, dtype=np.uint64)
        for index in draw_numbers(f"{seed}:{part.members[0]}", tries, part.count).tolist():
            yield {position: int(part.get_digit(position, index)) for position in part.members}


def draw_numbers(stream: str, tries: Any, size: int) -> Any:
    """Return a random number in 0..size-1 for each element of `tries`.

    The numbers depend on `stream`, the element and `size` only, on every machine: the finalizer of
    SplitMix64 (Steele, Lea and Flood, 2014) over the element and a digest of `stream`.
    """
    base = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "big")
    # The arithmetic is meant to wrap around at 64 bits.
    with np.errstate(over="ignore"):
        mixed = (tries + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(base)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    # A double holds 53 bits exactly: below 2^53 the product rounds to no number beyond `size - 1`.
    return ((mixed >> np.uint64(11)) * 2.0**-53 * size).astype(np.min_scalar_type(max(size - 1, 0)))
