"""A call's arguments: which are given, which sizes they say, which outputs are to be allocated.

Arrays are whatever speaks DLPack: torch, CuPy, JAX and NumPy. A plain call, with all arguments in
order, does not come here (`kernel`).

The form of another call is the number of positional arguments and the names of the others. What it
means is worked out once: the order of the arguments, which outputs are allocated, how their sizes
are read, and by which library. A call of a known form spends its time on the arguments alone.
Whatever it cannot read that way is left to slower functions, whose errors say what is wrong. The
number of forms that are kept is bounded.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilusbuild.runtime.dtypes import DTYPES, WHOLE
from tilusbuild.runtime.errors import LoadError, did_you_mean
from tilusbuild.runtime.script import Dim, Script, ScriptArgument
from tilusbuild.runtime.semantics import INT64_MAX, INT64_MIN, NoValueError, Value
from tilusbuild.runtime.structs import is_struct, packed, struct_of

_LIBRARIES = {"numpy": "numpy", "torch": "torch", "cupy": "cupy", "jax": "jax.numpy"}
_LIBRARIES["jaxlib"] = "jax.numpy"
_ANY_SHAPE = ("...",)
"""The dimensions of a tensor that is declared without a shape."""


def passed(script: Script) -> tuple[ScriptArgument, ...]:
    """Return the arguments that a caller passes, in order."""
    return tuple(argument for argument in script.arguments if not argument.dimension)


def bound(script: Script, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name; outputs that were left out are missing. Raises `TypeError`.

    Without any output given, positions count the inputs only.
    """
    wanted = passed(script)
    inputs = [argument for argument in wanted if not argument.out]
    unknown = named.keys() - {argument.name for argument in wanted}
    if unknown:
        word = min(unknown)
        hint = did_you_mean(word, [a.name for a in wanted]) or "none is like it"
        raise TypeError(f"{script.name}() has no argument {word!r}: {hint}")
    whole = len(args) + len(named) == len(wanted)
    gives_outputs = whole or any(a.out and a.name in named for a in wanted)
    order = [a for a in (wanted if gives_outputs else inputs) if a.name not in named]
    if len(args) > len(order):
        names = ", ".join(argument.name for argument in wanted)
        raise TypeError(f"{script.name}() takes {names}: {len(args) + len(named)} were given")
    found = {argument.name: value for argument, value in zip(order, args, strict=False)}
    found.update(named)
    missing = [argument.name for argument in inputs if argument.name not in found]
    if missing:
        raise TypeError(f"{script.name}() misses {', '.join(missing)}")
    return found


def sizes(script: Script, arguments: Mapping[str, Any]) -> dict[str, Value]:
    """Return the integers of a call: the dimensions off the shapes, and integer arguments.

    Raises `TypeError` and `ValueError`; what a library checks of shapes is left to it.
    """
    found: dict[str, Value] = {}
    for argument in passed(script):
        value = arguments.get(argument.name)
        if argument.dims is None:
            if isinstance(value, int) and argument.dtype in WHOLE:
                found[argument.name] = value
            continue
        if value is None:
            continue
        shape = _shape(script, argument, value)
        for dim, size in zip(argument.dims, shape, strict=argument.dims != _ANY_SHAPE):
            if isinstance(dim, str):
                found.setdefault(dim, size)
    found.pop(*_ANY_SHAPE, None)
    return found


def _shape(script: Script, argument: ScriptArgument, value: Any) -> tuple[int, ...]:
    try:
        shape = tuple(int(size) for size in value.shape)
    except (AttributeError, TypeError):
        kind = type(value).__name__
        raise TypeError(
            f'{script.name}: argument "{argument.name}": expected {argument.type}, got {kind}'
        ) from None
    if argument.dims not in (None, _ANY_SHAPE) and len(shape) != len(argument.dims or ()):
        raise ValueError(
            f'{script.name}: argument "{argument.name}": expected {argument.type},'
            f" got shape {shape}"
        )
    return shape


def is_of_conversion(error: RuntimeError) -> bool:
    """Return whether it was raised before the library was called, while arrays were handed over.

    What a library raises carries tvm-ffi's mark. It may be the device's: none of the arguments is
    to be blamed for it.
    """
    return not isinstance(error, LoadError) and not hasattr(error, "__tvm_ffi_error__")


