"""The elements of tensors of every type: makes the content before a call, and compares outputs.

An element is right when |got - want| <= atol + rtol * |want|, when both are NaN, or when both are
the same infinity; integers and bool are compared as whole numbers.

A case names a seed in place of each tensor's content, so that no package carries inputs: the
machine that measures makes the same bytes with the standard library alone. SHAKE-128 of the seed
gives the random bytes. A translation of each byte makes elements of them, in 10 ns an f32: a loop
in Python would take seconds for a million. Floats are at most 1 in magnitude, so that sums of
products stay accurate in the narrow types, and at least 2^-6. All bits of the mantissa are random,
so that a kernel which rounds its inputs fails. Integers are between -8 and 8, and f8e8m0 between
2^-2 and 2^2.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from tilusbuild.runtime.dtypes import DTYPES, FLOATS
from tilusbuild.tune.bench.work import CaseArgument

# Bits of the mantissa (IEEE 754; bfloat16; OCP 8-bit floating point, 1.0).
_MANTISSA_BITS = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52, "f8e4m3": 3, "f8e5m2": 2}
# The greatest value (OCP 8-bit floating point, 1.0).
_LARGEST_F8 = {"f8e4m3": 448.0, "f8e5m2": 57344.0}
# An exponent and nothing else (OCP microscaling formats, 1.0): a power of two, or NaN.
_SCALE_TYPE = "f8e8m0"


def compare_outputs(output: CaseArgument, got: bytes, want: bytes) -> tuple[float, str | None]:
    """Return the largest absolute difference of the elements of an output (infinite where one side
    is not finite), and which of them is furthest outside the tolerance, in words."""
    if not got:
        return 0.0, None
    dtype, shape = output.dtype, output.shape or ()
    want_dtype = output.want or dtype
    tolerance = (output.rtol, output.atol) if dtype in FLOATS else (0.0, 0.0)
    # There are two functions for the same: NumPy takes milliseconds where plain Python takes
    # seconds, but a package is also checked on machines without NumPy.
    numpy = _import_numpy()
    if numpy is not None:
        comparison = _compare_with_numpy(numpy, got, dtype, want, want_dtype, *tolerance)
    else:
        comparison = _compare_without_numpy(got, dtype, want, want_dtype, *tolerance)
    if comparison.worst is None:
        return comparison.error, None
    offset, value, expected = comparison.worst
    got_text, want_text = _format_apart(value, expected)
    element = f"{output.name}{_unravel_index(offset, shape)} is {got_text}, expected {want_text}"
    message = f"{element}; {comparison.wrong} of {math.prod(shape)} elements are wrong"
    return comparison.error, message


def _format_apart(first: float, second: float) -> tuple[str, str]:
    """Return two numbers as texts, with more digits where they would else be equal."""
    # 9 digits differ for different f32, 17 for f64.
    texts = [(f"{first:.{digits}g}", f"{second:.{digits}g}") for digits in (6, 9, 17)]
    return next((pair for pair in texts if pair[0] != pair[1]), texts[0])


class _Comparison(NamedTuple):
    """The largest absolute error of an output's elements, and those outside the tolerance."""

    error: float
    worst: tuple[int, float, float] | None
    """Offset, value and expected value of the element that is furthest outside."""
    wrong: int
    """The number of elements outside."""


def _compare_with_numpy(
    numpy: Any, got: bytes, dtype: str, want: bytes, want_dtype: str, rtol: float, atol: float
) -> _Comparison:
    """Compare the elements of two buffers as arrays of NumPy."""
    actual, expected = _make_array(numpy, got, dtype), _make_array(numpy, want, want_dtype)
    if dtype in FLOATS:
        error, wrong = _find_errors(numpy, actual, expected, rtol, atol)
    else:
        wrong = actual != expected
        # Only for the message: f64 has one value for several large integers.
        error = numpy.abs(actual.astype(numpy.float64) - expected.astype(numpy.float64))
    largest = float(error.max())
    if not wrong.any():
        return _Comparison(largest, worst=None, wrong=0)
    offset = int(numpy.argmax(numpy.where(wrong, error, -1.0)))
    worst = (offset, float(actual[offset]), float(expected[offset]))
    return _Comparison(largest, worst, int(wrong.sum()))


