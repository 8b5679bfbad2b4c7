"""Reads sizes from a call's arguments, allocates missing outputs, and explains refused arguments.

Arrays are those of torch, CuPy, JAX, NumPy and every other library that exports DLPack. A call with
all arguments in order does not come here (`kernel`).

Any other call has a form: the number of its positional arguments, and the names of the others. A
`CallForm` works out once for all calls of the form which outputs to allocate, from which sizes, and
by which library. Errors are explained by slower functions. The number of cached forms is bounded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter, methodcaller
from typing import Any

from tilusbuild.runtime.dtypes import DTYPES, WHOLE
from tilusbuild.runtime.errors import LoadError, did_you_mean
from tilusbuild.runtime.script import Dim, Script, ScriptArgument
from tilusbuild.runtime.semantics import (
    INT64_MAX,
    INT64_MIN,
    MAX_ALIGNMENT,
    NoValueError,
    Value,
    to_python_number,
)
from tilusbuild.runtime.states import check_states, has_torch_state, may_write
from tilusbuild.runtime.structs import is_struct, pack_struct, parse_struct

_ANY_SHAPE = ("...",)
"""The dimensions of a tensor that is declared without a shape."""


def list_call_arguments(script: Script) -> tuple[ScriptArgument, ...]:
    """Return the arguments that a caller passes, in order: all but the dimensions."""
    return tuple(argument for argument in script.arguments if not argument.dimension)


def bind_arguments(script: Script, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a call by argument name, without the outputs that the call leaves out.

    If a call gives no output, its positional arguments are matched with the inputs only. A call
    with as many values as parameters, or with an output by name, gives all outputs. Raise
    `TypeError` for unknown, missing and surplus arguments.
    """
    every = list_call_arguments(script)
    # A call by position gives the workspaces only if it gives all arguments.
    gives_all = len(args) + len(named) == len(every)
    parameters = [a for a in every if gives_all or not a.workspace or a.name in named]
    inputs = [argument for argument in parameters if not argument.out]
    unknown = named.keys() - {argument.name for argument in every}
    if unknown:
        word = min(unknown)
        hint = did_you_mean(word, [a.name for a in every]) or "none is like it"
        raise TypeError(f"{script.name}() has no argument {word!r}: {hint}")
    is_complete = len(args) + len(named) == len(parameters)
    gives_outputs = is_complete or any(a.out and a.name in named for a in parameters)
    expected_arguments = parameters if gives_outputs else inputs
    positional = [argument for argument in expected_arguments if argument.name not in named]
    if len(args) > len(positional):
        names = ", ".join(argument.name for argument in every)
        raise TypeError(f"{script.name}() takes {names}: {len(args) + len(named)} were given")
    values = {argument.name: value for argument, value in zip(positional, args, strict=False)}
    values.update(named)
    missing = [argument.name for argument in inputs if argument.name not in values]
    if missing:
        raise TypeError(f"{script.name}() misses {', '.join(missing)}")
    return values


def read_sizes(script: Script, arguments: Mapping[str, Any]) -> dict[str, Value]:
    """Return the integers of a call by name: the dimensions, from the shapes of its tensors, and
    the integer arguments. Raises `TypeError` for a value that is not an array, `ValueError` for a
    shape of another rank. The launcher checks the rest of the shapes."""
    values: dict[str, Value] = {}
    for argument in list_call_arguments(script):
        value = arguments.get(argument.name)
        if argument.dims is None:
            number = to_python_number(value)
            if isinstance(number, int) and argument.dtype in WHOLE:
                values[argument.name] = number
        elif value is not None:
            label = f'{script.name}: argument "{argument.name}": expected {argument.type}'
            try:
                shape = tuple(int(size) for size in value.shape)
            except Exception:  # torch's nested tensors have a `shape` that raises a RuntimeError
                raise TypeError(f"{label}, got {type(value).__name__}") from None
            if argument.dims == _ANY_SHAPE:
                continue
            if len(shape) != len(argument.dims):
                raise ValueError(f"{label}, got shape {shape}")
            for dim, size in zip(argument.dims, shape, strict=True):
                if isinstance(dim, str):
                    # The first tensor decides: the launcher reports one that disagrees.
                    values.setdefault(dim, size)
    return values


address_readers: dict[type, Callable[[Any], int]] = {}
"""By the type of an array: the function that returns its address."""


