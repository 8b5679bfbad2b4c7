"""Enumerate a small space without NumPy, one combination after the other.

Most spaces are small (the sources of a library, a few tiles), and importing NumPy takes longer than
this. The points, their order and their values are the same as with arrays (`component.py`,
`columns.py`). Empty spaces and rules without a value are left to the arrays, which make the errors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from tilusbuild.expr import ExprError, Value
from tilusbuild.space.model import Model, Rule

MAX_COMBINATIONS = 512
"""Combinations of a small space: to examine so many takes a tenth of importing NumPy, or less."""

MAX_REMOVED = 10_000
"""Combinations for which `find_removing_rules` finds the rule: about half a second."""
KEPT, CONDITIONAL = -1, -2

Digits = tuple[int, ...]
"""The row of each parameter at one point."""


def enumerate_small(model: Model, budget: int | None) -> SmallSpace | None:
    """Return the points of a small space; None if the arrays have to enumerate it."""
    combinations = math.prod(len(domain.rows) for domain in model.domains)
    limit = MAX_COMBINATIONS if budget is None else min(MAX_COMBINATIONS, budget)
    # If the constants alone make the space empty, the arrays make the error.
    if model.never or combinations > limit:
        return None
    all_digits = itertools.product(*(range(len(domain.rows)) for domain in model.domains))
    try:
        # Without rules every combination is a point, and derived values need not be computed.
        points = [
            digits
            for digits in all_digits
            if not model.rules or not _find_failing_rules(model, digits)
        ]
    except ExprError:
        return None
    return SmallSpace(model, points) if points else None


def find_removing_rules(model: Model) -> tuple[int, ...]:
    """Return, for each combination of declared values in order, the first rule that removes it.

    An element is the rule's position, `KEPT`, or `CONDITIONAL` if a `when` makes the combination
    equal to another one. A rule without a value removes nothing. The result is empty for more than
    `MAX_REMOVED` combinations.
    """
    if model.cartesian > MAX_REMOVED:
        return ()
    positions = []
    for digits in itertools.product(*(range(domain.declared) for domain in model.domains)):
        try:
            failing = _find_failing_rules(model, digits)
        except ExprError:
            failing = []
        if any(rule.pinned_parameter is not None for rule in failing):
            positions.append(CONDITIONAL)
        else:
            failing_positions = [rule.position for rule in failing]
            positions.append(min((*failing_positions, *model.never), default=KEPT))
    return tuple(positions)


def _find_failing_rules(model: Model, digits: Digits) -> list[Rule]:
    """Return the rules that are false at a combination. Raises `ExprError`.

    All rules are evaluated, also after a false one: the caller must learn of each that has no
    value, and leave the space to the arrays.
    """
    values: dict[str, Value] = {}
    for domain, digit in zip(model.domains, digits, strict=True):
        values.update(zip(domain.names, domain.rows[digit], strict=True))
    for derived in model.derived:
        values[derived.name] = derived.expr.evaluate(values)
    failing = []
    for rule in model.rules:
        holds = bool(rule.expr.evaluate(values))
        # A condition that holds needs a declared row, and one that does not hold needs the `else`.
        # Otherwise a point with a false condition would exist once for each declared row.
        if rule.pinned_parameter is not None:
            domain, digit = model.domains[rule.pinned_parameter], digits[rule.pinned_parameter]
            holds = digit < domain.declared if holds else digit == domain.pinned
        if not holds:
            failing.append(rule)
    return failing


class SmallSpace:
    """All points of a small space, in order."""

    def __init__(self, model: Model, points: Sequence[Digits]) -> None:
        self.members = range(len(model.domains))
        self._model = model
        self._points = points

    def __len__(self) -> int:
        return len(self._points)

    def compute_index(self, digits: Iterable[int]) -> int:
        """Return the index of a point."""
        return self._points.index(tuple(digits))

    def make_columns(self, indices: Iterable[int]) -> dict[str, list[Value]] | None:
        """Return the values of the points with these indices, by name.

        None if a derived value cannot be computed: the arrays then make the error.
        """
        points = [self._points[index] for index in indices]
        columns: dict[str, list[Value]] = {}
        for position, domain in enumerate(self._model.domains):
            for name, values in domain.columns.items():
                columns[name] = [values[digits[position]] for digits in points]
        # The dict must have the derived values in their declared order, and they are computed in
        # another one: each gets its place first.
        for name in self._model.derived_names:
            columns[name] = [self._model.constants.get(name, 0)] * len(points)
        try:
            for derived in self._model.derived:
                needed = {name: columns[name] for name in derived.expr.names}
                columns[derived.name] = [
                    derived.expr.evaluate({name: column[row] for name, column in needed.items()})
                    for row in range(len(points))
                ]
        except ExprError:
            return None
        return columns

    def find_first(self, allowed: Mapping[int, Collection[int]]) -> dict[int, int] | None:
        """Return the rows of the first point whose rows are among `allowed`, by position.

        None if there is no such point. A position that is not in `allowed` may have any row.
        """
        for digits in self._points:
            if all(digits[position] in rows for position, rows in allowed.items()):
                return dict(enumerate(digits))
        return None
