"""Random choices that a seed decides, the same on every machine and in every version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any


def shuffled(count: int, seed: int) -> Iterator[int]:
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


def scattered(stream: str, tries: Any, size: int) -> Any:
    """Return a number from 0 to before `size` for each of these places of a random stream: the
    finaliser of SplitMix64, which is the same everywhere, of the place and of a digest."""
    import numpy as np

    base = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "big")
    with np.errstate(over="ignore"):
        mixed = (tries + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(base)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return ((mixed >> np.uint64(11)) * 2.0**-53 * size).astype(np.min_scalar_type(max(size - 1, 0)))
