"""A tuning space as an ordered sequence of its valid points, the schedules.

Order: as declared, the first parameter slowest, each parameter's values in their own order (an
`else` that is not among them comes last). Only groups of parameters that rules connect are ever
enumerated; the number of points, the i-th point and a sample come from the groups, so that a space
of 10^17 points costs no more than its parts. Equal specs give equal spaces on every machine.
`select` returns the schedules to build at a level: the default alone, a sample, or all.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tilusbuild.errors import did_you_mean
from tilusbuild.expr import Value
from tilusbuild.space.model import (
    Domain,
    EmptySpaceError,
    Model,
    SpaceError,
    SpaceSpec,
    build,
    outside,
    show,
)
from tilusbuild.space.schedules import CHUNK, Schedule, Schedules

if TYPE_CHECKING:
    from tilusbuild.space.columns import Decoder
    from tilusbuild.space.component import Component
    from tilusbuild.space.report import SpaceReport


class Space:
    """The valid points of `spec`. Raises `SpaceError`, also when there are none.

    With `size`, the numbers of valid points and of all combinations that an equal spec had, nothing
    is enumerated before the first point is needed.
    """

    def __init__(self, spec: SpaceSpec, size: tuple[int, int] | None = None) -> None:
        self.spec = spec
        self._size = size or (self._count, self._model.cartesian)

    @cached_property
    def _model(self) -> Model:
        return build(self.spec)

    @cached_property
    def _decoder(self) -> Decoder:
        from tilusbuild.space.columns import Decoder

        return Decoder(self._model)

    @cached_property
    def _components(self) -> list[Component]:
        """The groups of parameters, enumerated."""
        from tilusbuild.space.component import component, groups

        if self._model.never:
            raise self._empty()
        components: list[Component] = []
        failures: list[SpaceError] = []  # they count only if no other group excludes everything
        for members, rules in groups(self._model, self._model.rules):
            try:
                components.append(component(self._model, members, rules))
            except SpaceError as error:
                failures.append(error)
        if any(part.count == 0 for part in components):
            raise self._empty()
        if failures:
            raise failures[0]
        return components

    @cached_property
    def _of(self) -> Mapping[int, int]:
        """The component of each parameter's position."""
        return {p: c for c, part in enumerate(self._components) for p in part.members}

    @property
    def _count(self) -> int:
        return math.prod(part.count for part in self._components)

    @property
    def count(self) -> int:
        """The number of valid points; it may be beyond 64 bits."""
        return self._size[0]

    def __len__(self) -> int:
        return self.count

    @property
    def cartesian(self) -> int:
        """The number of combinations of declared values, restricted by nothing."""
        return self._size[1]

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters in declared order, then the derived values."""
        parameters = (name for domain in self._model.domains for name in domain.names)
        return (*parameters, *self._model.derived_names)

    def __getitem__(self, index: int) -> Schedule:
        """Return the point at `index`. Raises `IndexError`; `SpaceError` if a derived value has
        none."""
        count = self.count
        if index < 0:
            index += count
        if not 0 <= index < count:
            raise IndexError(f"schedule {index} of {count}")
        return self.take([index])[0]

    def iterate(self, start: int = 0, stop: int | None = None) -> Iterator[Schedule]:
        """Yield the points from `start` to before `stop`, in order, decoded a chunk at a time."""
        end = self.count if stop is None else min(stop, self.count)
        for first in range(start, end, CHUNK):
            yield from self.take(range(first, min(end, first + CHUNK)))

    def __iter__(self) -> Iterator[Schedule]:
        return self.iterate()

    def take(self, indices: Iterable[int]) -> Schedules:
        """Return the points at `indices`, each within the space. Raises `SpaceError` if a derived
        value has none."""
        wanted = indices if isinstance(indices, range) else list(indices)
        whole = len(wanted) == self.count and wanted[0] == 0 and wanted[-1] == len(wanted) - 1
        if whole and (isinstance(wanted, range) or wanted == list(range(len(wanted)))):
            return Schedules(range(len(wanted)), self._decoder.columns(self._every_digit()))
        return Schedules(wanted, self._decoder.columns(self._digits(wanted)))

    def all(self) -> Schedules:
        """Return every point. Raises `SpaceError` if a derived value has none."""
        return self.take(range(self.count))

    def sample(self, n: int, seed: int = 0, include: Iterable[int] = ()) -> Schedules:
        """`n` different points (all, if there are fewer), uniformly drawn, in order of index.

        Those of `include` come first and count. A larger `n` with the same seed has all the points
        of a smaller one; the draw depends on nothing but its arguments.
        """
        chosen = list(dict.fromkeys(include))[:n]
        known = set(chosen)
        for index in _shuffled(self.count, seed):
            if len(chosen) >= n:
                break
            if index not in known:
                known.add(index)
                chosen.append(index)
        return self.take(sorted(chosen))

    def index_of(self, values: Mapping[str, Value]) -> int | None:
        """Return the place of the point with these parameters (all of them), or None if it is not
        valid.

        Other names, such as derived values, are ignored. Raises `SpaceError` for a parameter
        that is missing.
        """
        digits = []
        for domain in self._model.domains:
            missing = [name for name in domain.names if name not in values]
            if missing:
                raise SpaceError(f'no value is given for "{missing[0]}"', rule=missing[0])
            digit = domain.find(tuple(values[name] for name in domain.names))
            if digit is None:
                return None
            digits.append(digit)
        return self._rank(digits)

    @property
    def default(self) -> Schedule | None:
        """The first point that agrees with the parameters' defaults; None if none has one."""
        if all(domain.default is None for domain in self._model.domains):
            return None
        return self.complete({})

    def complete(self, partial: Mapping[str, Value]) -> Schedule:
        """Return the first point that has the values of `partial`, and elsewhere the parameters'
        defaults.

        A default of a parameter whose condition is false at that point does not count. Raises
        `SpaceError`: a name that is not a parameter, a value outside the space, no such point.
        """
        fixed = self._fixed(partial)
        digits: dict[int, int] = {}
        for part in self._components:
            digits |= self._first(part, fixed)
        rank = self._rank([digits[position] for position in range(len(self._model.domains))])
        assert rank is not None  # noqa: S101  (each component's part is one of its points)
        return self[rank]

    def report(self) -> SpaceReport:
        """Return what each rule removed."""
        from tilusbuild.space.report import report

        return report(self._model)

    def _empty(self) -> EmptySpaceError:
        from tilusbuild.space.report import responsible

        rules = responsible(self._model)
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

    def _fixed(self, partial: Mapping[str, Value]) -> dict[int, tuple[bool, set[int]]]:
        """Position → (whether `partial` has it, digits that agree)."""
        for name in partial:
            if name not in self._model.owners:
                hint = did_you_mean(name, self._model.owners)
                raise SpaceError(f'the default names "{name}", which is not a parameter', hint=hint)
        fixed: dict[int, tuple[bool, set[int]]] = {}
        for position, domain in enumerate(self._model.domains):
            given = {i: partial[n] for i, n in enumerate(domain.names) if n in partial}
            if given:
                fixed[position] = True, _agreeing(domain, given)
            elif domain.default is not None:
                fixed[position] = False, {domain.default}
        return fixed

    def _first(self, part: Component, fixed: Mapping[int, tuple[bool, set[int]]]) -> dict[int, int]:
        """Return the digits of the component's first point that agrees."""
        import numpy as np

        rows = np.arange(part.count, dtype=np.int64)
        ordered = sorted((p for p in part.members if p in fixed), key=lambda p: not fixed[p][0])
        for position in ordered:
            digits = part.digits(position)[rows]
            agree = rows[np.isin(digits, list(fixed[position][1]))]
            domain = self._model.domains[position]
            if not len(agree) and not fixed[position][0] and domain.pinned is not None:
                agree = rows[digits == domain.pinned]
            if not len(agree):
                raise self._no_default(ordered, position, fixed)
            rows = agree
        return {position: int(part.digits(position)[rows[0]]) for position in part.members}

    def _no_default(
        self, ordered: list[int], position: int, fixed: Mapping[int, tuple[bool, set[int]]]
    ) -> SpaceError:
        texts = []
        for each in ordered[: ordered.index(position) + 1]:
            domain = self._model.domains[each]
            title = ", ".join(domain.names)
            texts.append(f"{title} = {show(domain.rows[min(fixed[each][1])])}")
        rules = ", ".join(
            dict.fromkeys(f'"{r.name}"' for r in self._model.rules if position in r.needs)
        )
        return SpaceError(
            f"the default is outside the space: no valid point has {', '.join(texts)}",
            rule=", ".join(self._model.domains[position].names),
            hint=f"rules to look at: {rules}" if rules else None,
        )

    def _rank(self, digits: list[int]) -> int | None:
        ranges = [(0, part.count) for part in self._components]
        total, rank = self.count, 0
        for position, digit in enumerate(digits):
            index = self._of[position]
            low, high = ranges[index]
            first, end = self._components[index].range_of(position, low, high, digit)
            if first >= end:
                return None
            others = total // (high - low)
            rank += (first - low) * others
            total = others * (end - first)
            ranges[index] = first, end
        return rank

    def _digits(self, indices: Sequence[int]) -> list[Any]:
        """Return an array of digits for each parameter: its rows at the points of `indices`."""
        import numpy as np

        from tilusbuild.space.columns import row_type

        count = self.count
        kind = np.int64 if count <= 2**63 - 1 else object  # Python's integers beyond 64 bits
        left = np.array(indices, dtype=kind)
        total = np.full(len(left), count, dtype=kind)
        low = [np.zeros(len(left), dtype=np.int64) for _ in self._components]
        size = [np.full(len(left), part.count, dtype=np.int64) for part in self._components]
        columns = []
        for position, domain in enumerate(self._model.domains):
            index = self._of[position]
            part = self._components[index]
            others = total // size[index]
            row = left // others
            digit, first, end = part.narrow(position, low[index], row.astype(np.int64))
            left = left - (first - low[index]) * others
            low[index], size[index] = first, end - first
            total = others * size[index]
            columns.append(digit.astype(row_type(len(domain.rows))))
        return columns

    def _every_digit(self) -> list[Any]:
        """Return the digits of all points: the groups' trees grown together, a parameter at a
        time, which takes no search for any point."""
        import numpy as np

        kind = np.int32 if self.count < 2**31 else np.int64
        levels = [part.levels() for part in self._components]
        nodes: dict[int, Any] = {}  # of each group that was begun and has members left
        columns: list[Any] = []
        size = 1
        for position in range(len(self._model.domains)):
            index = self._of[position]
            level = levels[index].pop(0)
            node = nodes.pop(index, None)
            if node is None:  # all of them are below the one root
                node = np.zeros(size, dtype=np.uint8)
            counts = np.diff(level.first)[node]
            ends = np.cumsum(counts)
            child = np.arange(ends[-1], dtype=kind)
            child += np.repeat((level.first[node] - (ends - counts)).astype(kind), counts)
            if len(child) > size:
                size = len(child)
                columns = [np.repeat(column, counts) for column in columns]
                nodes = {key: np.repeat(each, counts) for key, each in nodes.items()}
            if levels[index]:
                nodes[index] = child
            columns.append(level.digit[child])
        return columns


