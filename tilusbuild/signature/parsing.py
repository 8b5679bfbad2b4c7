"""Parse the texts of arguments one by one, and join the arguments to a signature.

Joining finds the arguments that are dimensions and strides, and checks the names in each shape.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from msgspec.structs import replace

from tilusbuild.errors import did_you_mean, find_nearest_word
from tilusbuild.expr import ExprError, parse_expression
from tilusbuild.runtime.dtypes import DTYPES, POINTER, get_integer_limits
from tilusbuild.runtime.structs import is_struct, parse_struct
from tilusbuild.signature.model import ANY_SHAPE, Argument, Dim, Signature, SignatureError, Tile

C_TYPES = {
    "float": "f32", "double": "f64", "half": "f16", "__half": "f16", "__nv_bfloat16": "bf16",
    "nv_bfloat16": "bf16", "bool": "bool", "char": "i8", "signed char": "i8", "int8_t": "i8",
    "unsigned char": "u8", "uint8_t": "u8", "short": "i16", "int16_t": "i16",
    "unsigned short": "u16", "uint16_t": "u16", "int": "i32", "int32_t": "i32",
    "unsigned int": "u32", "unsigned": "u32", "uint32_t": "u32", "uint": "u32", "ushort": "u16",
    "ulong": "u64", "long": "i64", "long long": "i64",
    "int64_t": "i64", "size_t": "u64", "unsigned long": "u64", "unsigned long long": "u64",
    "uint64_t": "u64", "ptrdiff_t": "i64", "ssize_t": "i64", "intptr_t": "i64", "uintptr_t": "u64",
    "cudaTextureObject_t": "u64", "cudaSurfaceObject_t": "u64", "__nv_fp8_storage_t": "u8",
    "__nv_fp8_e4m3": "f8e4m3", "__nv_fp8_e5m2": "f8e5m2",
}  # fmt: skip
"""The dtypes of a manifest, by the names of the types in C and CUDA."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# `f16*[m, k]`, `f32`, `void*`
_TYPE = re.compile(r"\s*(?P<dtype>[A-Za-z_][A-Za-z0-9_]*)?\s*(?P<star>\*)?\s*(?P<shape>\[.*)?\s*\Z")


def parse_argument(declared: Argument) -> Argument:
    """Parse the type of an argument, whose `dtype` is the text of a manifest: "f16*[m, k]".

    Return the argument with its dtype and dimensions. Raises `SignatureError` with the column in
    the text.
    """
    text = declared.dtype
    # The kernel reads the variable that the value is copied to, and has no such parameter.
    declared = replace(declared, is_parameter=declared.is_parameter and not declared.constant)
    if not _NAME.fullmatch(declared.name):
        raise SignatureError(f'"{declared.name}" is not a name: use letters, digits and _')
    if is_struct(text):
        return replace(declared, dtype=_normalize_struct(declared))
    if "\n" in text or (match := _TYPE.match(text)) is None or match["dtype"] is None:
        raise SignatureError(f'"{text}" is not an argument type', 1, hint=_TYPE_HINT)
    dtype, dims = match["dtype"], None
    if dtype == "void":
        if match["star"] is None or match["shape"] is not None:
            raise SignatureError(
                "void is not an element type",
                1,
                hint='write the type of the elements: "f16*[n]"; for plain bytes "u8*[n]"; '
                'an opaque pointer is "void*"',
            )
        dtype = POINTER
    elif match["star"] is None:
        if match["shape"] is not None:
            column = match.start("shape") + 1
            raise SignatureError(
                f'a tensor needs a * before its shape: "{dtype}*{match["shape"]}"', column
            )
    elif match["shape"] is None:
        raise SignatureError(
            f'a tensor needs its shape: "{C_TYPES.get(dtype, dtype)}*[n]"', match.end("star") + 1
        )
    else:
        dims = _parse_dims(text, match.start("shape"))
    argument = replace(declared, dtype=dtype, dims=dims)
    check_argument(argument)
    return argument


