"""A model of the times in a space of programs, by which a search decides what to look at next.

It is a Gaussian process over the normal scores of the times: the ranks of the times, as quantiles
of a normal distribution (Salinas, Shen and Perrone, 2020). So the few programs that are many times
slower than the best do not decide on the scale. Its kernel is a product of Matern 3/2 kernels, one
for each coordinate: neighbors are alike, and the weight of a coordinate says how much it matters.
The weights are those of the greatest likelihood. Candidates are ranked by their expected
improvement over the best program (Jones, Schonlau and Welch, 1998).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Floats: TypeAlias = NDArray[np.float64]
_NOISE = 1e-3
"""The variance of a sample, by that of the scores."""
_FIRST_WEIGHT, _MIN_WEIGHT, _MAX_WEIGHT = 2.0, 0.02, 20.0
_FACTORS = (0.4, 0.7, 1.5, 2.5)
"""Changes of a weight that are tried."""
_SPREAD = 1.5
"""The standard deviation of the logarithm of a weight before anything is known."""
_REFIT = 5
"""New programs until the weights are fitted again."""


class Surrogate:
    """The model of one case. `coordinates` are those of `index_programs`."""

    def __init__(self, coordinates: Mapping[int, Sequence[int]]) -> None:
        points = np.array([*coordinates.values()], dtype=np.float64)
        self._points = points / np.maximum(points.max(axis=0, initial=0), 1)
        self._rows = {program: row for row, program in enumerate(coordinates)}
        self._weights: _Floats = np.full(points.shape[1], _FIRST_WEIGHT)
        self._fitted_count = -_REFIT

    def rank_programs(
        self, scores: Mapping[int, float | None], candidates: Sequence[int]
    ) -> list[int]:
        """Return the candidates, the most promising first. `scores` has the seconds of programs,
        None for one that is out; one at least has a time."""
        worst = max(seconds for seconds in scores.values() if seconds is not None)
        # A failure says that the programs around it are not promising.
        values = _score_ranks(np.array([worst if s is None else s for s in scores.values()]))
        points = self._points[[self._rows[program] for program in scores]]
        if len(scores) >= self._fitted_count + _REFIT:
            self._fitted_count = len(scores)
            self._fit_weights(points, values)
        _, factor, solved = self._solve(points, values, self._weights)
        rows = [self._rows[program] for program in candidates]
        covariance = _correlate(points, self._points[rows], self._weights)
        mean = covariance.T @ solved
        spread = np.linalg.solve(factor, covariance)
        deviation = np.sqrt(np.maximum(1 - (spread * spread).sum(axis=0), 1e-9))
        gain = (values.min() - mean) / deviation
        # The normal distribution by tanh, and its density.
        share = 0.5 * (1 + np.tanh(0.79788 * (gain + 0.044715 * gain**3)))
        density = np.exp(-gain * gain / 2) / np.sqrt(2 * np.pi)
        order = np.argsort(-deviation * (gain * share + density), kind="stable")
        return [candidates[index] for index in order.tolist()]

    def _fit_weights(self, points: _Floats, values: _Floats) -> None:
        """Change one weight after the other where the likelihood becomes greater."""
        best = self._solve(points, values, self._weights)[0]
        for axis in range(len(self._weights)):
            for change in _FACTORS:
                weights = self._weights.copy()
                weights[axis] = np.clip(weights[axis] * change, _MIN_WEIGHT, _MAX_WEIGHT)
                likelihood = self._solve(points, values, weights)[0]
                if likelihood > best:
                    best, self._weights = likelihood, weights

    @staticmethod
    def _solve(points: _Floats, values: _Floats, weights: _Floats) -> tuple[float, Any, Any]:
        """Return the logarithm of the likelihood of the values, the Cholesky factor of their
        covariance, and the values divided by the covariance."""
        covariance = _correlate(points, points, weights) + _NOISE * np.eye(len(values))
        factor = np.linalg.cholesky(covariance)
        solved = np.linalg.solve(factor.T, np.linalg.solve(factor, values))
        prior = 0.5 * ((np.log(weights) / _SPREAD) ** 2).sum()
        return float(-0.5 * values @ solved - np.log(np.diag(factor)).sum() - prior), factor, solved


def _score_ranks(times: _Floats) -> _Floats:
    """Return the normal scores of times, with a mean of 0 and a deviation of 1. Equal times have
    equal scores."""
    ordered = np.sort(times)
    ranks = np.searchsorted(ordered, times, "left") + np.searchsorted(ordered, times, "right")
    scores = np.array([NormalDist().inv_cdf(rank / 2 / len(times)) for rank in ranks.tolist()])
    values: _Floats = (scores - scores.mean()) / (scores.std() + 1e-9)
    return values


def _correlate(points: _Floats, others: _Floats, weights: _Floats) -> _Floats:
    """Return the correlation of the times at points (rows) and at others (columns)."""
    exponent = np.zeros((len(points), len(others)))
    for axis, weight in enumerate(weights):
        # Coordinates have few values: the kernel is computed of these.
        own, own_places = np.unique(points[:, axis], return_inverse=True)
        other, other_places = np.unique(others[:, axis], return_inverse=True)
        scaled = np.sqrt(3) * weight * np.abs(own[:, None] - other[None, :])
        exponent += (np.log1p(scaled) - scaled)[np.ix_(own_places, other_places)]
    return np.exp(exponent)
