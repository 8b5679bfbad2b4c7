"""Schedules as columns: a sequence that makes a schedule only when that one is asked for.

A column is anything of which a slice gives a list of Python's own values: a list is one. So what
was enumerated, and what was read from a file without NumPy, are the same to those who use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, overload

from msgspec import Struct

from tilusbuild.expr import Value

CHUNK = 4096  # schedules made at a time


class Schedule(Struct, frozen=True):
    """One point: its place in the order, and the values of all parameters and derived values."""

    index: int
    values: Mapping[str, Value]


class Column(Protocol):
    """The values of one name."""

    def __getitem__(self, part: slice, /) -> list[Value]:
        """Return those of a part of the schedules."""


class Schedules(Sequence[Schedule]):
    """The schedules with these places in their space; `columns` are their values by name."""

    __slots__ = ("columns", "indices")

    def __init__(self, indices: Sequence[int], columns: Mapping[str, Column]) -> None:
        self.indices = indices
        self.columns = columns

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> Schedule: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Schedule]: ...

    def __getitem__(self, index: int | slice) -> Schedule | Sequence[Schedule]:
        """Return a schedule; of a slice, a tuple of them."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return tuple(self._made(start, max(start, stop)))
            return tuple(self[place] for place in range(start, stop, step))
        place = range(len(self))[index]
        return next(self._made(place, place + 1))

    def __iter__(self) -> Iterator[Schedule]:
        for start in range(0, len(self), CHUNK):
            yield from self._made(start, min(start + CHUNK, len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} schedules of {', '.join(self.columns)}>"

    def _made(self, start: int, stop: int) -> Iterator[Schedule]:
        part, names = slice(start, stop), tuple(self.columns)
        columns = [column[part] for column in self.columns.values()]
        rows = zip(*columns, strict=True) if columns else iter([()] * (stop - start))
        for index, row in zip(self.indices[part], rows, strict=True):
            yield Schedule(index, MappingProxyType(dict(zip(names, row, strict=True))))
