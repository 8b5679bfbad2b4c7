"""Fits few programs to what was measured, and a tree of rules over the keys for sizes between.

The programs are the fewest of which each measured case has one within a factor of its best: a set
cover, solved by branch and bound. The tree splits the cases by the keys and their products, such as
`m * n <= 4096`, so that the sum of the squares of the times is least, by the greatest gain first.
Squares, because a great loss is worse than several small ones. Only `dispatch fit` imports this
module: NumPy would take 80 ms of each build.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilusbuild.dispatch.measurements import (
    fold_refusals,
    make_rule_rows,
    measure_cases,
    select_unlike,
)
from tilusbuild.errors import input_error
from tilusbuild.plan.measured import MeasuredRow
from tilusbuild.runtime.naming import format_command
from tilusbuild.runtime.script import Script

_Ratios: TypeAlias = NDArray[np.float64]
"""The time of each program (columns) in each case (rows) by the best time of the case; inf where
the program has no time."""
_Sizes: TypeAlias = NDArray[Any]
"""The features of the cases (rows): their keys, and products of these."""

_MAX_LEAVES = 16
_MAX_FACTORS = 4
"""Keys of which products are features."""
_MIN_GAIN = 0.001
"""The least sum of squares that a split saves, as a share of the cases."""
_UNKNOWN = 10.0
"""The ratio that counts for a program without a time in a case that it may serve."""
_MAX_STEPS = 4_000
"""Steps of the search for the fewest programs: after these it takes the best set so far."""


class FitCase(NamedTuple):
    """The times of programs in one measured case."""

    key: tuple[int, ...]
    """The buckets of the dispatch keys."""
    seconds: Mapping[int, float]
    """The time of a call by program number."""
    unserved: frozenset[int] = frozenset()
    """Programs that do not serve the case's sizes, by the rules of `serves`."""


class FittedCase(NamedTuple):
    """A case, and the programs that a fit chooses there."""

    case: FitCase
    program: int
    """The best of the fitted programs."""
    regret: float
    """The loss by it: 0.05 is a time that is 5 % longer than the best one."""
    left_out_program: int
    """The choice of the tree that is fitted without the case."""
    left_out_regret: float


class Fit(NamedTuple):
    """Few programs, and the rules that choose among them."""

    programs: list[int]
    within: float
    """The factor within which each case has a program."""
    rules: list[tuple[str, int]]
    """Conditions over the keys, with a program. The first rule whose program may serve decides."""
    cases: list[FittedCase]


Select: TypeAlias = Callable[[Sequence[int]], Sequence[int]]
"""A function from programs to those that are the first to serve some calls, in their order."""


def fit_programs(
    cases: Sequence[FitCase], keys: Sequence[str], within: float, most: int, select: Select
) -> Fit:
    """Return the fewest programs, at most `most`, of which each case has one within the factor
    `within`, or within the least factor that `most` reach; and a tree of rules. Each case has a
    program with a time."""
    programs = sorted({program for case in cases for program in case.seconds})
    times = np.array([[case.seconds.get(p, math.inf) for p in programs] for case in cases])
    # A time of 0 is below the clock's resolution.
    times = np.maximum(times, 1e-12)
    ratios: _Ratios = times / times.min(axis=1, keepdims=True)
    is_served = np.array([[p not in case.unserved for p in programs] for case in cases])
    features = _list_features(keys)
    products = [[math.prod(case.key[i] for i in feature) for feature in features] for case in cases]
    # Python's integers where the products need them.
    is_large = any(abs(product) >> 62 for row in products for product in row)
    sizes: _Sizes = np.array(products, object if is_large else np.int64)
    columns, within = _choose_columns(ratios, within, most)
    leaves = _grow_tree(sizes, _square(ratios, is_served, columns))
    names = [" * ".join(keys[i] for i in feature) for feature in features]
    rules = [
        (leaf.format_condition(names), program)
        for leaf in leaves
        for program in select([programs[columns[place]] for place in leaf.order])
    ]
    fitted_cases = []
    for row, case in enumerate(cases):
        best = left_out = min(columns, key=lambda column: ratios[row, column])
        rest = np.arange(len(cases)) != row
        if rest.any():
            # Fewer programs may do without the case. All cases in turn take the steps of one fit.
            max_steps = _MAX_STEPS // len(cases)
            fewer = _find_cover(ratios[rest] <= within, len(columns) - 1, max_steps)
            own = _swap_columns(ratios[rest], fewer or columns, within)
            tree = _grow_tree(sizes[rest], _square(ratios[rest], is_served[rest], own))
            order = next(leaf.order for leaf in tree if leaf.holds(sizes[row]))
            left_out = next((own[i] for i in order if is_served[row, own[i]]), best)
        regret = min(ratios[row, left_out], _UNKNOWN) - 1
        fitted_cases.append(
            FittedCase(case, programs[best], ratios[row, best] - 1, programs[left_out], regret)
        )
    return Fit([programs[column] for column in columns], within, rules, fitted_cases)


