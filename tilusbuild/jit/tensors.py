"""A call's tensors as C sees them, read through DLPack and held against the declared arguments.

For backends that launch without tvm-ffi. What is checked, and in which order, is what a library
checks (docs/abi.md): number, kind, dtype, rank, dimensions, device, contiguity, memory. Dimensions
are read off the tensors; the first that is wrong is raised and nothing is launched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tilusbuild.errors import input_error
from tilusbuild.manifest import Manifest
from tilusbuild.runtime import arrays
from tilusbuild.runtime.device import kind_of
from tilusbuild.runtime.dtypes import DTYPES, FLOATS, POINTER, WHOLE, integer_limits
from tilusbuild.runtime.script import Script, ScriptArgument
from tilusbuild.runtime.semantics import NoValueError, Value
from tilusbuild.runtime.structs import is_struct
from tilusbuild.tune.inputs import managed_tensor


class Tensor(NamedTuple):
    """What DLPack says of an array; `kept` keeps its memory alive."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: tuple[int, int, int]
    device: tuple[int, int]
    kept: Any


class TensorCall(NamedTuple):
    """A checked call: a value for each declared argument, dimensions included."""

    values: Mapping[str, int | float | bool | Tensor]
    sizes: Mapping[str, Value]
    device: tuple[str, int]
    """ "cpu" or "cuda", and its number."""


def read(array: Any) -> Tensor | None:
    """Return the tensor that an array is; None for what does not speak DLPack.

    The capsule is not consumed: it owns the memory until the call is over.
    """
    if not hasattr(array, "__dlpack__"):
        return None
    capsule = array.__dlpack__()
    found = managed_tensor(capsule)
    rank = found.ndim
    return Tensor(
        (found.data or 0) + found.byte_offset,
        tuple(found.shape[:rank]),
        tuple(found.strides[:rank]) if found.strides else None,
        (found.dtype.code, found.dtype.bits, found.dtype.lanes),
        (found.device.type, found.device.id),
        capsule,
    )


def checked(script: Script, args: Sequence[Any]) -> TensorCall:
    """Return the call that these arguments make, in declared order. Raises `TypeError`,
    `ValueError`."""
    wanted = arrays.passed(script)
    if len(args) != len(wanted):
        names = ", ".join(argument.name for argument in wanted)
        raise TypeError(
            f"{script.name}: expected {len(wanted)} arguments ({names}), got {len(args)}"
        )
    values: dict[str, Any] = {}
    for place, (argument, value) in enumerate(zip(wanted, args, strict=True)):
        values[argument.name] = _kind(script, argument, place, value)
    sizes: dict[str, Value] = {
        a.name: values[a.name] for a in wanted if a.dims is None and a.dtype in WHOLE
    }
    for argument in wanted:
        _shape(script, argument, values[argument.name], sizes)
    for argument in script.arguments:
        if argument.dimension:
            values[argument.name] = _dimension(script, argument, sizes)
    device = _device(script, wanted, values)
    for argument in wanted:
        _memory(script, argument, values[argument.name], sizes)
    return TensorCall(values, sizes, device)


def _kind(script: Script, argument: ScriptArgument, place: int, value: Any) -> Any:
    def wrong(what: str) -> TypeError:
        return TypeError(
            f'{script.name}: argument "{argument.name}" ({place + 1}): expected {argument.type},'
            f" got {what}"
        )

    if argument.dims is None:
        return _scalar(argument, value, wrong)
    tensor = read(value)
    if tensor is None:
        raise wrong(type(value).__name__)
    known = DTYPES[argument.dtype]
    if tensor.dtype != (known.code, known.bits, known.lanes):
        name = next(
            (n for n, d in DTYPES.items() if (d.code, d.bits, d.lanes) == tensor.dtype), "another"
        )
        raise wrong(f"{name} tensor of shape {tensor.shape}")
    return tensor


