"""Arguments for a call, made from the signature, the sizes and a seed.

The values are small enough that sums of products stay accurate in the narrow types, and the same
for the same seed. An output starts as noise too, so that a kernel which forgets to write fails.
bf16 and fp8 arrays are of the types of `ml_dtypes`. A reference gets their values as f32
(`widen_floats`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from tilusbuild.errors import InputError, did_you_mean, input_error
from tilusbuild.expr import ExprError, Value
from tilusbuild.runtime.dtypes import DTYPES, FLOATS, POINTER, get_integer_limits
from tilusbuild.runtime.structs import StructMember, is_struct, parse_struct
from tilusbuild.signature.model import ANY_SHAPE, Argument, Dim, Signature
from tilusbuild.tune.bench.elements import make_noise

Number = bool | int | float
StructInput = dict[str, Any]
"""The members' numbers; a list for an array."""
Array: TypeAlias = "np.ndarray[Any, Any]"
Input: TypeAlias = "Array | int | float | bool | StructInput | None"


# Names of the types that NumPy itself does not have.
_ML_DTYPES_NAMES = frozenset(row.numpy for row in DTYPES.values() if not row.struct)


def get_numpy_type(dtype: str) -> np.dtype[Any]:
    """Return the NumPy type of an element type; `ml_dtypes` has those that NumPy does not.
    Raises `InputError` for a type in neither."""
    name = DTYPES[dtype].numpy
    # Two elements of fp4 share a byte.
    if DTYPES[dtype].lanes != 1:
        raise input_error(
            f"there are no NumPy arrays of {dtype}: run and tune cannot make or check one",
            hint="call the kernel from Python, as tilusbuild.load gives it, or declare u8",
        )
    if name not in _ML_DTYPES_NAMES:
        return np.dtype(name)
    import ml_dtypes

    narrow_type: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return narrow_type


def generate_inputs(
    signature: Signature,
    sizes: Mapping[str, Value],
    declared: Mapping[str, Input] = MappingProxyType({}),
    *,
    seed: int = 0,
) -> dict[str, Input]:
    """Return an input for each callable argument, in order: that of `declared`, else one that is
    drawn. `signature` is resolved.

    `sizes` gives the dimensions, and may give scalars, members of structs among them. Raises
    `InputError` when one is missing or out of its declared range.
    """
    dims = check_sizes(signature, sizes)
    random = np.random.default_rng(seed)
    inputs: dict[str, Input] = {}
    for argument in signature.callable_arguments:
        if argument.bytes is not None:
            continue  # each program has its own workspace
        if argument.name in declared:
            inputs[argument.name] = declared[argument.name]
        elif argument.is_tensor:
            shape, numpy_type = evaluate_shape(argument, dims), get_numpy_type(argument.dtype)
            tensor_seed = make_tensor_seed(argument, seed)
            noise = make_noise(argument.dtype, math.prod(shape), tensor_seed)
            # A bytearray, since an array over `bytes` is read-only.
            inputs[argument.name] = np.frombuffer(bytearray(noise), numpy_type).reshape(shape)
        elif argument.dtype == POINTER or is_struct(argument.dtype):
            inputs[argument.name] = None  # null; a struct waits for the numbers of the others
        elif argument.name in sizes:
            inputs[argument.name] = sizes[argument.name]  # type: ignore[assignment]
        else:
            inputs[argument.name] = _draw_scalar(argument, random)
    # A member of a struct may have the number of another argument, so structs come last.
    value_of_name = {**derive_sizes(signature, dims), **inputs}
    for argument in signature.callable_arguments:
        if is_struct(argument.dtype):
            inputs[argument.name] = _make_struct(argument, sizes, value_of_name, random)
    return inputs


def count_bytes(
    signature: Signature, sizes: Mapping[str, Value], is_counted: Callable[[Argument], bool]
) -> int:
    """Return the size in bytes of those tensors of a call for which `is_counted` holds. Raises
    `InputError`."""
    dims = check_sizes(signature, sizes)
    tensors = [a for a in signature.callable_arguments if a.is_tensor and is_counted(a)]
    return sum(
        DTYPES[tensor.dtype].bytes * math.prod(evaluate_shape(tensor, dims)) for tensor in tensors
    )


