"""How sizes are grouped for dispatch: a bucket is known by the greatest size in it.

What is measured for that size serves the whole bucket. A size below 1 is a bucket of its own; a
size above the last of `edges` belongs to the last bucket, which is open. `dispatch.c` does the same
arithmetic.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TypeAlias

Bucket: TypeAlias = "str | list[int] | dict[str, int]"
"""As a manifest and `script.json` write it: "tilus", "pow2", "exact", edges, {"every": N}."""

KINDS = ("tilus", "pow2", "exact")


def rounding(bucket: object) -> Callable[[int], int]:
    """Return the function from a size to its bucket. Raises `ValueError` for what is not a
    bucket."""
    if bucket == "tilus":
        return tilus
    if bucket == "pow2":
        return pow2
    if bucket == "exact":
        return exact
    if isinstance(bucket, list) and bucket and all(type(edge) is int for edge in bucket):
        edges = list(bucket)
        if edges != sorted(set(edges)) or edges[0] < 1:
            raise ValueError(f"edges must rise from 1: {bucket!r:.80}")
        return lambda size: (
            edges[min(bisect_left(edges, size), len(edges) - 1)] if size > 0 else size
        )
    if isinstance(bucket, dict) and list(bucket) == ["every"]:
        step = bucket["every"]
        if type(step) is int and step >= 1:
            return lambda size: -(-size // step) * step if size > 0 else size
    raise ValueError(f"no kind of bucket: {bucket!r:.80}")


def tilus(size: int) -> int:
    """Two buckets an octave, as Tilus rounds: 1, 2, 3, 4, 6, 8, 12, 16, 24 …"""
    if size < 1:
        return size
    block = 1 << max(size.bit_length() - 2, 0)
    return -(-size // block) * block


def pow2(size: int) -> int:
    """One bucket an octave: up to the next power of two."""
    return size if size < 1 else 1 << (size - 1).bit_length()


def exact(size: int) -> int:
    """Return each size for itself."""
    return size


def up_to(bucket: object, low: int, high: int, limit: int = 10_000) -> list[int]:
    """Return the buckets of the sizes `low` to `high`, rising; at most `limit` of them. `bucket` is
    as a manifest writes it, or the function that `rounding` makes of that."""
    to_bucket: Callable[[int], int] = bucket if callable(bucket) else rounding(bucket)
    found, size = list[int](), low
    while size <= high and len(found) < limit:
        found.append(to_bucket(size))
        if found[-1] < size:  # the open bucket after the last edge
            break
        size = found[-1] + 1
    return list(dict.fromkeys(found))