def _find_errors(numpy: Any, actual: Any, want: Any, rtol: float, atol: float) -> tuple[Any, Any]:
    """Return the absolute differences of two arrays (infinite where one side is not finite),
    and a mask of those outside the tolerance."""
    with numpy.errstate(all="ignore"):
        actual, want = actual.astype(numpy.float64), want.astype(numpy.float64)
        # Two infinities of one sign are equal here, so their difference, NaN, does not count.
        same = (actual == want) | (numpy.isnan(actual) & numpy.isnan(want))
        error = numpy.where(same, 0.0, numpy.abs(actual - want))
        error = numpy.where(numpy.isnan(error), numpy.inf, error)
        allowed = (error <= atol + rtol * numpy.abs(want)) & ~numpy.isinf(error)
        return error, ~same & ~allowed


def _make_array(numpy: Any, data: bytes, dtype: str) -> Any:
    """Return the elements as an array that NumPy computes with."""
    if dtype == "bf16":
        wide = numpy.frombuffer(data, numpy.uint16).astype(numpy.uint32) << numpy.uint32(16)
        return wide.view(numpy.float32)
    if dtype in _LARGEST_F8 or dtype == _SCALE_TYPE:
        codes = numpy.frombuffer(data, numpy.uint8)
        return numpy.array(list_f8_values(dtype), numpy.float32)[codes]
    return numpy.frombuffer(data, DTYPES[dtype].struct)


def _compare_without_numpy(
    got: bytes, dtype: str, want: bytes, want_dtype: str, rtol: float, atol: float
) -> _Comparison:
    """Return the same as `_compare_with_numpy`."""
    largest, worst, worst_error, wrong = 0.0, None, -1.0, 0
    is_float = dtype in FLOATS
    pairs = zip(decode_elements(got, dtype), decode_elements(want, want_dtype), strict=True)
    for offset, (actual, expected) in enumerate(pairs):
        # Before any arithmetic: most elements are equal, and two infinities have no difference.
        if actual == expected or (is_float and math.isnan(actual) and math.isnan(expected)):
            continue
        error = abs(float(actual) - float(expected))
        if math.isnan(error):
            error = math.inf
        largest = max(largest, error)
        if is_float and not math.isinf(error) and error <= atol + rtol * abs(expected):
            continue
        wrong += 1
        if error > worst_error:
            worst, worst_error = (offset, float(actual), float(expected)), error
    return _Comparison(largest, worst, wrong)


def decode_elements(data: bytes, dtype: str) -> Iterable[Any]:
    """Return the elements as Python numbers."""
    if dtype == "bf16":
        wide = bytearray(2 * len(data))
        # bf16 is the upper half of an f32, little endian.
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        return memoryview(wide).cast("f")
    if dtype in _LARGEST_F8 or dtype == _SCALE_TYPE:
        table = list_f8_values(dtype)
        return (table[code] for code in data)
    if dtype == "f16":
        return (value for (value,) in struct.iter_unpack("<e", data))
    view: Any = memoryview(data)
    elements: Iterable[Any] = view.cast(DTYPES[dtype].struct)
    return elements


@cache
def list_f8_values(dtype: str) -> tuple[float, ...]:
    """Return the value of each of the 256 codes of an 8-bit type."""
    if dtype == _SCALE_TYPE:
        return (*(2.0 ** (code - 127) for code in range(255)), math.nan)
    mantissa_bits, largest = _MANTISSA_BITS[dtype], _LARGEST_F8[dtype]
    # An 8-bit float has 7 - mantissa_bits bits of exponent; the bias is half their range.
    bias = (1 << (6 - mantissa_bits)) - 1
    positives = []
    for code in range(128):
        exponent = code >> mantissa_bits
        mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
        value = (1 + mantissa) * 2.0 ** (exponent - bias)
        if exponent == 0:
            # Subnormal: no leading 1, and the smallest exponent.
            value = mantissa * 2.0 ** (1 - bias)
        elif dtype == "f8e5m2" and code == 0x7C:
            value = math.inf
        positives.append(value if value <= largest or math.isinf(value) else math.nan)
    return (*positives, *(-value for value in positives))


def _unravel_index(offset: int, shape: Sequence[int]) -> list[int]:
    """Return the indices of an element by its offset in C order."""
    index: list[int] = []
    for extent in reversed(shape):
        offset, rest = divmod(offset, extent)
        index.append(rest)
    return index[::-1]