def read_alignment(array: Any) -> int:
    """Return the power of two that divides the address of an array, at most 256; 256 for None.
    Raises `TypeError` for an object without an address."""
    reader = address_readers.get(type(array))
    if reader is None:
        reader = address_readers[type(array)] = _find_address_reader(array)
    bits = reader(array) | MAX_ALIGNMENT
    return bits & -bits


def _find_address_reader(array: Any) -> Callable[[Any], int]:
    """Return the quickest function to the address of arrays of this type."""
    if array is None:
        return lambda array: 0
    if hasattr(array, "data_ptr"):  # torch, tvm-ffi
        return methodcaller("data_ptr")
    if not hasattr(array, "__dlpack__"):
        raise TypeError(f"{type(array).__name__} is not an array that supports DLPack")
    import tvm_ffi

    # A quarter of the time of NumPy's `__array_interface__`.
    from_dlpack = tvm_ffi.from_dlpack
    return lambda array: from_dlpack(array).data_ptr()


def is_conversion_error(error: RuntimeError) -> bool:
    """Return whether tvm-ffi raised an error while it converted the arguments."""
    # tvm-ffi marks the errors that the called library raised: they may be the device's, and say
    # nothing about the arguments.
    return not isinstance(error, LoadError) and not hasattr(error, "__tvm_ffi_error__")


