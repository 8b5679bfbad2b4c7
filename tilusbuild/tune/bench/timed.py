"""One sample: the seconds of a launch, and how it was come by."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timed:
    """`seconds` is the mean of `launches` launches that were timed together."""

    seconds: float
    launches: int
    hidden: bool = True
    """Whether every launch was queued before the device came to it, so that none waited for the
    host."""


def launches_for(estimate: float, span: float, most: int) -> int:
    """How many launches fill `span` seconds, 1 to `most`."""
    if estimate <= 0:
        return most
    return max(1, min(most, math.ceil(span / estimate)))