def fit_script(
    script: Script,
    measured_rows: Sequence[MeasuredRow],
    rows: Sequence[MeasuredRow],
    within: float,
    most: int,
) -> tuple[list[MeasuredRow], list[tuple[str, Fit]]]:
    """Fit few programs to the measurements of a script in its cache (`fit_programs`). Return `rows`
    of the repository with the fitted rules in place of those of the same devices, and the fits by
    device. Raises `InputError` if nothing is measured."""
    cases: dict[tuple[str, str], list[FitCase]] = {}
    for measurement, sizes in measure_cases(script, measured_rows, fold_refusals(measured_rows)):
        unserved = frozenset(
            number for number in script.programs if script.explain_refusal(number, sizes)
        )
        times = {i: time for i, time in measurement.seconds.items() if i not in unserved}
        if times:
            case = FitCase(measurement.key, times, unserved)
            cases.setdefault((measurement.device, measurement.arch), []).append(case)
    if not cases:
        hint = f"`{format_command('tune', script.name)}` measures the manifest's sizes"
        raise input_error(f"nothing is measured for {script.label}", hint=hint)
    select = partial(select_unlike, script)
    fits = {
        device: fit_programs(device_cases, script.keys, within, most, select)
        for device, device_cases in cases.items()
    }
    rules = [
        row
        for (device, arch), fit in fits.items()
        for row in make_rule_rows(script, device, arch, fit.rules)
    ]
    kept_rows = [
        row
        for row in rows
        if not row.when
        or not row.is_of_instance(script.target, script.params)
        or (row.device, row.arch) not in fits
    ]
    return [*kept_rows, *rules], [(device, fit) for (device, _), fit in fits.items()]