def _scalar(argument: ScriptArgument, value: Any, wrong: Any) -> Any:
    if argument.dtype in FLOATS:
        if not isinstance(value, int | float):
            raise wrong(type(value).__name__)
        return float(value)
    if argument.dtype == "bool":
        if not (isinstance(value, bool) or value in (0, 1)):
            raise wrong(repr(value))
        return bool(value)
    if not isinstance(value, int):
        raise wrong(type(value).__name__)
    limits = integer_limits(argument.dtype)
    if limits is not None and not limits[0] <= value <= limits[1]:
        raise ValueError(str(wrong(repr(value))))
    return int(value)


def _shape(script: Script, argument: ScriptArgument, value: Any, sizes: dict[str, Value]) -> None:
    if argument.dims is None:
        return
    if len(value.shape) != len(argument.dims):
        raise _mismatch(script, argument, value)
    for dim, size in zip(argument.dims, value.shape, strict=True):
        expected = sizes.setdefault(dim, size) if isinstance(dim, str) else dim
        if isinstance(expected, int) and expected != size:
            raise _mismatch(script, argument, value, f" with {dim} = {expected}")


def _memory(
    script: Script, argument: ScriptArgument, value: Any, sizes: Mapping[str, Value]
) -> None:
    """Computed dimensions, and how the elements lie."""
    if argument.dims is None:
        return
    for dim, size in zip(argument.dims, value.shape, strict=True):
        if isinstance(dim, int | str):
            continue
        try:
            expected = dim(sizes)
        except NoValueError as error:
            raise ValueError(f'{script.name}: argument "{argument.name}": {error}') from None
        if expected != size:
            raise _mismatch(script, argument, value, f", which is {expected}")
    if not _is_contiguous(value):
        raise ValueError(f'{script.name}: argument "{argument.name}" is not contiguous')
    needed = DTYPES[argument.dtype].bytes
    if 0 not in value.shape and (not value.address or value.address % needed):
        raise ValueError(f'{script.name}: argument "{argument.name}" is not aligned to {needed}')


def _mismatch(
    script: Script, argument: ScriptArgument, value: Tensor, more: str = ""
) -> ValueError:
    return ValueError(
        f'{script.name}: argument "{argument.name}": expected {argument.type}{more},'
        f" got shape {value.shape}"
    )


def _is_contiguous(value: Tensor) -> bool:
    if value.strides is None or 0 in value.shape:
        return True
    step = 1
    for size, stride in zip(reversed(value.shape), reversed(value.strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _dimension(script: Script, argument: ScriptArgument, sizes: Mapping[str, Value]) -> int:
    value = sizes[argument.name]
    limits = integer_limits(argument.dtype)
    if limits is not None and not limits[0] <= value <= limits[1]:  # type: ignore[operator]
        raise ValueError(f"{script.name}: {argument.name} = {value} does not fit {argument.dtype}")
    return int(value)


def _device(
    script: Script, wanted: Sequence[ScriptArgument], values: Mapping[str, Any]
) -> tuple[str, int]:
    found = script.kind, 0
    seen: str | None = None
    for argument in wanted:
        if argument.dims is None:
            continue
        kind = kind_of(values[argument.name].device) or "another device"
        here = kind, values[argument.name].device[1] if kind == "cuda" else 0
        if kind != script.kind or (seen is not None and here != found):
            where = f"{kind}:{here[1]}" if kind == "cuda" else kind
            raise ValueError(
                f'{script.name}: argument "{argument.name}" is on {where},'
                f" expected {found[0] if seen is None else f'the device of {seen!r}'}"
            )
        found, seen = here, seen or argument.name
    return found


def check_arguments(manifest: Manifest, script: str) -> None:
    """Raise `InputError` for arguments that a `KernelCache` cannot pass."""
    for name, arg in manifest.scripts[script].args.items():
        other = arg.type.strip() == POINTER or is_struct(arg.type)
        other = other or arg.tensor_map is not None or not arg.parameter
        other = other or bool(arg.constant)
        if arg.optional or arg.strides is not None or other:
            raise input_error(
                f'"{name}" is neither a dense tensor nor a number, which a KernelCache passes',
                place=manifest.place("script", script, "args", name),
                hint="build it, and call it through tilusbuild.load",
            )