def _normalize_struct(declared: Argument) -> str:
    """Return the canonical text of a struct type. Raises `SignatureError`."""
    options = (declared.out, declared.align, declared.optional, declared.strides)
    if any(options) or declared.low is not None:
        raise SignatureError("a struct is passed by value, and takes only a type")
    try:
        return parse_struct(declared.dtype).format_struct()
    except ValueError as error:
        hint = (
            'as in "struct Params { f32 alpha; i32 n; i64 strides[3]; void* next }": any pointer '
            "is void*; an array of arrays, and a struct, is one array of its size and alignment"
        )
        raise SignatureError(str(error), 1, hint=hint) from None


_TYPE_HINT = 'a tensor is written "f16*[m, k]", a scalar "i32" or "f32"'


def _parse_dims(text: str, start: int) -> tuple[Dim, ...]:
    """Return the dimensions of a shape, whose "[" is at `start` in the text. Raises
    `SignatureError` with a column."""
    body = text.rstrip()
    if not body.endswith("]"):
        raise SignatureError("the shape has no closing ]", len(body) + 1)
    inner = body[start + 1 : -1]
    if not inner.strip():
        return ()
    if inner.strip() == "...":
        return ANY_SHAPE
    dims: list[Dim] = []
    for offset, piece in split_at_commas(inner, "([", ")]"):
        indent = len(piece) - len(piece.lstrip())
        column = start + 1 + offset + indent + 1  # behind the "[", and counted from 1
        word = piece.strip()
        if not word:
            raise SignatureError("a dimension is missing here", column)
        if re.fullmatch(r"[0-9]+", word):
            dims.append(int(word))
        elif _NAME.fullmatch(word):
            dims.append(word)
        else:
            try:
                dims.append(parse_expression(word))
            except ExprError as error:
                raise SignatureError(
                    f'dimension "{word}": {error.message}', column + (error.column or 1) - 1
                ) from None
    return tuple(dims)


def split_at_commas(text: str, opening: str, closing: str) -> list[tuple[int, str]]:
    """Return (offset, piece) for each piece between the commas outside of brackets."""
    pieces, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in opening) - (character in closing)
        # The arguments of cdiv(m, 2) are not dimensions.
        if character == "," and not depth:
            pieces.append((start, text[start:index]))
            start = index + 1
    return [*pieces, (start, text[start:])]


def check_argument(argument: Argument) -> None:
    """Raise `SignatureError` for a mistake within one argument.

    Its dtype may still be the name of a constant.
    """
    data_type = DTYPES.get(argument.dtype)
    if argument.dims is None:
        if argument.out:
            raise SignatureError("a scalar cannot be out: only tensors are written")
        if argument.align is not None:
            raise SignatureError("a scalar has no alignment")
        if argument.optional or argument.strides is not None:
            option = "optional" if argument.optional else "strides"
            hint = f"{POINTER} may always be None" if argument.dtype == POINTER else None
            raise SignatureError(f'"{option}" is for tensors', hint=hint)
        if data_type is not None and data_type.c == "void":
            raise SignatureError(
                f"a scalar cannot be {argument.dtype}",
                1,
                hint="pass it as f32 and convert it in the kernel",
            )
    elif argument.align is not None and (argument.align < 1 or argument.align.bit_count() != 1):
        raise SignatureError(f"align is {argument.align}, not a power of two")
    if argument.constant and (argument.out or argument.optional or argument.strides is not None):
        option = "out" if argument.out else "optional" if argument.optional else "strides"
        message = f'"{option}" is not for a constant: all of it is copied before a launch'
        raise SignatureError(message)
    if argument.out and argument.optional:
        raise SignatureError("an output cannot be optional")
    if argument.dims == ANY_SHAPE and (argument.strides is not None or argument.constant):
        raise SignatureError("needs its shape, in place of [...]")
    if argument.strides is not None and len(argument.strides) != len(argument.dims or ()):
        raise SignatureError(
            f"{len(argument.strides)} strides for {len(argument.dims or ())} dimensions",
            hint='one for each, as in strides = ["row", 1]: a name is read off the tensor',
        )
    if argument.low is not None or argument.high is not None:
        _check_range(argument)


def _check_range(argument: Argument) -> None:
    """Raise `SignatureError` for a range that the dtype cannot have, or that holds no value."""
    low, high = argument.low, argument.high
    limits = get_integer_limits(argument.dtype)
    # Before constants are resolved, a dtype may be the name of one: it may turn out to be an
    # integer, so it passes here and is checked again by `resolve_constants`.
    is_resolved = argument.dtype in DTYPES or argument.dtype == POINTER
    if argument.dims is not None or (limits is None and is_resolved):
        raise SignatureError("only an integer scalar can have a range")
    if low is not None and high is not None and low > high:
        raise SignatureError(f"the range {low}..{high} holds no value")
    for bound in (low, high):
        if limits and bound is not None and not limits[0] <= bound <= limits[1]:
            raise SignatureError(f"{bound} does not fit {argument.dtype}")


_DIMENSION_TYPES = ("i32", "i64")


def join_arguments(arguments: Iterable[Argument], constants: Collection[str] = ()) -> Signature:
    """Return the signature of these arguments, with dimensions and strides marked as such.

    `constants` are names whose values `resolve_constants` gets later: shapes may use them, and one
    of them may stand for a dtype. Raises `SignatureError` with the name of the wrong argument.
    """
    declared = tuple(arguments)
    by_name: dict[str, Argument] = {}
    argument_of_constant: dict[str, str] = {}
    for argument in declared:
        with _name_in_errors(argument):
            if argument.name in by_name:
                raise SignatureError("declared twice")
            if argument.name in constants:
                raise SignatureError("is both an argument and a constant: rename one")
            by_name[argument.name] = argument
            _check_dtype(argument, constants, [other.name for other in declared])
            if argument.constant in argument_of_constant:
                other_name = argument_of_constant[argument.constant]
                raise SignatureError(f'"{argument.constant}" is filled by "{other_name}" already')
            if argument.constant:
                argument_of_constant[argument.constant] = argument.name
    dimension_names = {
        dim for argument in declared for dim in argument.dims or () if isinstance(dim, str)
    }
    required_names = {
        dim for argument in declared if not argument.optional for dim in argument.dims or ()
    }
    # Each pass needs what the one before it has learnt of all arguments.
    strides: set[str] = set()
    for argument in declared:
        with _name_in_errors(argument):
            _add_strides(argument, by_name, dimension_names, strides)
            _check_optional(argument, by_name, required_names)
    arguments_with_roles = tuple(
        replace(
            argument,
            is_stride=argument.name in strides,
            is_dimension=argument.dims is None
            and argument.name in dimension_names
            and argument.dtype in _DIMENSION_TYPES,
        )
        for argument in declared
    )
    for argument in arguments_with_roles:
        with _name_in_errors(argument):
            if argument.dims != ANY_SHAPE:
                _check_dims(argument.dims or (), by_name, constants)
            if argument.tile is not None:
                _check_tile(argument, argument.tile, by_name)
    return Signature(arguments_with_roles)


@contextmanager
def _name_in_errors(argument: Argument) -> Iterator[None]:
    """Set the argument's name in a `SignatureError` that leaves the block."""
    try:
        yield
    except SignatureError as error:
        error.argument = argument.name
        raise