def _list_features(keys: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the keys, by their places, and the products of several of them."""
    highest = len(keys) if len(keys) <= _MAX_FACTORS else 1
    return [f for count in range(1, highest + 1) for f in combinations(range(len(keys)), count)]


# The programs.


def _choose_columns(ratios: _Ratios, within: float, most: int) -> tuple[list[int], float]:
    """Return the fewest columns of which each case has one within a factor, and the factor. Of
    several such sets one with a low mean is returned."""
    columns = _find_cover(ratios <= within, most, _MAX_STEPS)
    if columns is None:
        factors = np.unique(ratios[np.isfinite(ratios) & (ratios > within)])
        low, high = 0, len(factors) - 1
        while low < high:
            middle = (low + high) // 2
            if _find_cover(ratios <= factors[middle], most, _MAX_STEPS) is None:
                low = middle + 1
            else:
                high = middle
        within = float(factors[low]) if len(factors) else math.inf
        # Cases that have no program in common with others may need more programs than `most`.
        columns = _find_cover(ratios <= within, most, _MAX_STEPS)
        columns = columns or _find_cover(ratios <= within, len(ratios), 0) or []
    return _swap_columns(ratios, columns, within), within


def _find_cover(covers: NDArray[np.bool_], most: int, max_steps: int) -> list[int] | None:
    """Return the fewest columns that cover all rows; None if that takes more than `most`."""
    # The row that the fewest columns cover is the lowest bit: some column must cover it.
    order = np.argsort(-covers.sum(axis=1), kind="stable")
    masks: dict[int, int] = {}
    for column in np.argsort(-covers.sum(axis=0), kind="stable").tolist():
        packed = np.packbits(covers[order, column]).tobytes()
        mask = int.from_bytes(packed, "big")
        # Of two columns, one that covers no more than the other is not needed.
        if mask and not any(mask | other == other for other in masks.values()):
            masks[column] = mask
    everything = int.from_bytes(np.packbits(np.ones(len(covers), bool)).tobytes(), "big")
    greedy: list[int] = []
    rest = everything
    while rest:
        best = max(masks, key=lambda column: (masks[column] & rest).bit_count(), default=None)
        if best is None or not masks[best] & rest:
            return None
        greedy.append(best)
        rest &= ~masks[best]
    steps = iter(range(max_steps))
    for count in range(1, min(most, len(greedy) - 1) + 1):
        columns = _extend_cover(masks, everything, count, steps)
        if columns is not None:
            return columns
    return greedy if len(greedy) <= most else None


def _extend_cover(
    masks: Mapping[int, int], rest: int, count: int, steps: Iterator[int]
) -> list[int] | None:
    """Return at most `count` columns that cover the rows `rest`; None if there are none, or the
    steps are used up."""
    if not rest:
        return []
    if count == 0 or next(steps, None) is None:
        return None
    gains = {column: (mask & rest).bit_count() for column, mask in masks.items()}
    if sum(sorted(gains.values(), reverse=True)[:count]) < rest.bit_count():
        return None
    lowest = rest & -rest
    covering = [column for column, mask in masks.items() if mask & lowest]
    for column in sorted(covering, key=gains.__getitem__, reverse=True):
        columns = _extend_cover(masks, rest & ~masks[column], count - 1, steps)
        if columns is not None:
            return [column, *columns]
    return None


def _swap_columns(ratios: _Ratios, columns: Sequence[int], within: float) -> list[int]:
    """Return the columns after exchanges of one that lower the sum of the best ratios and keep each
    case within the factor."""
    chosen, improves = list(columns), True
    while improves:
        improves = False
        for place in range(len(chosen)):
            others = chosen[:place] + chosen[place + 1 :]
            rest = ratios[:, others].min(axis=1, initial=math.inf)
            best = np.minimum(rest[:, None], ratios)
            sums = np.where((best <= within).all(axis=0), best.sum(axis=0), math.inf)
            column = int(sums.argmin())
            if sums[column] < sums[chosen[place]] - 1e-9:
                chosen[place], improves = column, True
    return sorted(chosen)


# The tree.


class _Leaf(NamedTuple):
    """A part of the tree: for each feature the bounds `low < size <= high`, None for an open end;
    and the places of the programs, the best first."""

    bounds: tuple[tuple[int | None, int | None], ...]
    order: list[int]

    def holds(self, sizes: Sequence[int]) -> bool:
        """Return whether a case belongs to the leaf."""
        return all(
            (low is None or low < size) and (high is None or size <= high)
            for size, (low, high) in zip(sizes, self.bounds, strict=True)
        )

    def format_condition(self, names: Sequence[str]) -> str:
        """Return the bounds as an expression."""
        parts = []
        for name, (low, high) in zip(names, self.bounds, strict=True):
            if high is not None:
                lower = "" if low is None else f"{low} < "
                parts.append(f"{lower}{name} <= {high}")
            elif low is not None:
                parts.append(f"{name} > {low}")
        return " and ".join(parts) or "True"


def _square(ratios: _Ratios, is_served: NDArray[np.bool_], columns: Sequence[int]) -> _Ratios:
    """Return the cost of each column in each case. Where a program does not serve, the best of the
    others does."""
    own = np.minimum(ratios[:, columns], _UNKNOWN)
    best = own.min(axis=1, keepdims=True)
    return np.where(is_served[:, columns], own, best) ** 2


def _grow_tree(sizes: _Sizes, costs: _Ratios) -> list[_Leaf]:
    """Return the leaves of the tree, in the order of the splits."""
    open_end: tuple[int | None, int | None] = (None, None)
    everything = np.arange(len(sizes))
    leaves = [((open_end,) * sizes.shape[1], everything, _find_split(sizes, costs, everything))]
    while len(leaves) < _MAX_LEAVES:
        number = max(range(len(leaves)), key=lambda i: leaves[i][2].gain)
        bounds, cases, split = leaves[number]
        if split.gain <= _MIN_GAIN * len(sizes):
            break
        is_below = sizes[cases, split.axis] <= split.edge
        low, high = bounds[split.axis]
        halves = []
        for is_inside, interval in ((is_below, (low, split.edge)), (~is_below, (split.edge, high))):
            own_bounds = (*bounds[: split.axis], interval, *bounds[split.axis + 1 :])
            own_cases = cases[is_inside]
            halves.append((own_bounds, own_cases, _find_split(sizes, costs, own_cases)))
        leaves[number : number + 1] = halves
    return [
        _Leaf(bounds, np.argsort(costs[cases].sum(axis=0), kind="stable").tolist())
        for bounds, cases, _ in leaves
    ]


class _Split(NamedTuple):
    """A split of a leaf at `size <= edge`, and the sum of costs that it saves."""

    gain: float
    axis: int
    edge: int


def _find_split(sizes: _Sizes, costs: _Ratios, cases: NDArray[np.intp]) -> _Split:
    """Return the split of some cases that saves most; of equal ones that of the first feature."""
    best = _Split(0.0, 0, 0)
    total = float(costs[cases].sum(axis=0).min())
    for axis in range(sizes.shape[1] if len(cases) > 1 else 0):
        order = cases[np.argsort(sizes[cases, axis], kind="stable")]
        sums = costs[order].cumsum(axis=0)
        sides = sums[:-1].min(axis=1) + (sums[-1] - sums[:-1]).min(axis=1)
        own = sizes[order, axis]
        sides[(own[:-1] == own[1:]).astype(bool)] = math.inf
        place = int(sides.argmin())
        gain = total - float(sides[place])
        if gain > best.gain + 1e-9:
            low, high = int(own[place]), int(own[place + 1])
            # The middle in log2, where the nearest of the two changes.
            middle = math.isqrt(max(low, 0) * max(high, 0))
            best = _Split(gain, axis, max(low, min(high - 1, middle)))
    return best