def plain(script: Script, args: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the arguments of a call that was refused, with NumPy's scalars as Python's own; None
    where it has none. Raises `TypeError` for an array that its library does not hand over."""
    import tvm_ffi

    found = list(args)
    for place, (argument, value) in enumerate(zip(passed(script), args, strict=True)):
        if argument.dims is None:
            if (
                hasattr(value, "item")
                and hasattr(value, "dtype")
                and not hasattr(value, "data_ptr")
            ):
                found[place] = value.item() if value.shape == () else value
        elif hasattr(value, "__dlpack__"):
            try:
                tvm_ffi.from_dlpack(value)
            except Exception as error:
                raise TypeError(
                    f'{script.name}: argument "{argument.name}": {_not_handed_over(value, error)}'
                ) from None
    changed = any(new is not old for new, old in zip(found, args, strict=True))
    return tuple(found) if changed else None


def overflow(script: Script, args: Sequence[Any], error: OverflowError) -> Exception:
    """Return what to raise for a call of which tvm-ffi could not pass an integer: its older
    versions know none beyond int64, and name no argument."""
    for argument, value in zip(passed(script), args, strict=True):
        number = value.item() if hasattr(value, "item") and argument.dims is None else value
        if isinstance(number, int) and not INT64_MIN <= number <= INT64_MAX:
            what = f"{number}, which the installed version of tvm-ffi cannot pass"
            where = f'argument "{argument.name}"'
            return ValueError(f"{script.name}: {where}: expected {argument.type}, got {what}")
    return error


def _not_handed_over(value: Any, error: Exception) -> str:
    """Return why an array cannot be passed, and what can."""
    kind = f"{type(value).__module__.partition('.')[0]}'s array of {getattr(value, 'dtype', '?')}"
    if not getattr(getattr(value, "flags", None), "writeable", True):
        return "NumPy does not pass on read-only arrays: pass a copy"
    if getattr(getattr(value, "dtype", None), "kind", "") == "V":
        return (
            f"{kind} cannot be handed over by DLPack: pass a tensor of torch or JAX with this type"
        )
    reason = str(error).partition("\n")[0]  # torch has its C++ frames below
    return f"{kind} cannot be handed over: {reason}"


def first_tensor(script: Script, arguments: Mapping[str, Any]) -> Any:
    """Return the first tensor of a call that says where it runs, or None."""
    for argument in passed(script):
        if argument.dims is None or argument.constant:
            continue
        if arguments.get(argument.name) is not None:
            return arguments[argument.name]
    return None


def allocate(
    script: Script, argument: ScriptArgument, known: Mapping[str, Value], like: Any
) -> Any:
    """Return an output of the kind and device of `like`. Raises `TypeError`, `ValueError`."""
    shape = tuple(_extent(script, argument, dim, known) for dim in argument.dims or ())
    return allocator(script, argument, like)(shape, like)


def allocator(script: Script, argument: ScriptArgument, like: Any) -> _Allocate:
    """Return a function from a shape and a `like` to an output like it. Raises `TypeError`."""
    root = type(like).__module__.partition(".")[0]
    module = _LIBRARIES.get(root)
    give = f'give "{argument.name}"'
    if module is None:
        raise TypeError(f"{script.name}: outputs cannot be allocated as {type(like)}: {give}")
    library = importlib.import_module(module)
    row = DTYPES.get(argument.dtype)
    dtype = getattr(library, row.numpy if row else argument.dtype, None)
    if dtype is None:
        what = f"{script.name}: {root} has no {argument.dtype}: {give}"
        raise TypeError(what + " as a tensor of torch or JAX" * (root == "numpy"))
    return _ALLOCATE.get(root, _numpy)(library, dtype)


_Allocate = Callable[[tuple[int, ...], Any], Any]


def _numpy(library: Any, dtype: Any) -> _Allocate:
    empty = library.empty
    return lambda shape, like: empty(shape, dtype)


def _torch(library: Any, dtype: Any) -> _Allocate:
    return lambda shape, like: like.new_empty(shape, dtype=dtype)


def _cupy(library: Any, dtype: Any) -> _Allocate:
    def allocate(shape: tuple[int, ...], like: Any) -> Any:
        with like.device:
            return library.empty(shape, dtype=dtype)

    return allocate


def _jax(library: Any, dtype: Any) -> _Allocate:
    def allocate(shape: tuple[int, ...], like: Any) -> Any:
        # A fresh buffer that nothing else can have seen: the kernel writes where XLA thinks of
        # zeros.
        made = library.zeros(shape, dtype=dtype, device=next(iter(like.devices())))
        return made.block_until_ready()

    return allocate


_ALLOCATE: dict[str, Callable[[Any, Any], _Allocate]] = {
    "torch": _torch,
    "cupy": _cupy,
    "jax": _jax,
    "jaxlib": _jax,
}


def _extent(script: Script, argument: ScriptArgument, dim: Dim, known: Mapping[str, Value]) -> int:
    where = f'{script.name}: output "{argument.name}" ({argument.type})'
    try:
        value = dim if isinstance(dim, int) else known[dim] if isinstance(dim, str) else dim(known)
    except KeyError as error:
        raise TypeError(f"{where}: no input has the dimension {error}: give the output") from None
    except NoValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{where}: a dimension would be {value!r}")
    return int(value)


_MAX_FORMS = 256

_Read = Callable[[Sequence[Any]], Any]


def completed(
    script: Script, forms: dict[object, CallForm], args: Sequence[Any], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Any]:
    """Return all arguments in order, and the outputs that were allocated: one, several as a tuple,
    or None. `forms` are those in which the script was called before; any number of threads may
    call. Raises `TypeError` and `ValueError`."""
    key = (len(args), *named) if named else len(args)
    form = forms.get(key)
    if form is None:
        form = CallForm(script, len(args), tuple(named))
        if len(forms) >= _MAX_FORMS:
            forms.clear()
        forms[key] = form
    return form.complete((*args, *named.values()) if named else args)


class CallForm:
    """One form. Raises `TypeError` when no call can have it."""

    def __init__(self, script: Script, count: int, names: tuple[str, ...]) -> None:
        self._script = script
        self._passed = passed(script)
        sources = bound(
            script, range(count), dict(zip(names, range(count, count + len(names)), strict=True))
        )
        self._order = [sources.get(argument.name) for argument in self._passed]
        self._left_out = [i for i, source in enumerate(self._order) if source is None]
        tensors = (
            i
            for i, a in enumerate(self._passed)
            if a.dims is not None and not a.optional and not a.constant
        )
        self._like = next((i for i in tensors if self._order[i] is not None), None)
        self._structs = [
            (i, argument, struct_of(argument.dtype))
            for i, argument in enumerate(self._passed)
            if is_struct(argument.dtype)
        ]
        self._makers: dict[type, list[tuple[int, _Read]]] = {}

    def complete(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
        """Return all arguments in order, and the outputs that were allocated."""
        full = [None if source is None else values[source] for source in self._order]
        for place, argument, kind in self._structs:
            try:
                full[place] = packed(kind, full[place])
            except (TypeError, ValueError) as error:
                where = f'{self._script.name}: argument "{argument.name}"'
                text = f"{where}: expected {argument.type}, {error}"
                raise (TypeError if isinstance(error, TypeError) else ValueError)(text) from None
        if not self._left_out:
            return tuple(full), None
        try:
            for position, make in self._makers[self._type(full)]:
                full[position] = make(full)
        except (AttributeError, LookupError, TypeError, ValueError, NoValueError):
            self._allocate(full)
        made = [full[i] for i in self._left_out]
        return tuple(full), made[0] if len(made) == 1 else tuple(made)

    def _allocate(self, full: list[Any]) -> None:
        """Allocate the slow way, and keep how to do it for the next array of this type."""
        given = {
            argument.name: value
            for argument, value, source in zip(self._passed, full, self._order, strict=True)
            if source is not None
        }
        like, known = first_tensor(self._script, given), sizes(self._script, given)
        for i in self._left_out:
            full[i] = allocate(self._script, self._passed[i], known, like)
        if self._like is not None and full[self._like] is like:
            self._makers[type(like)] = [
                (i, self._maker(self._passed[i], like)) for i in self._left_out
            ]

    def _type(self, full: Sequence[Any]) -> type:
        return type(None if self._like is None else full[self._like])

    def _maker(self, argument: ScriptArgument, like: Any) -> _Read:
        allocate = allocator(self._script, argument, like)
        shape = self._shape(argument.dims or ())
        place = self._like or 0  # only called where some tensor is given
        return lambda full: allocate(shape(full), full[place])

    def _shape(self, dims: Sequence[Dim]) -> _Read:
        """Return how a shape is read. Written out where it is that of one tensor, or of one or two
        sizes of tensors: every tenth of a microsecond is on every call."""
        reads = [self._dim(dim) for dim in dims]
        if len(reads) == 1:
            (one,) = reads
            return lambda full: (one(full),)
        if len(reads) == 2:
            first, second = reads
            return lambda full: (first(full), second(full))
        return lambda full: tuple([read(full) for read in reads])

    def _dim(self, dim: Dim) -> _Read:
        if isinstance(dim, int):
            return lambda full: dim
        if isinstance(dim, str):
            return self._sizes()[dim]
        sizes = self._sizes()
        return lambda full: _whole(dim({name: read(full) for name, read in sizes.items()}))

    def _sizes(self) -> dict[str, _Read]:
        """Return how each size is read: off the first tensor that has it, or from an integer."""
        found: dict[str, _Read] = {}
        for i, argument in enumerate(self._passed):
            if self._order[i] is None or argument.optional:
                continue
            if argument.dims is None and argument.dtype in WHOLE:
                found[argument.name] = operator.itemgetter(i)
            for axis, dim in enumerate(argument.dims or ()):
                if isinstance(dim, str) and dim not in found:
                    found[dim] = _extent_of(i, axis)
        return found


def _extent_of(position: int, axis: int) -> _Read:
    return lambda full: full[position].shape[axis]


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError
    return int(value)