def _agreeing(domain: Domain, given: Mapping[int, Value]) -> set[int]:
    """Return the rows that have the given values at these places."""
    wanted = {i: (type(value), value) for i, value in given.items()}
    rows = {
        digit
        for digit, row in enumerate(domain.rows)
        if all((type(row[i]), row[i]) == want for i, want in wanted.items())
    }
    if not rows:
        if len(domain.names) == 1:
            raise outside(domain, tuple(given.values()))
        names = tuple(domain.names[i] for i in given)
        part = Domain(names, tuple(tuple(r[i] for i in given) for r in domain.rows), 0, None, None)
        raise outside(part, tuple(given.values()))
    return rows


def _shuffled(count: int, seed: int) -> Iterator[int]:
    """0..count-1 in an order that `seed` decides, generated as far as it is used.

    Fisher and Yates' shuffle with only the moved places remembered; the randomness is sha256, which
    is the same in every version of everything.
    """
    moved: dict[int, int] = {}
    for place in range(count):
        digest = hashlib.sha256(f"{seed}:{place}".encode()).digest()
        other = place + int.from_bytes(digest, "big") % (count - place)
        yield moved.get(other, other)
        moved[other] = moved.pop(place, place)


MAX_SCHEDULES = 1_000_000


def select(
    space: Space, level: int, sample: int, default: Mapping[str, Value], seed: int = 0
) -> Schedules:
    """Return the schedules of `level`, in the space's order.

    0: the default, which is the first point that agrees with `default` and with the parameters' own
    defaults. 1: `sample` points, the default among them. 2: all. Raises `SpaceError` for a default
    outside the space, and for more than 1,000,000 schedules.
    """
    start = space.complete(default)
    if level == 0:
        return space.take((start.index,))
    wanted = space.count if level == 2 else min(sample, space.count)
    if wanted > MAX_SCHEDULES:
        raise SpaceError(
            f"{wanted:,} schedules to build, at most {MAX_SCHEDULES:,}",
            hint="restrict the space, or build a sample of it: levels.sample and level 1",
        )
    if level == 2:
        return space.all()
    return space.sample(wanted, seed, include=(start.index,))
