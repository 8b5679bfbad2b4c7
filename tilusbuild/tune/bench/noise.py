"""The tensors of a call, made from a seed: the same bytes wherever they are made.

A case names a seed in place of each tensor's content. So neither a bundle nor a package carries
inputs, and the machine that measures makes them with the standard library alone. SHAKE-128 of the
seed gives the random bytes. A translation of each byte makes elements of them, since a loop in
Python would take seconds for a million: 10 ns an element of f32.

Floats are at most 1 in magnitude, so that sums of products stay accurate in the narrow types, and
at least 2^-6; all bits of the mantissa are random, so that a kernel which rounds its inputs is
found out. Integers are between -8 and 8, and f8e8m0 between 2^-2 and 2^2.
"""

from __future__ import annotations

import hashlib
from functools import cache

from tilusbuild.runtime.dtypes import DTYPES

_MANTISSA = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52, "f8e4m3": 3, "f8e5m2": 2}
"""Bits of the mantissa (IEEE 754; bfloat16; OCP 8-bit floating point, 1.0)."""
_INTEGERS = range(-8, 9)
_SCALES = range(125, 130)
"""Codes of f8e8m0: exponents of 2, plus 127 (OCP microscaling formats, 1.0)."""


def noise(dtype: str, count: int, seed: str) -> bytes:
    """Return `count` elements of a type. Raises `KeyError` for a type without numbers."""
    size = DTYPES[dtype].bytes
    drawn = size if dtype in _MANTISSA else 1
    raw = hashlib.shake_128(seed.encode()).digest(drawn * count)
    made = bytearray(size * count)
    for place, tables in enumerate(_tables(dtype)):
        for number, table in enumerate(tables):
            stream = min(place + number, drawn - 1)
            piece = raw[stream * count : (stream + 1) * count].translate(table)
            made[place::size] = _either(made[place::size], piece) if number else piece
    return bytes(made)


def _either(one: bytes | bytearray, other: bytes) -> bytes:
    """Return the bitwise or."""
    joined = int.from_bytes(one, "little") | int.from_bytes(other, "little")
    return joined.to_bytes(len(other), "little")


@cache
def _tables(dtype: str) -> tuple[tuple[bytes, ...], ...]:
    """Return for each byte of an element, the lowest first, the translations that are combined: of
    its own random byte, and for the byte below the highest also of the highest's."""
    size = DTYPES[dtype].bytes
    if dtype not in _MANTISSA:
        values = _SCALES if dtype == "f8e8m0" else _INTEGERS
        limits = DTYPES[dtype].limits or ((0, 1) if dtype == "bool" else (0, 255))
        kept = [value for value in values if limits[0] <= value <= limits[1]]
        signed = limits[0] < 0
        chosen = (kept[byte * len(kept) >> 8] for byte in range(256))
        elements = [value.to_bytes(size, "little", signed=signed) for value in chosen]
        return tuple((bytes(each[place] for each in elements),) for place in range(size))
    bits, mantissa = DTYPES[dtype].bits, _MANTISSA[dtype]
    own = [_top(byte, bits, mantissa).to_bytes(size, "little") for byte in range(256)]
    free = ((1 << mantissa) - 1).to_bytes(size, "little")
    tables: list[tuple[bytes, ...]] = []
    for place in range(size):
        random = bytes(byte & free[place] for byte in range(256))
        fixed = bytes(each[place] for each in own)
        drawn = (random, fixed) if any(fixed) else (random,)
        tables.append((fixed,) if place == size - 1 else drawn)
    return tuple(tables)


def _top(byte: int, bits: int, mantissa: int) -> int:
    """Return sign and exponent that a random byte stands for, with the bits of the mantissa that
    are in the highest byte: half of the values are above 1/2, a quarter above 1/4, …"""
    exponent_bits = bits - 1 - mantissa
    inside = max(0, mantissa - (bits - 8))
    sign, rest = byte & 1, byte >> 1
    low, rest = rest & ((1 << inside) - 1), rest >> inside
    places = 7 - inside
    most = min(5, places)
    below = next((n for n in range(most) if rest >> (places - 1 - n) & 1), most)
    exponent = (1 << (exponent_bits - 1)) - 2 - below
    return (sign << (bits - 1)) | (exponent << mantissa) | (low << (mantissa - inside))