def _check_tile(argument: Argument, tile: Tile, by_name: Mapping[str, Argument]) -> None:
    """Raise `SignatureError` for a tensor map that cannot be made of its tensor, or of a view."""
    tensors = [a.name for a in by_name.values() if a.is_tensor and not (a.optional or a.constant)]
    if tile.tensor not in tensors:
        message = f'"{tile.tensor}" is not a tensor that each call has on the device'
        raise SignatureError(message, hint=did_you_mean(tile.tensor, tensors))
    tensor = tile.view or by_name[tile.tensor]
    if tile.view is not None:
        _check_dims((*(tensor.dims or ()), *(tensor.strides or ())), by_name, ())
    rank = len(tensor.dims or ())
    if tensor.dims == ANY_SHAPE or not 1 <= rank <= 5:
        shape = "any shape" if tensor.dims == ANY_SHAPE else f"{rank} dimensions"
        raise SignatureError(f'"{tile.tensor}" has {shape}; a tensor map has 1 to 5')
    for key, sizes in (("box", tile.box), ("element-strides", tile.element_strides)):
        # Without element strides each is 1.
        if len(sizes) != rank and (sizes or key == "box"):
            raise SignatureError(
                f'{key} has {len(sizes)} sizes; "{tile.tensor}" has {rank} dimensions'
            )
    if not argument.is_parameter:
        raise SignatureError("a tensor map is made for the kernel")


def _add_strides(
    argument: Argument,
    by_name: Mapping[str, Argument],
    dimension_names: Collection[Dim],
    strides: set[str],
) -> None:
    """Add the names of an argument's strides to `strides`. Raises `SignatureError`.

    A stride may be read off one tensor only: two tensors could disagree.
    """
    for stride in argument.strides or ():
        if not isinstance(stride, str):
            continue
        scalar = by_name.get(stride)
        if scalar is None or scalar.dims is not None or scalar.dtype not in _DIMENSION_TYPES:
            raise SignatureError(
                f'stride "{stride}" is not an i32 or i64 argument',
                hint=f'declare it among the arguments: {stride} = "i64"',
            )
        if stride in strides or stride in dimension_names:
            raise SignatureError(f'stride "{stride}" is read off more than one place')
        strides.add(stride)


def _check_optional(
    argument: Argument, by_name: Mapping[str, Argument], required_names: Collection[Dim]
) -> None:
    """Raise `SignatureError` if a dimension can be read off optional tensors only."""
    if not argument.optional:
        return
    for dim in argument.dims or ():
        if isinstance(dim, str) and dim in by_name and dim not in required_names:
            message = f'dimension "{dim}" is not read off any tensor that is always passed'
            raise SignatureError(message)


def _check_dtype(argument: Argument, constants: Collection[str], names: Collection[str]) -> None:
    """Raise `SignatureError` for a dtype that is neither known nor a constant. `names` are those of
    all arguments."""
    if argument.dtype in (*DTYPES, POINTER, *constants) or is_struct(argument.dtype):
        return
    if argument.tile is not None:
        return
    known = [*DTYPES, *constants]
    hint = did_you_mean(argument.dtype, known)
    if dtype := C_TYPES.get(argument.dtype):
        hint = f'that is "{dtype}" here'
    elif argument.dims is None and argument.dtype in names:
        hint = f'a shape has brackets: "[{argument.dtype}]"'
    elif argument.dims is None and find_nearest_word(argument.dtype, known) is None:
        hint = "\n".join(filter(None, (hint, format_struct_hint(argument.dtype))))
    message = f'"{argument.dtype}" is neither a dtype nor a constant of the script'
    raise SignatureError(message, 1, hint=hint)


def format_struct_hint(name: str) -> str:
    """Return a hint for a type of this name that may be a struct."""
    return f'a struct is written with its members: "struct {name or "NAME"} {{ f32 a; i32 b }}"'


