"""One argument, read from the manifest's text, and what is wrong with it by itself."""

from __future__ import annotations

import re

from msgspec.structs import replace

from tilusbuild.expr import ExprError, parse
from tilusbuild.runtime.dtypes import DTYPES, POINTER, integer_limits
from tilusbuild.runtime.structs import is_struct, struct_of
from tilusbuild.signature.model import ANY_SHAPE, Argument, Dim, SignatureError

C_TYPES = {
    "float": "f32", "double": "f64", "half": "f16", "__half": "f16", "__nv_bfloat16": "bf16",
    "nv_bfloat16": "bf16", "bool": "bool", "char": "i8", "signed char": "i8", "int8_t": "i8",
    "unsigned char": "u8", "uint8_t": "u8", "short": "i16", "int16_t": "i16",
    "unsigned short": "u16", "uint16_t": "u16", "int": "i32", "int32_t": "i32",
    "unsigned int": "u32", "unsigned": "u32", "uint32_t": "u32", "long": "i64", "long long": "i64",
    "int64_t": "i64", "size_t": "u64", "unsigned long": "u64", "unsigned long long": "u64",
    "uint64_t": "u64",
}  # fmt: skip
"""The dtype of a manifest, by its name in C."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPE = re.compile(r"\s*(?P<dtype>[A-Za-z_][A-Za-z0-9_]*)?\s*(?P<star>\*)?\s*(?P<shape>\[.*)?\s*\Z")


def parse_argument(
    name: str,
    text: str,
    *,
    out: bool = False,
    inout: bool = False,
    range: tuple[int | None, int | None] | None = None,  # noqa: A002 - the manifest's word
    align: int | None = None,
    optional: bool = False,
    strides: tuple[str | int, ...] | None = None,
    is_parameter: bool = True,
    constant: str = "",
) -> Argument:
    """Read one argument's type. Raises `SignatureError` with the column within `text`.

    `range` holds the least and the greatest value, both inclusive, of an integer scalar. An
    argument with a `constant` is not a parameter.
    """
    if not _NAME.fullmatch(name):
        raise SignatureError(f'"{name}" is not a name: use letters, digits and _')
    is_parameter = is_parameter and not constant
    if is_struct(text):
        plain = not (out or range or align or optional or strides)
        made = _struct(name, text, plain=plain)
        return replace(made, is_parameter=is_parameter, constant=constant)
    if "\n" in text or (match := _TYPE.match(text)) is None or match["dtype"] is None:
        raise SignatureError(f'"{text}" is not an argument type', 1, hint=_TYPE_HINT)
    dtype = match["dtype"]
    opaque = dtype == "void" and match["star"] is not None and match["shape"] is None
    if dtype == "void" and not opaque:
        raise SignatureError(
            "void is not an element type",
            1,
            hint='write the type of the elements: "f16*[n]"; for plain bytes "u8*[n]"; '
            'an opaque pointer is "void*"',
        )
    if opaque:
        dtype, dims = POINTER, None
    elif match["star"] is None:
        if match["shape"] is not None:
            column = match.start("shape") + 1
            raise SignatureError(
                f'a tensor needs a * before its shape: "{dtype}*{match["shape"]}"', column
            )
        dims = None
    elif match["shape"] is None:
        raise SignatureError(
            f'a tensor needs its shape: "{C_TYPES.get(dtype, dtype)}*[n]"', match.end("star") + 1
        )
    else:
        dims = _parse_dims(text, match.start("shape"))
    argument = Argument(
        name,
        dtype,
        dims,
        out=out,
        inout=inout,
        align=align,
        optional=optional,
        strides=strides,
        is_parameter=is_parameter,
        constant=constant,
    )
    if range is not None:
        argument = replace(argument, low=range[0], high=range[1])
    check_argument(argument)
    return argument


def _struct(name: str, text: str, *, plain: bool) -> Argument:
    if not plain:
        raise SignatureError("a struct is passed by value, and takes only a type")
    try:
        return Argument(name, struct_of(text).text(), None)
    except ValueError as error:
        hint = (
            'as in "struct Params { f32 alpha; i32 n; i64 strides[3]; void* next }": any pointer '
            "is void*; an array of arrays, and a struct, is one array of its size and alignment"
        )
        raise SignatureError(str(error), 1, hint=hint) from None


_TYPE_HINT = 'a tensor is written "f16*[m, k]", a scalar "i32" or "f32"'


def _parse_dims(text: str, start: int) -> tuple[Dim, ...]:
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
        column = start + 1 + offset + (len(piece) - len(piece.lstrip())) + 1
        word = piece.strip()
        if not word:
            raise SignatureError("a dimension is missing here", column)
        if re.fullmatch(r"[0-9]+", word):
            dims.append(int(word))
        elif _NAME.fullmatch(word):
            dims.append(word)
        else:
            try:
                dims.append(parse(word))
            except ExprError as error:
                raise SignatureError(
                    f'dimension "{word}": {error.message}', column + (error.column or 1) - 1
                ) from None
    return tuple(dims)


def split_at_commas(text: str, opening: str, closing: str) -> list[tuple[int, str]]:
    """Return the pieces between the commas that no bracket encloses, each with its offset."""
    pieces, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in opening) - (character in closing)
        if character == "," and not depth:
            pieces.append((start, text[start:index]))
            start = index + 1
    return [*pieces, (start, text[start:])]


def check_argument(argument: Argument) -> None:
    """Check one argument by itself, its dtype known or still a constant's name."""
    known = DTYPES.get(argument.dtype)
    if argument.dims is None:
        if argument.out:
            raise SignatureError("a scalar cannot be out: only tensors are written")
        if argument.align is not None:
            raise SignatureError("a scalar has no alignment")
        if argument.optional or argument.strides is not None:
            what = "optional" if argument.optional else "strides"
            hint = f"{POINTER} may always be None" if argument.dtype == POINTER else None
            raise SignatureError(f'"{what}" is for tensors', hint=hint)
        if known is not None and known.c == "void":
            raise SignatureError(
                f"a scalar cannot be {argument.dtype}",
                1,
                hint="pass it as f32 and convert it in the kernel",
            )
    elif argument.align is not None and (argument.align < 1 or argument.align.bit_count() != 1):
        raise SignatureError(f"align is {argument.align}, not a power of two")
    if argument.constant and (argument.out or argument.optional or argument.strides is not None):
        what = "out" if argument.out else "optional" if argument.optional else "strides"
        raise SignatureError(f'"{what}" is not for a constant: all of it is copied before a launch')
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
    low, high = argument.low, argument.high
    limits = integer_limits(argument.dtype)
    known = argument.dtype in DTYPES or argument.dtype == POINTER
    if argument.dims is not None or (limits is None and known):
        raise SignatureError("only an integer scalar can have a range")
    if low is not None and high is not None and low > high:
        raise SignatureError(f"the range {low}..{high} holds no value")
    for bound in (low, high):
        if limits and bound is not None and not limits[0] <= bound <= limits[1]:
            raise SignatureError(f"{bound} does not fit {argument.dtype}")
