"""Decode many points at once into columns of values, with NumPy.

A parameter's column stores row numbers, a derived value's column stores its values. No Python
object is made for a point. Integers are stored in the smallest type that holds the column. Derived
values are computed block by block, in 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct

from tilusbuild.expr import ExprError, Value
from tilusbuild.expr.vector import evaluate_columns, pack_values
from tilusbuild.space.model import Column, Derived, Domain, Model, SpaceError, format_row

BLOCK = 1 << 16  # points of which derived values are computed at a time


class ValueTable:
    """The values of one name of a parameter, by row."""

    def __init__(self, values: tuple[Value, ...]) -> None:
        self.values = values

    @cached_property
    def array(self) -> Any:
        """The values for NumPy; integers in the smallest type that holds them."""
        return narrow_integers(pack_values(self.values))


class CodedColumn(Struct, frozen=True):
    """A column of one name of a parameter: a row number for each point."""

    rows: Any
    table: ValueTable

    def __getitem__(self, part: slice, /) -> list[Value]:
        values = self.table.values
        return [values[row] for row in self.rows[part].tolist()]

    @property
    def array(self) -> Any:
        """The values, one a point."""
        return self.table.array[self.rows]


class ComputedColumn(Struct, frozen=True):
    """A column of a derived value."""

    array: Any

    def __getitem__(self, part: slice, /) -> list[Value]:
        values: list[Value] = self.array[part].tolist()
        return values


def narrow_integers(array: Any) -> Any:
    """Return 64-bit integers in the smallest signed type that holds all of them.

    Other arrays are returned as they are.
    """
    if array.dtype != np.int64 or not array.size:
        return array
    low, high = array.min(), array.max()
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return array.astype(kind)
    return array


def concatenate_blocks(blocks: Sequence[Any]) -> Any:
    """Return the arrays as one. Each value keeps its type: mixed types become Python objects."""
    if len({block.dtype.kind for block in blocks}) == 1:
        return np.concatenate(blocks)
    array = np.empty(sum(map(len, blocks)), dtype=object)
    array[:] = [value for block in blocks for value in block.tolist()]
    return array


def smallest_row_type(count: int) -> Any:
    """Return the smallest integer type for row numbers up to `count - 1`."""
    return np.min_scalar_type(max(count - 1, 0))


class Decoder:
    """Decodes points of one space. The value table of each name is made once."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._tables = [
            {name: ValueTable(values) for name, values in domain.columns.items()}
            for domain in model.domains
        ]
        known = {name: model.constants.get(name, 0) for name in model.derived_names}
        self._constants = {name: ValueTable((value,)) for name, value in known.items()}

    def decode_columns(self, digits: Sequence[Any]) -> dict[str, Column]:
        """Return the columns, by name, of the points with these rows.

        `digits` has an array of row numbers for each parameter. Raises `SpaceError` at a point
        where a derived value cannot be computed.
        """
        coded = {
            name: CodedColumn(rows, table)
            for tables, rows in zip(self._tables, digits, strict=True)
            for name, table in tables.items()
        }
        count = len(digits[0]) if digits else 1
        zeros = np.broadcast_to(np.uint8(0), count)
        # Columns keep the declared order of derived values, which are computed in another order.
        columns: dict[str, Column] = {
            **coded,
            **{name: CodedColumn(zeros, table) for name, table in self._constants.items()},
        }
        arrays: dict[str, Any] = {}
        for derived in self._model.derived:
            for name in derived.expr.names - arrays.keys():
                arrays[name] = coded[name].array
            blocks = []
            for start in range(0, max(count, 1), BLOCK):
                part = slice(start, start + BLOCK)
                needed = {name: arrays[name][part] for name in derived.expr.names}
                values, marks = evaluate_columns(derived.expr, needed)
                if marks is not None:
                    place = start + int(np.argmax(marks))
                    raise _missing_value_error(self._model.domains, derived, columns, place)
                blocks.append(narrow_integers(values))
            arrays[derived.name] = concatenate_blocks(blocks)
            columns[derived.name] = ComputedColumn(arrays[derived.name])
        return columns


def _missing_value_error(
    domains: Sequence[Domain], derived: Derived, columns: Mapping[str, Column], index: int
) -> SpaceError:
    """Return the error of a derived value at the point with this index; it shows the point."""
    values = {name: column[index : index + 1][0] for name, column in columns.items()}
    names = (name for domain in domains for name in domain.names)
    point = ", ".join(f"{name} = {format_row((values[name],))}" for name in names)
    try:
        derived.expr.evaluate(values)
    except ExprError as error:
        return SpaceError(
            f'the derived value "{derived.name}": {error.message}, at {point}',
            rule=derived.name,
            column=error.column,
            hint="restrict the space to where it has a value",
        )
    raise AssertionError(f"{derived.name} has a value at {point}")