def derive_sizes(signature: Signature, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the arguments that a call derives from its tensors: dimensions, and strides of
    dense arrays. Raises `InputError` if a declared stride excludes a dense array."""
    values = dict(dims)
    for argument in signature.callable_arguments:
        stride = 1
        shape = evaluate_shape(argument, dims) if argument.strides is not None else ()
        # Strides of a dense array grow from the last axis to the first.
        for axis in reversed(range(len(shape))):
            declared_stride = (argument.strides or ())[axis]
            if isinstance(declared_stride, str):
                values[declared_stride] = stride
            elif declared_stride != stride and shape[axis] > 1:
                raise input_error(
                    f'axis {axis} of "{argument.name}" has stride {declared_stride}, that of a'
                    f" dense array {stride}: run and tune call with dense arrays",
                    hint=_FROM_PYTHON_HINT,
                )
            stride *= shape[axis]
    return values


_FROM_PYTHON_HINT = "call it from Python, as tilusbuild.load gives it"


def to_call_value(argument: Argument, value: Input) -> Input | bytes:
    """Return a value for the library's call: a struct as its bytes."""
    if not isinstance(value, dict):
        return value
    struct_type = parse_struct(argument.dtype)
    data = bytearray(struct_type.size)
    for member in struct_type.members:
        if member.dtype == POINTER:
            elements = np.asarray(value[member.name], np.uint64)
        else:
            elements = to_elements(value[member.name], member.dtype)
        data[member.offset : member.offset + member.size] = elements.tobytes()
    return bytes(data)


def to_elements(values: Any, dtype: str) -> Array:
    """Return the values rounded to an element type, as an array."""
    if dtype in FLOATS:
        return narrow_floats(
            np.asarray(values, np.float64 if dtype == "f64" else np.float32), dtype
        )
    return np.asarray(values).astype(get_numpy_type(dtype))


def round_to_dtype(value: float, dtype: str) -> bool | int | float:
    """Return a number rounded to an element type."""
    return float(widen_floats(to_elements([value], dtype))[0]) if dtype in FLOATS else value


def check_sizes(signature: Signature, sizes: Mapping[str, Value]) -> dict[str, int]:
    """Return the size of each dimension of the signature. Raises `InputError` for missing, unknown
    and wrong sizes, and for addresses other than null."""
    known_names: list[str] = []
    for argument in signature.value_arguments:
        if is_struct(argument.dtype):
            # As `p.alpha` and `p.strides[0]`.
            known_names += [name for _, name in _list_members(argument)]
        elif not (argument.is_tensor or argument.is_stride or argument.bytes is not None):
            known_names.append(argument.name)
    for name in sizes:
        if name not in known_names:
            raise input_error(
                f'there is no dimension or scalar argument "{name}"',
                hint=did_you_mean(name, known_names)
                or "its arguments are all read off the tensors",
            )
    dims = {a.name: _look_up_size(a, sizes, signature) for a in signature.dimensions}
    for argument in signature.value_arguments:
        if is_struct(argument.dtype):
            for member, name in _list_members(argument):
                if name in sizes:
                    check_number(name, member.dtype, sizes[name])
                elif member.dtype == POINTER:
                    raise _make_address_error(name)
        elif argument.dtype == POINTER and argument.bytes is None and sizes.get(argument.name) != 0:
            raise _make_address_error(argument.name)
    return dims


def _make_address_error(name: str) -> InputError:
    return input_error(
        f'"{name}" is an address that no file can hold: null, 0, is all that run and tune can pass',
        hint=f"give {name} = 0 in [script.….tune] sizes, or as --size {name}=0;"
        f" or {_FROM_PYTHON_HINT}",
    )


def _look_up_size(argument: Argument, sizes: Mapping[str, Value], signature: Signature) -> int:
    """Return the size given for a dimension, checked against its range. Raises `InputError`."""
    value = sizes.get(argument.name)
    if value is None:
        names = [dimension.name for dimension in signature.dimensions]
        example = ",".join(f"{name}={sizes.get(name, 1024)}" for name in names)
        raise input_error(
            f'no size for dimension "{argument.name}"',
            hint=f"a --size is one call, and has all sizes: --size {example};"
            " so has each of [script.….tune] sizes",
        )
    if not isinstance(value, int) or isinstance(value, bool):
        raise input_error(f"size {argument.name}={value} is not an integer")
    # No dimension is below 0, whatever the range says.
    low = max(0, argument.low or 0)
    limits = get_integer_limits(argument.dtype)
    high = value if limits is None else limits[1]
    if argument.high is not None:
        high = argument.high
    if not low <= value <= high:
        raise input_error(f"size {argument.name}={value} is outside its range {low}..{high}")
    return value


def _evaluate_extent(argument: Argument, dim: Dim, dims: Mapping[str, int]) -> int:
    """Return the extent of one axis. Raises `InputError`."""
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


def evaluate_shape(argument: Argument, dims: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of a tensor. Raises `InputError` for an undeclared one."""
    if argument.dims == ANY_SHAPE:
        raise input_error(
            f'the shape of "{argument.name}" is not declared: run and tune cannot make the array',
            hint=f'as in args.{argument.name} = "[n]", where n is an integer argument or a number',
        )
    return tuple(_evaluate_extent(argument, dim, dims) for dim in argument.dims or ())


def make_tensor_seed(argument: Argument, seed: int) -> str:
    """Return the seed of a tensor's noise."""
    return f"{seed} {argument.name}"


def _draw_scalar(argument: Argument, random: np.random.Generator) -> Input:
    """Return a random scalar: an integer of the declared range (1 to 4 without one), else a number
    as of `_draw_number`. A draw advances `random`."""
    if get_integer_limits(argument.dtype):
        low = argument.low if argument.low is not None else 1
        high = argument.high if argument.high is not None else max(low, 4)
        return int(random.integers(low, high + 1))
    return _draw_number(argument.dtype, random)


def _draw_number(dtype: str, random: np.random.Generator) -> bool | int | float:
    """Return a random number of an element type: an integer of 1 to 4, or a float of 0.5 to 1.5.
    A draw advances `random`."""
    if dtype == "bool":
        return bool(random.integers(0, 2))
    if get_integer_limits(dtype):
        return int(random.integers(1, 5))
    # A value that f32 holds exactly, so that a reference in f64 computes with the same number.
    return float(np.float32(random.uniform(0.5, 1.5)))


def narrow_floats(values: Array, dtype: str) -> Array:
    """Round f32 values to the nearest of an element type, ties to even; NaN stays NaN.

    fp8 saturates, as CUDA's conversions do: a value beyond the greatest, infinity too, becomes the
    greatest. bf16 and f16 become infinite there.
    """
    narrow_type = get_numpy_type(dtype)
    if DTYPES[dtype].bits == 8:
        # Without this, e4m3, which has no infinity, would turn large values into NaN.
        all_values = np.arange(256, dtype=np.uint8).view(narrow_type).astype(np.float32)
        largest = all_values[np.isfinite(all_values)].max()
        values = np.clip(values, -largest, largest)
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(narrow_type)


def widen_floats(value: Any) -> Any:
    """Return an array as a reference gets it: bf16 and fp8 as f32, others unchanged."""
    if isinstance(value, np.ndarray) and value.dtype.name in _ML_DTYPES_NAMES:
        return value.astype(np.float32)
    return value


def _make_struct(
    argument: Argument,
    sizes: Mapping[str, Value],
    value_of_name: Mapping[str, object],
    random: np.random.Generator,
) -> StructInput:
    """Return a struct's members. Raises `InputError`.

    A member is the size of its full name, as `p.alpha` or `p.strides[0]`; else the number of the
    call with its own name, from `value_of_name`; else random.
    """
    members: StructInput = {}
    for member, name in _list_members(argument):
        if name in sizes:
            number = check_number(name, member.dtype, sizes[name])
        elif member.elements is None and isinstance(value_of_name.get(member.name), int | float):
            number = check_number(name, member.dtype, value_of_name[member.name])
        else:
            number = round_to_dtype(_draw_number(member.dtype, random), member.dtype)
        if member.elements is None:
            members[member.name] = number
        else:
            members.setdefault(member.name, []).append(number)
    return members


def _list_members(argument: Argument) -> Iterator[tuple[StructMember, str]]:
    """Yield each element of a struct, with its name as in `p.strides[0]`."""
    for member, name in parse_struct(argument.dtype).scalars:
        yield member, f"{argument.name}.{name}"


def check_number(name: str, dtype: str, value: object) -> Number:
    """Return a value rounded to an element type. Raises `InputError` if the type excludes it."""
    limits = get_integer_limits(dtype)
    if dtype == "bool":
        limits = (0, 1)
    elif dtype == POINTER:
        limits = (0, 0)
    if limits is None:
        if not isinstance(value, int | float):
            raise input_error(f"{name}={value} is not a number, which {dtype} needs")
        return round_to_dtype(value, dtype)
    if not isinstance(value, int) or not limits[0] <= value <= limits[1]:
        allowed = "null alone, 0" if dtype == POINTER else f"{limits[0]}..{limits[1]}"
        raise input_error(
            f"{name}={value} is not a value of {dtype}: run and tune can pass {allowed}"
        )
    return bool(value) if dtype == "bool" else int(value)