def convert_arguments(script: Script, args: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the arguments of a refused call with NumPy scalars converted to Python numbers, and
    read-only arrays that the kernel only reads to tensors of tvm-ffi; None when there are none.
    Raises `TypeError` for an array that its framework does not export by DLPack."""
    import tvm_ffi

    values = list(args)
    for i, (argument, value) in enumerate(zip(list_call_arguments(script), args, strict=True)):
        if argument.dims is None:
            values[i] = to_python_number(value)
        elif hasattr(value, "__dlpack__"):
            try:
                is_read_only = not getattr(getattr(value, "flags", None), "writeable", True)
                if is_read_only and not may_write(script, argument):
                    # Only from version 1 on can DLPack say that memory is read-only.
                    values[i] = tvm_ffi.from_dlpack(value.__dlpack__(max_version=(1, 0)))
                else:
                    tvm_ffi.from_dlpack(value)
            except Exception as error:
                why = _explain_dlpack_refusal(script, argument, value, error)
                raise TypeError(f'{script.name}: argument "{argument.name}": {why}') from None
    is_changed = any(new is not old for new, old in zip(values, args, strict=True))
    return tuple(values) if is_changed else None


def explain_overflow(script: Script, args: Sequence[Any], error: OverflowError) -> Exception:
    """Return the error for a call with an integer that tvm-ffi could not pass: a `ValueError` that
    names the argument, else `error` itself."""
    # Older versions of tvm-ffi pass nothing beyond int64, and their error names no argument.
    for argument, value in zip(list_call_arguments(script), args, strict=True):
        number = to_python_number(value) if argument.dims is None else None
        if isinstance(number, int) and not INT64_MIN <= number <= INT64_MAX:
            received = f"{number}, which the installed version of tvm-ffi cannot pass"
            label = f'argument "{argument.name}"'
            return ValueError(f"{script.name}: {label}: expected {argument.type}, got {received}")
    return error


def _explain_dlpack_refusal(
    script: Script, argument: ScriptArgument, value: Any, error: Exception
) -> str:
    """Return why an array cannot be passed, and which array to pass instead."""
    if not getattr(getattr(value, "flags", None), "writeable", True):
        if argument.out or argument.inout:
            return "the kernel writes it, and the array is read-only: pass one that can be written"
        if may_write(script, argument):
            remedy = "declare the arguments that it writes with out or inout"
            return f"the kernel may write it, and the array is read-only: {remedy}, or pass a copy"
    dtype = getattr(value, "dtype", "?")
    kind = f"{type(value).__module__.partition('.')[0]}'s array of {dtype} cannot be handed over"
    # NumPy's kind "V" is that of ml_dtypes' narrow floats, for which it has no DLPack code.
    if getattr(dtype, "kind", "") == "V":
        return f"{kind} by DLPack: pass a tensor of torch or JAX with this type"
    # Only the first line is for people: torch prints its C++ frames below it.
    first_line = str(error).partition("\n")[0]
    return f"{kind}: {first_line}"


def find_first_tensor(script: Script, arguments: Mapping[str, Any]) -> Any:
    """Return the first tensor argument of a call that decides on its device; None without one."""
    for argument in list_call_arguments(script):
        # Tensors that are copied to constant memory may be on the host.
        value = None if argument.constant else arguments.get(argument.name)
        if argument.dims is not None and value is not None:
            return value
    return None


_Allocator = Callable[[tuple[int, ...], Any], Any]


def find_allocator(script: Script, argument: ScriptArgument, like: Any) -> _Allocator:
    """Return a function (shape, like) → array that allocates an output as arrays of the framework
    of `like`. Raises `TypeError` for a framework, or a dtype of it, that is not supported."""
    framework = type(like).__module__.partition(".")[0]
    remedy = f'give "{argument.name}"'
    if framework not in _LIBRARIES:
        problem = f'"{argument.name}" cannot be allocated as {type(like)}'
        raise TypeError(f"{script.name}: {problem}: {remedy}")
    module, allocate = _LIBRARIES[framework]
    library = importlib.import_module(module)
    data_type = DTYPES.get(argument.dtype)
    dtype_name = argument.dtype if data_type is None else data_type.numpy
    dtype = getattr(library, dtype_name, None)
    if dtype is None:
        if framework == "numpy":
            remedy += " as a tensor of torch or JAX"
        raise TypeError(f"{script.name}: {framework} has no {argument.dtype}: {remedy}")
    return partial(allocate, library, dtype)


def _allocate_numpy(library: Any, dtype: Any, shape: tuple[int, ...], like: Any) -> Any:
    return library.empty(shape, dtype)


def _allocate_torch(library: Any, dtype: Any, shape: tuple[int, ...], like: Any) -> Any:
    # Asked first, because torch takes 0.2 us to read a keyword.
    return like.new_empty(shape) if like.dtype is dtype else like.new_empty(shape, dtype=dtype)


def _allocate_cupy(library: Any, dtype: Any, shape: tuple[int, ...], like: Any) -> Any:
    with like.device:
        return library.empty(shape, dtype=dtype)


def _allocate_jax(library: Any, dtype: Any, shape: tuple[int, ...], like: Any) -> Any:
    # JAX's arrays are immutable, but nothing else can have seen this new one: the kernel may write
    # over the zeros.
    array = library.zeros(shape, dtype=dtype, device=next(iter(like.devices())))
    # XLA does not know of the kernel, and could write the zeros after it: they must be there first.
    return array.block_until_ready()


_LIBRARIES: dict[str, tuple[str, Callable[..., Any]]] = {
    "numpy": ("numpy", _allocate_numpy),
    "torch": ("torch", _allocate_torch),
    "cupy": ("cupy", _allocate_cupy),
    "jax": ("jax.numpy", _allocate_jax),
    "jaxlib": ("jax.numpy", _allocate_jax),
}
"""By the package that defines an array's type: the module with `empty` and the dtypes, and the
function that allocates."""


def allocate_output(
    script: Script, argument: ScriptArgument, sizes: Mapping[str, Value], like: Any
) -> Any:
    """Return a new array for an output, of the framework and on the device of `like`. Raise
    `TypeError` and `ValueError`."""
    shape = tuple(_evaluate_extent(script, argument, dim, sizes) for dim in argument.dims or ())
    allocate = find_allocator(script, argument, like)
    try:
        return allocate(shape, like)
    except RuntimeError as error:  # such as torch's, for a layout that has no such dtype
        raise TypeError(f'{script.name}: give "{argument.name}": {error}') from None


def _evaluate_extent(
    script: Script, argument: ScriptArgument, dim: Dim, sizes: Mapping[str, Value]
) -> int:
    """Return one dimension of an output. Raises `TypeError` when no input has a named dimension,
    `ValueError` when the expression has no value or is negative."""
    label = f'{script.name}: output "{argument.name}" ({argument.type})'
    try:
        extent: object = sizes[dim] if isinstance(dim, str) else dim
        if callable(extent):
            extent = extent(sizes)
    except KeyError as error:
        raise TypeError(f"{label}: no input has the dimension {error}: give the output") from None
    except NoValueError as error:
        raise ValueError(f"{label}: {error}") from None
    if not isinstance(extent, int) or extent < 0:
        raise ValueError(f"{label}: a dimension would be {extent!r}")
    return int(extent)


def add_workspaces(
    script: Script, launch: Callable[..., Any], count_bytes: Callable[..., int]
) -> Callable[..., Any]:
    """Return `launch` as a function that allocates each workspace that is None. `count_bytes` takes
    the number of a workspace and the arguments, and returns its size."""
    arguments = list_call_arguments(script)
    workspaces = [(i, a._replace(dtype="u8")) for i, a in enumerate(arguments) if a.workspace]
    tensors = [i for i, a in enumerate(arguments) if a.dims is not None]
    devices = [i for i in tensors if not arguments[i].constant]
    integers = [i for i, a in enumerate(arguments) if a.dims is None and a.dtype in WHOLE]
    counts: dict[object, list[int]] = {}
    allocators: dict[type, list[_Allocator]] = {}

    def launch_with_workspaces(*args: Any) -> None:
        missing = [number for number, (i, _) in enumerate(workspaces) if args[i] is None]
        if not missing:
            launch(*args)
            return
        key = (*[getattr(args[i], "shape", None) for i in tensors], *[args[i] for i in integers])
        try:
            sizes = counts[key]
        except (KeyError, TypeError):  # new sizes, or arguments that the launcher refuses
            sizes = [count_bytes(number, *args) for number in range(len(workspaces))]
            if len(counts) >= _MAX_FORMS:
                counts.clear()
            counts[key] = sizes
        like: Any = next((args[i] for i in devices if args[i] is not None), None)
        if type(like) not in allocators:
            allocators[type(like)] = [find_allocator(script, a, like) for _, a in workspaces]
        # XLA may use it again while the kernel, which XLA does not know of, still runs.
        if type(like).__module__.startswith("jax") and like.__dlpack_device__()[0] != 1:
            names = ", ".join(workspaces[number][1].name for number in missing)
            raise TypeError(f"{script.name}: give {names}: JAX may use it before the kernel ends")
        complete = list(args)
        for number in missing:
            allocate = allocators[type(like)][number]
            complete[workspaces[number][0]] = allocate((sizes[number],), like)
        launch(*complete)

    return launch_with_workspaces


_MAX_FORMS = 256

_Reader = Callable[[Sequence[Any]], Any]


def complete_arguments(
    script: Script, forms: dict[object, CallForm], args: Sequence[Any], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Any]:
    """Return all arguments in order and the outputs that were allocated: one array, a tuple of
    several, or None. `forms` caches a `CallForm` for each combination of positional count and
    keyword names. Threads may call concurrently. Raises `TypeError` and `ValueError`."""
    key = (len(args), *named) if named else len(args)
    form = forms.get(key)
    if form is None:
        form = CallForm(script, len(args), tuple(named))
        # Emptied in one step, since other threads may be reading.
        if len(forms) >= _MAX_FORMS:
            forms.clear()
        forms[key] = form
    return form.complete_values((*args, *named.values()) if named else args)


class CallForm:
    """A combination of positional count and keyword names, with the plan to complete such a call.
    Raises `TypeError` when no call can have it."""

    def __init__(self, script: Script, count: int, names: tuple[str, ...]) -> None:
        """`count` is the number of positional arguments, `names` are those of the others."""
        self._script = script
        self._arguments = list_call_arguments(script)
        # Positions are bound in the place of values, which every call of the form has in the same
        # order: first the positional ones, then those by keyword.
        keyword_positions = dict(zip(names, range(count, count + len(names)), strict=True))
        position_of_argument = bind_arguments(script, range(count), keyword_positions)
        self._sources = [position_of_argument.get(argument.name) for argument in self._arguments]
        """By index of an argument: the position of its value; None for an output to allocate, and
        for a workspace, which the launcher allocates."""
        self._allocated_indices = [
            i
            for i, source in enumerate(self._sources)
            if source is None and not self._arguments[i].workspace
        ]
        self._tensor_indices: list[int] = []
        """Those of the given tensors up to the first required one: optional ones may be None."""
        for i, argument in enumerate(self._arguments):
            is_tensor = argument.dims is not None and not argument.constant
            if is_tensor and self._sources[i] is not None:
                self._tensor_indices.append(i)
                if not argument.optional:
                    break
        self._structs = [
            (i, argument, parse_struct(argument.dtype))
            for i, argument in enumerate(self._arguments)
            if is_struct(argument.dtype)
        ]
        self._allocators: dict[type, tuple[list[tuple[int, _Reader, _Allocator]], bool]] = {}
        """By the type of the first tensor: index, shape and allocator of each missing output, and
        whether the framework has states to check."""
        self._given_tensors = [
            i
            for i, argument in enumerate(self._arguments)
            if argument.dims is not None and self._sources[i] is not None
        ]

    def complete_values(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
        """Return all arguments in order and the outputs that were allocated, as
        `complete_arguments` does. `values` are the positional values, then the keyword values."""
        full = [None if source is None else values[source] for source in self._sources]
        for index, argument, struct_type in self._structs:
            try:
                full[index] = pack_struct(struct_type, full[index])
            except (TypeError, ValueError) as error:
                label = f'{self._script.name}: argument "{argument.name}"'
                error_class = TypeError if isinstance(error, TypeError) else ValueError
                raise error_class(f"{label}: expected {argument.type}, {error}") from None
        like = None
        for index in self._tensor_indices:
            like = full[index]
            if like is not None:
                break
        try:
            known = self._allocators.get(type(like))
            if known is None:
                # JAX's arrays have one: that they are immutable.
                writes = any(
                    may_write(self._script, self._arguments[i]) for i in self._given_tensors
                )
                modules = ("torch", "numpy.ma", *(("jax",) if writes else ()))
                has_states = type(like).__module__.startswith(modules)
                known = self._allocators[type(like)] = self._make_allocators(like), has_states
            allocators, has_states = known
            for index, read_shape, allocate in allocators:
                full[index] = allocate(read_shape(full), like)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError, NoValueError):
            # The slow way explains the error, such as torch's `RuntimeError` for a negative size.
            # It also reads the sizes that only optional tensors have, which may be None.
            self._allocate_outputs(full)
            has_states = True  # or it may have
        if not has_states:  # for the first tensor's framework: another one's may be among the rest
            types = {type(full[i]) for i in self._given_tensors if full[i] is not None}
            has_states = len(types) > 1
        if has_states and has_torch_state(full, self._given_tensors):
            check_states(self._script, full, self._allocated_indices)
        if not self._allocated_indices:
            return tuple(full), None
        outputs = [full[i] for i in self._allocated_indices]
        return tuple(full), outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _allocate_outputs(self, full: list[Any]) -> None:
        """Allocate the missing outputs from the sizes of the call. Raises `TypeError` and
        `ValueError`."""
        inputs = {
            argument.name: value
            for argument, value, source in zip(self._arguments, full, self._sources, strict=True)
            if source is not None
        }
        like = find_first_tensor(self._script, inputs)
        sizes = read_sizes(self._script, inputs)
        for i in self._allocated_indices:
            full[i] = allocate_output(self._script, self._arguments[i], sizes, like)

    def _make_allocators(self, like: Any) -> list[tuple[int, _Reader, _Allocator]]:
        """Return (index, reader of the shape, allocator) for each output to allocate. Raise
        `KeyError` for a dimension that no required argument has, `TypeError` for `like`."""
        size_readers: dict[str, _Reader] = {}
        for i, argument in enumerate(self._arguments):
            if self._sources[i] is None or argument.optional:
                continue
            if argument.dims is None and argument.dtype in WHOLE:
                size_readers[argument.name] = itemgetter(i)
            if argument.dims is None or argument.dims == _ANY_SHAPE:
                continue
            for axis, dim in enumerate(argument.dims):
                if isinstance(dim, str):
                    size_readers.setdefault(dim, _make_axis_reader(i, axis))
        allocators = []
        for i in self._allocated_indices:
            argument = self._arguments[i]
            read_shape = _make_shape_reader(argument.dims or (), size_readers)
            allocate = find_allocator(self._script, argument, like)
            allocators.append((i, read_shape, allocate))
        return allocators


def _make_shape_reader(dims: Sequence[Dim], size_readers: Mapping[str, _Reader]) -> _Reader:
    """Return a function from the arguments to the shape of an output. Raises `KeyError` for a
    dimension that `size_readers` does not have."""
    extent_readers = [_make_extent_reader(dim, size_readers) for dim in dims]
    # One and two dimensions are written out: each call pays every tenth of a microsecond.
    if len(extent_readers) == 1:
        read_extent = extent_readers[0]
        return lambda full: (read_extent(full),)
    if len(extent_readers) == 2:
        read_first, read_second = extent_readers
        return lambda full: (read_first(full), read_second(full))
    return lambda full: tuple([read(full) for read in extent_readers])


def _make_extent_reader(dim: Dim, size_readers: Mapping[str, _Reader]) -> _Reader:
    """Return a function from the arguments to one dimension of an output. Raises `KeyError` for a
    name that `size_readers` does not have."""
    if isinstance(dim, int):
        return lambda full: dim
    if isinstance(dim, str):
        return size_readers[dim]
    return lambda full: _check_extent(
        dim({name: read(full) for name, read in size_readers.items()})
    )


def _make_axis_reader(position: int, axis: int) -> _Reader:
    return lambda full: full[position].shape[axis]


def _check_extent(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError  # without a text: `CallForm.complete_values` has the slow way explain it
    return int(value)
