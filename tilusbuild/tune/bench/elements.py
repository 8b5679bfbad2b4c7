"""Outputs against what they should hold, element by element, for every type that a tensor can have.

An element is right when |got - want| <= atol + rtol * |want|, when both are NaN, or when both are
the same infinity; integers and bool are compared as whole numbers. With NumPy the comparison takes
milliseconds where plain Python takes seconds; the answers are the same.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tilusbuild.runtime.dtypes import DTYPES, FLOATS

_F8 = {"f8e4m3": (4, 3, 448.0), "f8e5m2": (5, 2, 57344.0)}
"""Exponent bits, mantissa bits, the greatest value (OCP 8-bit floating point, 1.0)."""
_SCALE = "f8e8m0"
"""An exponent and nothing else (OCP microscaling formats, 1.0): a power of two, or NaN."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Where an output is furthest from the reference."""

    argument: str
    index: tuple[int, ...]
    got: float
    expected: float
    wrong: int
    """Elements outside the tolerance."""
    size: int

    def __str__(self) -> str:
        return (
            f"{self.argument}{list(self.index)} is {self.got:g}, expected {self.expected:g};"
            f" {self.wrong} of {self.size} elements are wrong"
        )


def compare(
    name: str,
    shape: Sequence[int],
    got: bytes,
    dtype: str,
    want: bytes,
    want_dtype: str,
    rtol: float,
    atol: float,
) -> tuple[float, Mismatch | None]:
    """Return the largest absolute difference (infinite where one side is not finite), and the worst
    element outside the tolerance."""
    if not got:
        return 0.0, None
    tolerance = (rtol, atol) if dtype in FLOATS else (0.0, 0.0)
    numpy = _numpy()
    if numpy is not None:
        error, worst, wrong = _with_numpy(numpy, got, dtype, want, want_dtype, *tolerance)
    else:
        error, worst, wrong = _plain(got, dtype, want, want_dtype, *tolerance)
    if worst is None:
        return error, None
    at, value, expected = worst
    count = math.prod(shape)
    return error, Mismatch(name, _unravelled(at, shape), value, expected, wrong, count)


def _with_numpy(
    numpy: Any, got: bytes, dtype: str, want: bytes, want_dtype: str, rtol: float, atol: float
) -> tuple[float, tuple[int, float, float] | None, int]:
    a, w = _as_array(numpy, got, dtype), _as_array(numpy, want, want_dtype)
    if dtype in FLOATS:
        error, wrong = _errors(numpy, a, w, rtol, atol)
    else:
        wrong = a != w
        error = numpy.abs(a.astype(numpy.float64) - w.astype(numpy.float64))
    largest = float(error.max())
    if not wrong.any():
        return largest, None, 0
    at = int(numpy.argmax(numpy.where(wrong, error, -1.0)))
    return largest, (at, float(a[at]), float(w[at])), int(wrong.sum())


def _errors(numpy: Any, actual: Any, want: Any, rtol: float, atol: float) -> tuple[Any, Any]:
    """Return the absolute differences of two arrays (infinite where one side is not finite), and
    which of them are too large."""
    with numpy.errstate(all="ignore"):
        a, w = actual.astype(numpy.float64), want.astype(numpy.float64)
        same = (a == w) | (numpy.isnan(a) & numpy.isnan(w))
        error = numpy.where(same, 0.0, numpy.abs(a - w))
        error = numpy.where(numpy.isnan(error), numpy.inf, error)
        allowed = (error <= atol + rtol * numpy.abs(w)) & ~numpy.isinf(error)
        return error, ~same & ~allowed


def _as_array(numpy: Any, data: bytes, dtype: str) -> Any:
    if dtype == "bf16":
        wide = numpy.frombuffer(data, numpy.uint16).astype(numpy.uint32) << numpy.uint32(16)
        return wide.view(numpy.float32)
    if dtype in _F8 or dtype == _SCALE:
        codes = numpy.frombuffer(data, numpy.uint8)
        return numpy.array(f8_values(dtype), numpy.float32)[codes]
    return numpy.frombuffer(data, DTYPES[dtype].struct)


def _plain(
    got: bytes, dtype: str, want: bytes, want_dtype: str, rtol: float, atol: float
) -> tuple[float, tuple[int, float, float] | None, int]:
    largest, worst, worst_error, wrong = 0.0, None, -1.0, 0
    inexact = dtype in FLOATS
    for at, (a, w) in enumerate(zip(values(got, dtype), values(want, want_dtype), strict=True)):
        if a == w or (inexact and math.isnan(a) and math.isnan(w)):
            continue
        error = abs(float(a) - float(w))
        if math.isnan(error):
            error = math.inf
        largest = max(largest, error)
        if inexact and not math.isinf(error) and error <= atol + rtol * abs(w):
            continue
        wrong += 1
        if error > worst_error:
            worst, worst_error = (at, float(a), float(w)), error
    return largest, worst, wrong


def values(data: bytes, dtype: str) -> Iterable[Any]:
    """Return the elements as Python numbers."""
    if dtype == "bf16":
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        return memoryview(wide).cast("f")
    if dtype in _F8 or dtype == _SCALE:
        table = f8_values(dtype)
        return (table[code] for code in data)
    if dtype == "f16":
        return (value for (value,) in struct.iter_unpack("<e", data))
    view: Any = memoryview(data)
    elements: Iterable[Any] = view.cast(DTYPES[dtype].struct)
    return elements


@cache
def f8_values(dtype: str) -> tuple[float, ...]:
    """Return the value of each of the 256 codes."""
    if dtype == _SCALE:
        return (*(2.0 ** (code - 127) for code in range(255)), math.nan)
    exponent_bits, mantissa_bits, largest = _F8[dtype]
    bias = (1 << (exponent_bits - 1)) - 1
    found = []
    for code in range(128):
        exponent = code >> mantissa_bits
        mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
        value = (1 + mantissa) * 2.0 ** (exponent - bias)
        if exponent == 0:
            value = mantissa * 2.0 ** (1 - bias)
        elif dtype == "f8e5m2" and code == 0x7C:
            value = math.inf
        found.append(value if value <= largest or math.isinf(value) else math.nan)
    return (*found, *(-value for value in found))


def _unravelled(at: int, shape: Sequence[int]) -> tuple[int, ...]:
    index: list[int] = []
    for extent in reversed(shape):
        at, rest = divmod(at, extent)
        index.append(rest)
    return tuple(reversed(index))


@cache
def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy
