"""Arguments joined to a signature: which are dimensions and strides, whether each name in a shape
is known, and the constants put in their places.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from msgspec.structs import replace

from tilusbuild.errors import did_you_mean
from tilusbuild.expr import ExprError
from tilusbuild.runtime.dtypes import DTYPES, POINTER, integer_limits
from tilusbuild.runtime.structs import is_struct
from tilusbuild.signature.model import ANY_SHAPE, Argument, Dim, Signature, SignatureError, Tile
from tilusbuild.signature.parsing import C_TYPES, check_argument

_DIMENSION_TYPES = ("i32", "i64")


def signature(arguments: Iterable[Argument], constants: Collection[str] = ()) -> Signature:
    """Join arguments, and find those that are dimensions.

    `constants` are the names that `resolve` will later know: a shape may use them, and a string
    among them may be a dtype. Raises `SignatureError` whose `argument` says which one is wrong.
    """
    declared = tuple(arguments)
    by_name: dict[str, Argument] = {}
    filled: dict[str, str] = {}
    for argument in declared:
        with _about(argument):
            if argument.name in by_name:
                raise SignatureError("declared twice")
            if argument.name in constants:
                raise SignatureError("is both an argument and a constant: rename one")
            by_name[argument.name] = argument
            _check_dtype(argument, constants)
            if argument.constant in filled:
                raise SignatureError(
                    f'"{argument.constant}" is filled by "{filled[argument.constant]}" already'
                )
            if argument.constant:
                filled[argument.constant] = argument.name
    bare = {dim for argument in declared for dim in argument.dims or () if isinstance(dim, str)}
    always = {dim for argument in declared if not argument.optional for dim in argument.dims or ()}
    strides: set[str] = set()
    for argument in declared:
        with _about(argument):
            _read_strides(argument, by_name, bare, strides)
            _check_optional(argument, by_name, always)
    marked = tuple(
        replace(
            argument,
            is_stride=argument.name in strides,
            is_dimension=argument.dims is None
            and argument.name in bare
            and argument.dtype in _DIMENSION_TYPES,
        )
        for argument in declared
    )
    for argument in marked:
        with _about(argument):
            for dim in argument.dims or () if argument.dims != ANY_SHAPE else ():
                _check_dim(dim, by_name, constants)
            if argument.tile is not None:
                _check_tile(argument, argument.tile, by_name)
    return Signature(marked)


@contextmanager
def _about(argument: Argument) -> Iterator[None]:
    """Have an error say which argument is wrong."""
    try:
        yield
    except SignatureError as error:
        error.argument = argument.name
        raise


def _check_tile(argument: Argument, tile: Tile, by_name: Mapping[str, Argument]) -> None:
    tensor = by_name.get(tile.tensor)
    if tensor is None or tensor.dims is None or tensor.optional or tensor.constant:
        raise SignatureError(
            f'"{tile.tensor}" may be left out, so it cannot have a tensor map',
            hint=did_you_mean(tile.tensor, [n for n, a in by_name.items() if a.dims]),
        )
    rank = len(tensor.dims)
    what = "any shape" if tensor.dims == ANY_SHAPE else f"{rank} dimensions"
    if tensor.dims == ANY_SHAPE or not 1 <= rank <= 5:
        raise SignatureError(f'"{tile.tensor}" has {what}; a tensor map has 1 to 5')
    for what, sizes in (("box", tile.box), ("element-strides", tile.element_strides)):
        if len(sizes) != rank and (sizes or what == "box"):
            raise SignatureError(
                f'{what} has {len(sizes)} sizes; "{tile.tensor}" has {rank} dimensions'
            )
    if not argument.is_parameter:
        raise SignatureError("a tensor map is made for the kernel")


def _read_strides(
    argument: Argument, by_name: Mapping[str, Argument], bare: Collection[Dim], found: set[str]
) -> None:
    """Add the arguments that are read off a tensor's strides."""
    for stride in argument.strides or ():
        if isinstance(stride, int):
            continue
        other = by_name.get(stride)
        if other is None or other.dims is not None or other.dtype not in _DIMENSION_TYPES:
            raise SignatureError(
                f'stride "{stride}" is not an i32 or i64 argument',
                hint=f'declare it among the arguments: {stride} = "i64"',
            )
        if stride in found or stride in bare:
            raise SignatureError(f'stride "{stride}" is read off more than one place')
        found.add(stride)


