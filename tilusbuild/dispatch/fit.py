"""Fits few programs to what was measured, and a cost of each, whose least decides at other sizes.

The programs are the fewest of which each measured case has one within a factor of its best: a set
cover, solved by branch and bound. A cost is a sum of few terms with positive coefficients: products
of keys, alone or times the waves of a launch, such as `k * cdiv(cdiv(m, 64) * cdiv(n, 64), 132)`. A
GPU runs so many blocks at a time, and a last wave of few blocks takes as long as a full one ("wave
quantization" in NVIDIA's Matrix Multiplication Background). Only `dispatch fit` imports this
module: NumPy would take 80 ms of each build.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from itertools import combinations
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilusbuild.dispatch.measurements import fold_refusals, make_row, measure_cases
from tilusbuild.errors import input_error
from tilusbuild.expr import Expr, ExprError, parse_expression
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.measured import MeasuredRow
from tilusbuild.runtime.naming import format_command
from tilusbuild.runtime.script import Script

_Floats: TypeAlias = NDArray[np.float64]
_Ratios: TypeAlias = NDArray[np.float64]
"""The time of each program (columns) in each case (rows) by the best time of the case; inf where
the program has no time."""

_MAX_TERMS = 5
_MIN_GAIN = 0.01
"""The least part of the squared error that a further term removes."""
_MAX_FACTORS = 4
"""Keys of which products are terms."""
_ROUNDS = 6
"""Fits of the costs, each with better factors of the cases and weights of the times."""
_MAX_BLOCKS = 1024
"""Blocks that a device may run at a time."""
_MAX_GROUPS = 100
"""Groups of cases that are left out in turn."""
_FAILED = 10.0
"""The ratio that counts for a program that failed in a case."""
_MAX_STEPS = 4_000
"""Steps of the search for the fewest programs: after these it takes the best set so far."""


class FitCase(NamedTuple):
    """The times of programs in one measured case."""

    sizes: tuple[int, ...]
    """The sizes of the dispatch keys."""
    seconds: Mapping[int, float]
    """The time of a call by program number; inf for a program that failed."""
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
    """The choice of the fit without the case."""
    left_out_regret: float


class Fit(NamedTuple):
    """Few programs, and the costs that choose among them."""

    within: float
    """The factor within which each case has a program."""
    costs: dict[int, str]
    """By program: an expression over the keys. The least of those that may serve decides."""
    cases: list[FittedCase]

    @property
    def programs(self) -> list[int]:
        return [*self.costs]


class Waves(NamedTuple):
    """The blocks of launches, which run in waves."""

    blocks: Mapping[int, Expr]
    """The number of blocks by program, expressions over the keys, where it is known."""
    size: int | None = None
    """The number of blocks that the device runs at a time; None to find it by the times."""


def fit_programs(
    cases: Sequence[FitCase], keys: Sequence[str], within: float, max_programs: int, waves: Waves
) -> Fit:
    """Return the fewest programs, at most `max_programs`, of which each case has one within the
    factor `within`, or within the least factor that `max_programs` reach; and their costs. Each
    case has a program with a time."""
    programs = sorted({program for case in cases for program in case.seconds})
    seconds = [[case.seconds.get(p, math.nan) for p in programs] for case in cases]
    # A time of 0 is below the clock's resolution.
    times = np.maximum(np.array(seconds), 1e-12)
    best_times = np.nanmin(times, axis=1, keepdims=True)
    ratios: _Ratios = np.where(np.isnan(times), math.inf, times / best_times)
    times = np.minimum(times, _FAILED * best_times)
    is_served = np.array([[p not in case.unserved for p in programs] for case in cases])
    columns, within = _choose_columns(ratios, within, max_programs)
    terms = _Terms(keys, [case.sizes for case in cases], [waves.blocks.get(p) for p in programs])
    best_columns: list[int] = np.unique(ratios.argmin(axis=1)).tolist()
    terms = terms.resize_waves(waves.size or _find_wave_size(terms, best_columns, times))
    costs = _fit_costs(terms.list_values(columns), times[:, columns])
    left_out_columns = _choose_without_groups(ratios, times, is_served, terms, columns, within)
    fitted_cases = []
    for row, (case, left_out) in enumerate(zip(cases, left_out_columns, strict=True)):
        best = min(columns, key=lambda column: ratios[row, column])
        left_out = left_out if is_served[row, left_out] else best
        left_out_regret = min(ratios[row, left_out], _FAILED) - 1
        choice = (programs[best], ratios[row, best] - 1, programs[left_out], left_out_regret)
        fitted_cases.append(FittedCase(case, *choice))
    return Fit(
        within,
        {
            programs[column]: terms.format_cost(column, cost)
            for column, cost in zip(columns, costs, strict=True)
        },
        fitted_cases,
    )


def _choose_without_groups(
    ratios: _Ratios,
    times: _Floats,
    is_served: NDArray[np.bool_],
    terms: _Terms,
    columns: Sequence[int],
    within: float,
) -> list[int]:
    """Return the column of each case that a fit chooses without the group of the case. `columns`
    are those of the whole fit."""
    choices = np.zeros(len(ratios), np.intp)
    group_count = min(len(ratios), _MAX_GROUPS)
    for group in range(group_count):
        rest = np.arange(len(ratios)) % group_count != group
        # Fewer programs may do without the group. All in turn take the steps of one fit.
        max_steps = _MAX_STEPS // group_count
        fewer = _find_cover(ratios[rest] <= within, len(columns) - 1, max_steps)
        own = np.array(_swap_columns(ratios[rest], fewer or columns, within))
        values = terms.list_values(own.tolist())
        predicted = _predict(values, _fit_costs(values[:, rest], times[rest][:, own]))
        predicted[~is_served[:, own]] = math.inf
        choices[~rest] = own[predicted[~rest].argmin(axis=1)]
    columns_by_case: list[int] = choices.tolist()
    return columns_by_case


def fit_script(
    script: Script,
    instance: PlannedInstance,
    measured_rows: Sequence[MeasuredRow],
    rows: Sequence[MeasuredRow],
    within: float,
    max_programs: int,
) -> tuple[list[MeasuredRow], list[tuple[str, Fit]]]:
    """Fit few programs to the measurements of a script in its cache (`fit_programs`). Return `rows`
    of the repository with the fitted costs in place of those of the same devices, and the fits by
    device. Raises `InputError` if nothing is measured."""
    cases: dict[tuple[str, str], list[FitCase]] = {}
    for measurement, sizes in measure_cases(script, measured_rows, fold_refusals(measured_rows)):
        unserved = frozenset(
            number for number in script.programs if script.explain_refusal(number, sizes)
        )
        times = {i: time for i, time in measurement.seconds.items() if i not in unserved}
        if times:
            times |= dict.fromkeys(measurement.refused, math.inf)
            case = FitCase(measurement.sizes, times, unserved)
            cases.setdefault((measurement.device, measurement.arch), []).append(case)
    if not cases:
        hint = f"`{format_command('tune', script.name)}` measures the manifest's sizes"
        raise input_error(f"nothing is measured for {script.label}", hint=hint)
    waves = _find_waves(script, instance)
    fits = {
        device: fit_programs(device_cases, script.keys, within, max_programs, waves)
        for device, device_cases in cases.items()
    }
    cost_rows = [
        make_row(script, program, device, arch, cost=cost)
        for (device, arch), fit in fits.items()
        for program, cost in fit.costs.items()
    ]
    kept_rows = [
        row
        for row in rows
        if not row.cost
        or not row.is_of_instance(script.target, script.params)
        or (row.device, row.arch) not in fits
    ]
    return [*kept_rows, *cost_rows], [(device, fit) for (device, _), fit in fits.items()]


def _find_waves(script: Script, instance: PlannedInstance) -> Waves:
    """Return the blocks of a script's launches where its keys decide on them. The fact `sms` of the
    target is the number that the device runs at a time."""
    launch = instance.spec.recipe.launch
    if script.kind == "cpu" or launch is None or not launch.grid:
        return Waves({})
    grid = parse_expression(" * ".join(side.canonical for side in launch.grid))
    points = instance.spec.space.take_points(script.programs)
    blocks = {
        number: grid.substitute({**instance.params, **point.values})
        for number, point in zip(script.programs, points, strict=True)
    }
    sms = instance.target.facts.get("sms")
    return Waves(
        {number: expr for number, expr in blocks.items() if expr.names <= {*script.keys}},
        sms if isinstance(sms, int) and sms > 0 else None,
    )


# The programs.


def _choose_columns(ratios: _Ratios, within: float, max_columns: int) -> tuple[list[int], float]:
    """Return at most `max_columns` columns of which each case has one within the factor `within`,
    few and with a low mean, and that factor. If `max_columns` do not suffice, the factor is the
    least for which they do; if none is, there are more columns."""
    columns = _find_cover(ratios <= within, max_columns, _MAX_STEPS)
    if columns is None:
        factors = np.unique(ratios[np.isfinite(ratios) & (ratios > within)])
        low, high = 0, len(factors) - 1
        while low < high:
            middle = (low + high) // 2
            if _find_cover(ratios <= factors[middle], max_columns, _MAX_STEPS) is None:
                low = middle + 1
            else:
                high = middle
        within = float(factors[low]) if len(factors) else within
        # Cases that have no program in common with others may need more than `max_columns`.
        columns = _find_cover(ratios <= within, max_columns, _MAX_STEPS)
        columns = columns or _find_cover(ratios <= within, len(ratios), 0) or []
    return _swap_columns(ratios, columns, within), within


def _find_cover(covers: NDArray[np.bool_], max_columns: int, max_steps: int) -> list[int] | None:
    """Return the fewest columns that cover all rows, or those of a greedy search if `max_steps` do
    not find fewer; None if they are more than `max_columns`."""
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
    for count in range(1, min(max_columns, len(greedy) - 1) + 1):
        columns = _extend_cover(masks, everything, count, steps)
        if columns is not None:
            return columns
    return greedy if len(greedy) <= max_columns else None


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
        for index in range(len(chosen)):
            others = chosen[:index] + chosen[index + 1 :]
            rest = ratios[:, others].min(axis=1, initial=math.inf)
            best = np.minimum(rest[:, None], ratios)
            sums = np.where((best <= within).all(axis=0), best.sum(axis=0), math.inf)
            column = int(sums.argmin())
            if sums[column] < sums[chosen[index]] - 1e-9:
                chosen[index], improves = column, True
    return sorted(chosen)


# The costs.


class _Terms:
    """The terms of costs in some cases: products of keys, then each times the waves of a launch."""

    def __init__(
        self, keys: Sequence[str], cases: Sequence[tuple[int, ...]], blocks: Sequence[Expr | None]
    ) -> None:
        """`blocks` are those of a launch of each program."""
        count = len(keys) if len(keys) <= _MAX_FACTORS else 1
        products = [f for size in range(count + 1) for f in combinations(range(len(keys)), size)]
        sizes = np.array(cases, np.float64).reshape(len(cases), len(keys))
        self._wave_size = 1
        self._keys = [dict(zip(keys, case, strict=True)) for case in cases]
        self._blocks = blocks
        self._counts: dict[int, _Floats] = {}
        self._names = [" * ".join(keys[index] for index in product) for product in products]
        self._products = np.array([sizes[:, product].prod(axis=1) for product in products]).T

    def resize_waves(self, size: int) -> _Terms:
        """Return these terms with waves of `size` blocks."""
        terms = copy(self)
        terms._wave_size = size
        return terms

    def list_values(self, columns: Sequence[int]) -> _Floats:
        """Return the terms of programs, by program, case and term; 0 without known blocks."""
        waves = [np.ceil(self._count_blocks(column) / self._wave_size) for column in columns]
        own = [np.hstack([self._products, count[:, None] * self._products]) for count in waves]
        return np.array(own)

    def _count_blocks(self, column: int) -> _Floats:
        """Return the blocks of a program in each case; zeros if they are not known."""
        if column not in self._counts:
            counts = self._counts[column] = np.zeros(len(self._keys))
            # A grid without a value in some case, such as `m // n`, is of no use.
            with suppress(ExprError):
                if expr := self._blocks[column]:
                    counts[:] = [expr.evaluate(sizes) for sizes in self._keys]
        return self._counts[column]

    def format_cost(self, column: int, coefficients: _Floats) -> str:
        """Return a cost as an expression."""
        by_product, by_wave = np.split(coefficients, 2)
        parts = [text] if (text := self._format_sum(by_product)) else []
        if text := self._format_sum(by_wave):
            expr = self._blocks[column]
            parts.append(f"({text}) * cdiv({expr and expr.canonical}, {self._wave_size})")
        return " + ".join(parts) or "0.0"

    def _format_sum(self, coefficients: _Floats) -> str:
        return " + ".join(
            " * ".join(filter(None, (repr(float(f"{value:.4g}")), name)))
            for value, name in zip(coefficients, self._names, strict=True)
            if value
        )


def _predict(terms: _Floats, costs: _Floats) -> _Floats:
    """Return the values of costs by case and program."""
    values: _Floats = np.einsum("pnf,pf->np", terms, costs)
    return values


def _fit_costs(terms: _Floats, times: _Floats, rounds: int = _ROUNDS) -> _Floats:
    """Return the coefficients of costs, by program and term, for times by case and program: those
    of the least relative errors.

    Only the order of programs matters. So each case has a factor for what slows all of them alike,
    such as a cache that is full or a machine that is busy. A time that is far from its cost, as a
    disturbed one, has a smaller weight (Huber, "Robust Estimation of a Location Parameter", 1964).
    """
    is_timed = np.isfinite(times)
    known_times = np.where(is_timed, times, 1.0)
    factors, trust = np.ones((len(times), 1)), is_timed.astype(np.float64)
    for _ in range(rounds):
        scaled = terms * (factors / known_times).T[..., None]
        costs = np.array([_select_terms(*pair) for pair in zip(scaled, trust.T, strict=True)])
        errors = np.log(known_times / np.maximum(_predict(terms, costs), 1e-300))
        means = (errors * trust).sum(axis=1) / np.maximum(trust.sum(axis=1), 1e-300)
        factors = np.exp(means)[:, None]
        errors = np.abs(errors - means[:, None])
        # Huber's limit is 1.345 standard deviations, each 1.48 medians of normal errors.
        limit = max(2 * float(np.median(errors[is_timed])), 1e-9) if is_timed.any() else 1.0
        trust = is_timed * (limit / np.maximum(errors, limit))
    return costs


def _select_terms(terms: _Floats, trust: _Floats) -> _Floats:
    """Return the coefficients of one cost by its terms over the times: a term after the other is
    added by which the sum of the squares of `1 - cost`, with the weights `trust`, becomes least,
    while all coefficients are positive."""
    # Terms differ by many orders of magnitude.
    scale = np.maximum(np.sqrt(trust @ terms**2), 1e-300)
    scaled = terms / scale
    sums = trust @ scaled
    # Some terms are equal, as `m * n` and `m` where n is 1: then the matrix needs a diagonal.
    gram = scaled.T @ (scaled * trust[:, None]) + 1e-9 * np.eye(len(sums))
    places: NDArray[np.intp] = np.zeros(0, np.intp)
    total = error = float(trust.sum())
    coefficients = np.zeros(len(sums))
    for _ in range(_MAX_TERMS):
        others = np.setdiff1d(np.arange(len(sums)), places)
        sets = np.column_stack([np.tile(places, (len(others), 1)), others])
        solved = np.linalg.solve(gram[sets[:, :, None], sets[:, None, :]], sums[sets][..., None])
        values = solved[..., 0]
        errors = total - (values * sums[sets]).sum(axis=1)
        errors[(values < 0).any(axis=1)] = math.inf
        best = int(errors.argmin()) if len(errors) else 0
        if not len(errors) or errors[best] >= error * (1 - _MIN_GAIN):
            break
        places, error = sets[best], float(errors[best])
        coefficients[:] = 0
        coefficients[places] = values[best]
    own: _Floats = coefficients / scale
    return own


def _find_wave_size(terms: _Terms, columns: Sequence[int], times: _Floats) -> int:
    """Return the number of blocks at a time by which the costs of programs are nearest to their
    times."""

    def measure_error(size: int) -> float:
        values = terms.resize_waves(size).list_values(columns)
        predicted = _predict(values, _fit_costs(values, times[:, columns], rounds=1))
        return float(np.nansum((predicted / times[:, columns] - 1) ** 2))

    if not terms.list_values(columns)[..., -1].any():
        return 1  # no blocks are known

    coarse = sorted({round(1.06**power) for power in range(int(math.log(_MAX_BLOCKS, 1.06)))})
    best = min(coarse, key=measure_error)
    return min(range(math.ceil(best / 1.06), int(best * 1.06) + 1), key=measure_error)