def _check_dims(
    dims: tuple[Dim, ...], by_name: Mapping[str, Argument], constants: Collection[str]
) -> None:
    """Raise `SignatureError` for a shape with names that no integer argument or constant has."""
    groups = ({d} if isinstance(d, str) else d.names for d in dims if not isinstance(d, int))
    used = {name for names in groups for name in names}
    undeclared = sorted(used.difference(by_name, constants))
    for name in undeclared:
        if "." in name:  # arch.number, target.kind
            raise SignatureError(f"a shape cannot depend on {name}: it is the caller's")
    if undeclared:
        known = [a.name for a in by_name.values() if get_integer_limits(a.dtype)] + [*constants]
        own = f'args.{undeclared[0]} = {{ type = "i64", parameter = false }}'
        quoted, is_one = '", "'.join(undeclared), len(undeclared) == 1
        message = f'dimension "{quoted}" is neither an argument nor a constant of the script'
        if not is_one:
            message = f'dimensions "{quoted}" are neither arguments nor constants of the script'
        error = SignatureError(
            message,
            hint=(
                did_you_mean(undeclared[0], known, max_listed=0)
                or f"known: {', '.join(known) or 'none'}"
            )
            + f"\nor declare {'it' if is_one else 'each'}: {own}, if the kernel does not take it",
        )
        error.undeclared = tuple(undeclared)
        raise error
    for name in sorted(used.difference(constants)):
        scalar = by_name[name]
        if scalar.dims is not None or get_integer_limits(scalar.dtype) is None:
            raise SignatureError(
                f'dimension "{name}" is {scalar.format_type()}: a dimension is an integer argument'
            )
        if name in dims and scalar.dtype not in _DIMENSION_TYPES:
            error = SignatureError(
                f'dimension "{name}" is {scalar.dtype}: declare it as i32 or i64'
            )
            error.undeclared = (name,)
            raise error


def resolve_constants(
    declared: Signature, constants: Mapping[str, bool | int | float | str]
) -> Signature:
    """Return the signature with all constants replaced by their values. Raises `SignatureError`.

    Every dtype is known then, and shapes depend on arguments only.
    """
    # The arguments are checked and joined again: only now all dtypes are known, and which names in
    # shapes are arguments.
    resolved = []
    for argument in declared.arguments:
        with _name_in_errors(argument):
            dtype = _resolve_dtype(argument, constants)
            dims = argument.dims
            if dims is not None:
                dims = tuple(resolve_dim(dim, constants) for dim in dims)
            resolved_argument = replace(argument, dtype=dtype, dims=dims)
            check_argument(resolved_argument)
            resolved.append(resolved_argument)
    return join_arguments(resolved)


def _resolve_dtype(argument: Argument, constants: Mapping[str, bool | int | float | str]) -> str:
    """Return the argument's dtype, or that of the constant that its dtype names, whose value may be
    the name of the type in C. Raises `SignatureError`."""
    is_resolved = argument.dtype in (*DTYPES, POINTER) or is_struct(argument.dtype)
    # A tensor map has no dtype of its own.
    if is_resolved or argument.tile is not None:
        return argument.dtype
    value = constants.get(argument.dtype)
    dtype = C_TYPES.get(str(value), value)
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise SignatureError(
            f"constant {argument.dtype} is {value!r}, which is not a dtype",
            hint=did_you_mean(str(value), DTYPES),
        )
    return dtype


def resolve_dim(dim: Dim, constants: Mapping[str, bool | int | float | str]) -> Dim:
    """Return a dimension with the constants replaced: a number if nothing else is left. Raises
    `SignatureError`."""
    value: object
    if isinstance(dim, int):
        return dim
    if isinstance(dim, str):
        if dim not in constants:
            return dim
        text, value = dim, constants[dim]
    else:
        text = dim.source
        try:
            used_constants = {name: constants[name] for name in dim.names if name in constants}
            expression = dim.substitute(used_constants)
            if expression.names:
                return expression
            value = expression.evaluate({})
        except ExprError as error:
            raise SignatureError(f"dimension {text}: {error.message}") from None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SignatureError(f"dimension {text} is {value!r}, not a count")
    return value