@cache
def _import_numpy() -> Any:
    """Return NumPy, or None where it is not installed."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


# The content of tensors before a call.

_INTEGER_VALUES = range(-8, 9)
# Codes of f8e8m0: exponents of 2, plus 127 (OCP microscaling formats, 1.0).
_SCALE_CODES = range(125, 130)


def make_noise(dtype: str, count: int, seed: str) -> bytes:
    """Return `count` elements of a type. Raises `KeyError` for a type without numbers."""
    size = DTYPES[dtype].bytes
    # An integer of any size is chosen by one byte.
    random_bytes = size if dtype in _MANTISSA_BITS else 1
    raw = hashlib.shake_128(seed.encode()).digest(random_bytes * count)
    elements = bytearray(size * count)
    for byte_index, tables in enumerate(_make_byte_tables(dtype)):
        for number, table in enumerate(tables):
            # The first table translates the byte's own random numbers; the second those of the
            # highest byte, which decide sign and exponent.
            stream = min(byte_index + number, random_bytes - 1)
            piece = raw[stream * count : (stream + 1) * count].translate(table)
            if number:
                piece = _combine_bits(elements[byte_index::size], piece)
            elements[byte_index::size] = piece
    return bytes(elements)


def _combine_bits(first: bytes | bytearray, second: bytes) -> bytes:
    """Return the bitwise or of two strings of equal length."""
    joined = int.from_bytes(first, "little") | int.from_bytes(second, "little")
    return joined.to_bytes(len(second), "little")


@cache
def _make_byte_tables(dtype: str) -> tuple[tuple[bytes, ...], ...]:
    """Return for each byte of an element, the lowest first, the translations that are combined: of
    its own random byte, and for the byte below the highest also of the highest's."""
    size = DTYPES[dtype].bytes
    if dtype not in _MANTISSA_BITS:
        values = _SCALE_CODES if dtype == "f8e8m0" else _INTEGER_VALUES
        limits = DTYPES[dtype].limits or ((0, 1) if dtype == "bool" else (0, 255))
        allowed = [value for value in values if limits[0] <= value <= limits[1]]
        signed = limits[0] < 0
        # A byte is scaled down to an index, so that each value comes nearly as often: a remainder
        # would favour the first ones, as 256 is not a multiple of their number.
        numbers = (allowed[byte * len(allowed) >> 8] for byte in range(256))
        elements = [value.to_bytes(size, "little", signed=signed) for value in numbers]
        return tuple((bytes(element[index] for element in elements),) for index in range(size))
    bits, mantissa = DTYPES[dtype].bits, _MANTISSA_BITS[dtype]
    top_bits = [
        _make_top_bits(byte, bits, mantissa).to_bytes(size, "little") for byte in range(256)
    ]
    mantissa_mask = ((1 << mantissa) - 1).to_bytes(size, "little")
    tables: list[tuple[bytes, ...]] = []
    for byte_index in range(size):
        mantissa_table = bytes(byte & mantissa_mask[byte_index] for byte in range(256))
        top_table = bytes(element[byte_index] for element in top_bits)
        if byte_index == size - 1:
            tables.append((top_table,))
        elif any(top_table):
            # The exponent reaches into this byte, the one below the highest.
            tables.append((mantissa_table, top_table))
        else:
            tables.append((mantissa_table,))
    return tuple(tables)


def _make_top_bits(byte: int, bits: int, mantissa: int) -> int:
    """Return sign and exponent that a random byte stands for, with the bits of the mantissa that
    are in the highest byte."""
    # The values are distributed about uniformly: half are from 1/2 to 1, a quarter from 1/4 to 1/2,
    # and so on. So the exponent falls by the number of zero bits that the random bits begin with.
    exponent_bits = bits - 1 - mantissa
    low_bits = max(0, mantissa - (bits - 8))
    sign, rest = byte & 1, byte >> 1
    low, rest = rest & ((1 << low_bits) - 1), rest >> low_bits
    random_bits = 7 - low_bits
    max_zeros = min(5, random_bits)
    leading_zeros = next(
        (n for n in range(max_zeros) if rest >> (random_bits - 1 - n) & 1), max_zeros
    )
    # The bias less 1 stands for 1/2 to 1.
    exponent = (1 << (exponent_bits - 1)) - 2 - leading_zeros
    return (sign << (bits - 1)) | (exponent << mantissa) | (low << (mantissa - low_bits))
