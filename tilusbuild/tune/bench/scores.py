"""What samples say: the time of a program, and its speed-up over another one with an interval.

A disturbance only lengthens a sample: another process takes the core, or fills the caches. So the
time of a program is the lower quartile of its samples, of up to four the shortest. On a quiet
machine that is the median, nearly.

A worker process adds a part of its own to all of its samples: the pages that its memory has, the
clocks of its time. So `SAMPLES_PER_WORKER` samples come from one worker, and the interval is that
of another measurement by as many workers: the prediction interval of Student's t over the
logarithms of the workers' times, with degrees of freedom by Satterthwaite (1946). The two programs
count as measured by different workers, as two calls of `run` are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import variance

SAMPLES_PER_WORKER = 8
# The quantile of the normal distribution for 95 %.
_Z = 1.959964
# The variance of the lower quartile of n normal values, by that of one and 1 / n: p (1 - p) / f^2
# with the density f there (Cramér 1946, 28.5).
_QUARTILE_VARIANCE = 0.1875 / 0.317777**2


def score_samples(samples: Sequence[float]) -> float:
    """Return the time of a program with these samples, at least one, in their unit."""
    return sorted(samples)[(len(samples) - 1) // 4]


@dataclass(frozen=True, slots=True)
class Speedup:
    """How much faster a program is than the baseline."""

    ratio: float
    low: float
    high: float

    @property
    def is_difference(self) -> bool:
        """Return whether the interval leaves out 1."""
        return not self.low <= 1 <= self.high

    def format_text(self) -> str:
        """Return the ratio and its interval: `1.31x (1.28-1.33)`; `no difference`."""
        if not self.is_difference:
            return "no difference"
        return f"{self.ratio:.2f}x ({self.low:.2f}-{self.high:.2f})"


def estimate_speedup(baseline: Sequence[float], samples: Sequence[float]) -> Speedup | None:
    """Return the speed-up of a program with these samples in seconds over the baseline; None when
    one of the two has fewer than two, or one of 0: a GPU's clock may not see a short kernel."""
    if min(len(baseline), len(samples)) < 2 or min(*baseline, *samples) <= 0:
        return None
    ratio = score_samples(baseline) / score_samples(samples)
    variances, freedoms = zip(*map(_measure_spread, (baseline, samples)), strict=True)
    total = sum(variances)
    # Of a spread of 0 any quantile is right.
    divisor = sum(v * v / f for v, f in zip(variances, freedoms, strict=True)) or 1.0
    quantile = _find_quantile(max(1.0, total * total / divisor))
    # Twice: the other measurement varies as this one does.
    factor = math.exp(quantile * math.sqrt(2 * total))
    return Speedup(ratio, ratio / factor, ratio * factor)


def _measure_spread(samples: Sequence[float]) -> tuple[float, int]:
    """Return the variance of the logarithm of the time, and its degrees of freedom.

    If a single worker took the samples, each sample counts as a worker's.
    """
    step = SAMPLES_PER_WORKER if len(samples) > SAMPLES_PER_WORKER else 1
    times = [
        math.log(score_samples(samples[start : start + step]))
        for start in range(0, len(samples), step)
    ]
    return _QUARTILE_VARIANCE * variance(times) / len(times), len(times) - 1


def _find_quantile(freedom: float) -> float:
    """Return the quantile of Student's t for 95 %, by Abramowitz and Stegun 26.7.5: 1 % too small
    at 3 degrees of freedom, and nearer for more."""
    z2 = _Z * _Z
    terms = (
        (z2 + 1) / 4,
        ((5 * z2 + 16) * z2 + 3) / 96,
        (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384,
    )
    return _Z * (1 + sum(term / freedom**power for power, term in enumerate(terms, 1)))
