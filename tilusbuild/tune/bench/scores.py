"""What samples say: the time of a program, and its speed-up over another one with an interval.

A disturbance only lengthens a sample: another process takes the core, or fills the caches. So the
time of a program is the lower quartile of its samples, of up to four the shortest. On a quiet
machine that is the median, nearly.

The interval is a bootstrap (Efron 1979): both sets of samples are drawn again, with replacement,
and the ratio of their times is taken each time. The price is some 10 ms a comparison.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

_DRAWS = 1000
# The share of the ratios that the interval leaves out at each end: 95 % of them are in it.
_TAIL = 0.025


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
    one of the two has none, or one of 0: a GPU's clock may not see a short kernel."""
    if not baseline or not samples or min(*baseline, *samples) <= 0:
        return None
    ratio = score_samples(baseline) / score_samples(samples)
    # A fixed seed: the same samples give the same interval.
    draw = random.Random(0).choices  # noqa: S311 - nothing secret
    ratios = sorted(
        score_samples(draw(baseline, k=len(baseline)))
        / score_samples(draw(samples, k=len(samples)))
        for _ in range(_DRAWS)
    )
    tail = int(_TAIL * _DRAWS)
    return Speedup(ratio, ratios[tail], ratios[-1 - tail])
