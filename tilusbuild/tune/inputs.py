"""Arguments for a trial call, made from the signature, the sizes and a seed.

The values are small enough that sums of products stay accurate in the narrow types, the same for
the same seed, and an output starts as noise too, so that a kernel which forgets to write is found
out. bf16 and fp8 arrays are kept as bits (`dlpack.Typed`); `widen` gives the f32 values that they
stand for, which is what a reference sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from tilusbuild.errors import input_error
from tilusbuild.expr import ExprError, Value
from tilusbuild.signature import Argument, Dim, Signature, integer_limits
from tilusbuild.tune.bench.elements import f8_values
from tilusbuild.tune.dlpack import Typed

Array: TypeAlias = "np.ndarray[Any, Any]"
Input: TypeAlias = "Array | Typed | int | float | bool"

_NUMPY = {
    "bool": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
}


def numpy_type(dtype: str) -> Any:
    """The NumPy type of a dtype that NumPy has."""
    return _NUMPY[dtype]


def generate(
    signature: Signature, sizes: Mapping[str, Value], *, seed: int = 0
) -> dict[str, Input]:
    """An input for each callable argument, in order. `signature` is resolved.

    `sizes` gives the dimensions, and may give scalars. Raises `InputError` when one is missing or
    out of its declared range.
    """
    dims = {a.name: _dimension(a, sizes) for a in signature.dimensions}
    random = np.random.default_rng(seed)
    made: dict[str, Input] = {}
    for argument in signature.callable_arguments:
        if argument.is_tensor:
            shape = tuple(_extent(argument, dim, dims) for dim in argument.dims or ())
            made[argument.name] = _tensor(argument, shape, random)
        elif argument.name in sizes:
            made[argument.name] = sizes[argument.name]  # type: ignore[assignment]
        else:
            made[argument.name] = _scalar(argument, random)
    return made


def _dimension(argument: Argument, sizes: Mapping[str, Value]) -> int:
    value = sizes.get(argument.name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise input_error(
            f'no size for dimension "{argument.name}"',
            hint=f"give it in [script.….tune] sizes, or as --size {argument.name}=1024",
        )
    low = max(0, argument.low or 0)
    limits = integer_limits(argument.dtype)
    high = argument.high if argument.high is not None else limits[1] if limits else value
    if not low <= value <= high:
        raise input_error(f"size {argument.name}={value} is outside its range {low}..{high}")
    return value


def _extent(argument: Argument, dim: Dim, dims: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    if isinstance(dim, str):
        return dims[dim]
    try:
        value = dim.evaluate(dims)
    except ExprError as error:
        raise input_error(f'shape of "{argument.name}": {dim.source}: {error.message}') from None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise input_error(f'shape of "{argument.name}": {dim.source} is {value!r}, not a count')
    return value


def _tensor(argument: Argument, shape: tuple[int, ...], random: np.random.Generator) -> Input:
    kind = argument.dtype
    if kind == "bool":
        return random.integers(0, 2, shape).astype(np.bool_)
    if limits := integer_limits(kind):
        return random.integers(max(-8, limits[0]), 9, shape).astype(_NUMPY[kind])
    values = random.uniform(-1.0, 1.0, shape).astype(np.float32)
    if kind in _NUMPY:
        return values.astype(_NUMPY[kind])
    return narrow(values, kind)


def _scalar(argument: Argument, random: np.random.Generator) -> Input:
    if argument.dtype == "bool":
        return bool(random.integers(0, 2))
    if integer_limits(argument.dtype):
        low = argument.low if argument.low is not None else 1
        high = argument.high if argument.high is not None else max(low, 4)
        return int(random.integers(low, high + 1))
    # A value that f32 holds exactly, so that a reference in f64 computes with the same number.
    return float(np.float32(random.uniform(0.5, 1.5)))


_F8_LARGEST = {"f8e4m3": 448.0, "f8e5m2": 57344.0}


def narrow(values: Array, dtype: str) -> Typed:
    """f32 values rounded to the nearest bf16 or fp8 (ties to even, fp8 saturating), as bits."""
    if dtype == "bf16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return Typed((rounded >> np.uint32(16)).astype(np.uint16).reshape(values.shape), dtype)
    table = _f8_values(dtype)
    largest = _F8_LARGEST[dtype]
    clipped = np.clip(values, -largest, largest)
    positive = np.flatnonzero(np.isfinite(table[:128]))
    grid = table[positive]
    magnitude = np.abs(clipped)
    above = np.clip(np.searchsorted(grid, magnitude), 1, len(grid) - 1)
    low, high = grid[above - 1], grid[above]
    up = (magnitude - low > high - magnitude) | (
        (magnitude - low == high - magnitude) & (above % 2 == 0)
    )
    code = np.where(up, above, above - 1).astype(np.uint8)
    return Typed((code | (np.signbit(clipped).astype(np.uint8) << 7)).astype(np.uint8), dtype)


def _f8_values(dtype: str) -> Array:
    """The f32 value of each of the 256 codes."""
    return np.array(f8_values(dtype), np.float32)


def widen(value: Input) -> Any:
    """What a reference sees: f32 for bf16 and fp8, everything else as it is."""
    if not isinstance(value, Typed):
        return value
    if value.dtype == "bf16":
        wide = value.array.astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).reshape(value.array.shape)
    return _f8_values(value.dtype)[value.array]


def copied(value: Input) -> Input:
    """The same, not shared: what a call may overwrite."""
    if isinstance(value, Typed):
        return Typed(value.array.copy(), value.dtype)
    return value.copy() if isinstance(value, np.ndarray) else value