def _check_optional(
    argument: Argument, by_name: Mapping[str, Argument], always: Collection[Dim]
) -> None:
    for dim in argument.dims or ():
        if argument.optional and isinstance(dim, str) and dim in by_name and dim not in always:
            message = f'dimension "{dim}" is not read off any tensor that is always passed'
            raise SignatureError(message)


def _check_dtype(argument: Argument, constants: Collection[str]) -> None:
    if argument.dtype in (*DTYPES, POINTER, *constants) or is_struct(argument.dtype):
        return
    if argument.tile is not None:
        return
    named = C_TYPES.get(argument.dtype)
    raise SignatureError(
        f'"{argument.dtype}" is neither a dtype nor a constant of the script',
        1,
        hint=f'that is "{named}" here'
        if named
        else did_you_mean(argument.dtype, [*DTYPES, *constants]),
    )


def _check_dim(dim: Dim, by_name: Mapping[str, Argument], constants: Collection[str]) -> None:
    names = {dim} if isinstance(dim, str) else set() if isinstance(dim, int) else set(dim.names)
    for name in sorted(names - set(constants)):
        other = by_name.get(name)
        if other is None:
            if "." in name:
                raise SignatureError(f"a shape cannot depend on {name}: it is the caller's")
            scalars = [a.name for a in by_name.values() if a.dims is None]
            raise SignatureError(
                f'dimension "{name}" is neither an argument nor a constant of the script',
                hint=did_you_mean(name, [*scalars, *constants])
                or f'declare it among the arguments: {name} = "i32"',
            )
        if other.dims is not None or integer_limits(other.dtype) is None:
            raise SignatureError(
                f'dimension "{name}" is {other.type_text()}: a dimension is an integer argument'
            )
        if isinstance(dim, str) and other.dtype not in _DIMENSION_TYPES:
            raise SignatureError(f'dimension "{name}" is {other.dtype}: declare it as i32 or i64')


def resolve(declared: Signature, constants: Mapping[str, bool | int | float | str]) -> Signature:
    """Return the signature with every constant in it replaced by its value: dtypes known, shapes
    over arguments only. Raises `SignatureError`."""
    resolved = []
    for argument in declared.arguments:
        with _about(argument):
            dtype: object = argument.dtype
            other = is_struct(argument.dtype) or argument.tile is not None
            if argument.dtype not in (*DTYPES, POINTER) and not other:
                dtype = constants.get(argument.dtype)
                if not isinstance(dtype, str) or dtype not in DTYPES:
                    raise SignatureError(
                        f"constant {argument.dtype} is {dtype!r}, which is not a dtype",
                        hint=did_you_mean(str(dtype), DTYPES),
                    )
            dims = argument.dims
            if dims is not None:
                dims = tuple(_resolve_dim(dim, constants) for dim in dims)
            known = replace(argument, dtype=str(dtype), dims=dims)
            check_argument(known)
            resolved.append(known)
    return signature(resolved)


def _resolve_dim(dim: Dim, constants: Mapping[str, bool | int | float | str]) -> Dim:
    value: object
    if isinstance(dim, int):
        return dim
    if isinstance(dim, str):
        if dim not in constants:
            return dim
        said, value = dim, constants[dim]
    else:
        said = dim.source
        try:
            known = {name: constants[name] for name in dim.names if name in constants}
            rest = dim.substitute(known)
            if rest.names:
                return rest
            value = rest.evaluate({})
        except ExprError as error:
            raise SignatureError(f"dimension {said}: {error.message}") from None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SignatureError(f"dimension {said} is {value!r}, not a count")
    return value
