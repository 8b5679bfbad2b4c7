"""Decode many points at once into columns of values, with NumPy.

A parameter's column stores row numbers, a derived value's column stores its values. No Python
object is made for a point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from tilusbuild.expr import ExprError, Value
from tilusbuild.expr.vector import evaluate_columns, pack_values
from tilusbuild.space.model import Column, Derived, Model, SpaceError, format_point, locate_error


class CodedColumn(Struct, frozen=True):
    """A column of one name of a parameter: a row number for each point."""

    rows: Any
    values: tuple[Value, ...]
    """By row."""

    def __getitem__(self, part: slice, /) -> list[Value]:
        return [self.values[row] for row in self.rows[part].tolist()]

    @property
    def array(self) -> Any:
        """The values, one a point."""
        return pack_values(self.values)[self.rows]


class ComputedColumn(Struct, frozen=True):
    """A column of a derived value."""

    array: Any

    def __getitem__(self, part: slice, /) -> list[Value]:
        values: list[Value] = self.array[part].tolist()
        return values


def choose_row_type(count: int) -> Any:
    """Return the smallest integer type for row numbers up to `count - 1`."""
    return np.min_scalar_type(max(count - 1, 0))


def decode_columns(model: Model, digits: Sequence[Any]) -> dict[str, Column]:
    """Return the columns, by name, of the points with these rows.

    `digits` has an array of row numbers for each parameter. Raises `SpaceError` at a point where a
    derived value cannot be computed.
    """
    coded = {
        name: CodedColumn(rows, values)
        for domain, rows in zip(model.domains, digits, strict=True)
        for name, values in domain.columns.items()
    }
    # A space without parameters has one point.
    count = len(digits[0]) if digits else 1
    zeros = np.broadcast_to(np.uint8(0), count)
    # The dict must have the derived values in their declared order, and they are computed in
    # another one. So each gets its place first: a constant with its value, another one with a 0
    # that is replaced below.
    columns: dict[str, Column] = dict(coded)
    for name in model.derived_names:
        columns[name] = CodedColumn(zeros, (model.constants.get(name, 0),))
    arrays: dict[str, Any] = {}
    for derived in model.derived:
        for name in derived.expr.names - arrays.keys():
            arrays[name] = coded[name].array
        needed = {name: arrays[name] for name in derived.expr.names}
        values, marks = evaluate_columns(derived.expr, needed)
        if marks is not None:
            raise _make_missing_value_error(model, derived, columns, int(np.argmax(marks)))
        arrays[derived.name] = values
        columns[derived.name] = ComputedColumn(values)
    return columns


def _make_missing_value_error(
    model: Model, derived: Derived, columns: Mapping[str, Column], index: int
) -> SpaceError:
    """Return the error of a derived value at the point with this index; it shows the point."""
    values = {name: column[index : index + 1][0] for name, column in columns.items()}
    try:
        derived.expr.evaluate(values)
    except ExprError as error:
        point = format_point(values, model.domains)
        hint = "restrict the space to where it has a value"
        return locate_error(derived.name, "the derived value", error, point=point, hint=hint)
    raise AssertionError(f"{derived.name} has a value")
