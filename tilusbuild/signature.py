"""The call signature of a script: arguments in the kernel's order, read from the manifest's texts.

An argument is a tensor (`f16*[m, k]`) or a scalar (`i32`, `f32`). An `i32` or `i64` scalar that a
tensor names as a bare dimension is read off that tensor's shape, so the caller does not pass it.
Dimensions may also be integers, constants of the script, and expressions over both. What leaves
`signature` is consistent: every name in a shape is a dimension, another integer argument, or a
declared constant.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tilusbuild.errors import did_you_mean
from tilusbuild.expr import Expr, ExprError, parse
from tilusbuild.lazy_dataclass import dataclass
from tilusbuild.runtime.dtypes import DTYPES, POINTER, integer_limits
from tilusbuild.runtime.structs import is_struct, struct_of

Dim = str | int | Expr
"""A dimension in a shape: a bare name, a literal, or an expression over names."""


_DIMENSION_TYPES = ("i32", "i64")


class SignatureError(Exception):
    """An argument's text is wrong. `column` counts from 1 within that text; `argument` names it."""

    def __init__(
        self,
        message: str,
        column: int | None = None,
        *,
        argument: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        self.argument = argument
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Tile:
    """What a tensor map is of: boxes of a tensor, as the tensor memory accelerator copies them. The
    expressions are over constants; a width in bytes is 0 where there is none."""

    tensor: str
    box: tuple[Expr, ...]
    """Elements, in the tensor's order of dimensions."""
    element_strides: tuple[Expr, ...] = ()
    """() is 1 in every dimension."""
    interleave: Expr = parse(0)
    swizzle: Expr = parse(0)
    l2_promotion: Expr = parse(0)
    nan: bool = False
    """Whether what is out of bounds reads as NaN; else it is zero."""

    def substitute(self, known: Mapping[str, bool | int | float | str]) -> Tile:
        """Return it with these names replaced by their values."""
        return Tile(
            self.tensor,
            tuple(size.substitute(known) for size in self.box),
            tuple(step.substitute(known) for step in self.element_strides),
            self.interleave.substitute(known),
            self.swizzle.substitute(known),
            self.l2_promotion.substitute(known),
            self.nan,
        )

    def text(self) -> str:
        """Return the canonical text."""
        words = [f"of {self.tensor} box {', '.join(e.canonical for e in self.box)}"]
        if self.element_strides:
            words.append(f"strides {', '.join(e.canonical for e in self.element_strides)}")
        widths = (
            ("interleave", self.interleave),
            ("swizzle", self.swizzle),
            ("l2-promotion", self.l2_promotion),
        )
        words += [f"{name} {width.canonical}" for name, width in widths if width.constant != 0]
        return " ".join([*words, *(["nan"] if self.nan else [])])


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the kernel. `dims` is None for a scalar; `()` is a tensor of one element."""

    name: str
    dtype: str
    dims: tuple[Dim, ...] | None
    out: bool = False
    low: int | None = None
    high: int | None = None
    is_dimension: bool = False
    align: int | None = None
    """Bytes that a tensor's address must be a multiple of; None asks for the element's size."""
    optional: bool = False
    """Whether a tensor may be None: its pointer is null then."""
    strides: tuple[str | int, ...] | None = None
    """Of a tensor that need not be contiguous: what its strides are, in elements."""
    is_stride: bool = False
    """Whether it is read off a tensor's strides."""
    tile: Tile | None = None
    """Of a tensor map, which the launcher makes."""
    is_parameter: bool = True
    """Whether the kernel takes it, and not the launcher alone."""

    @property
    def is_passed(self) -> bool:
        """Whether a caller passes it: it is not read off a tensor."""
        return not (self.is_dimension or self.is_stride or self.tile is not None)

    @property
    def is_tensor(self) -> bool:
        return self.dims is not None

    def type_text(self) -> str:
        """Return the type as a manifest would spell it: `f16*[m, k]`."""
        if self.dims is None:
            return self.dtype
        return f"{self.dtype}*[{', '.join(_dim_text(dim) for dim in self.dims)}]"

    def text(self) -> str:
        """Return one line that states the whole argument, for `program.txt`."""
        words = [f"{self.name}: {'out ' if self.out else ''}{self.type_text()}"]
        if self.is_dimension:
            words.append("dimension")
        if self.low is not None or self.high is not None:
            low = "" if self.low is None else self.low
            high = "" if self.high is None else self.high
            words.append(f"range {low}..{high}")
        if self.align is not None:
            words.append(f"align {self.align}")
        if self.optional:
            words.append("optional")
        if self.strides is not None:
            words.append(f"strides {', '.join(map(str, self.strides))}")
        if self.is_stride:
            words.append("stride")
        if self.tile is not None:
            words.append(self.tile.text())
        if not self.is_parameter:
            words.append("not a parameter")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments in the kernel's order; made by `signature` or `resolve`."""

    arguments: tuple[Argument, ...]

    @property
    def callable_arguments(self) -> tuple[Argument, ...]:
        """Return what a caller passes, in order: the arguments that no tensor says."""
        return tuple(argument for argument in self.arguments if argument.is_passed)

    @property
    def valued(self) -> tuple[Argument, ...]:
        """Return what a call has a value for: all but the tensor maps, which are made of them."""
        return tuple(argument for argument in self.arguments if argument.tile is None)

    @property
    def tensor_maps(self) -> tuple[tuple[str, Tile], ...]:
        """Return the tensor maps by the names of their arguments."""
        return tuple((a.name, a.tile) for a in self.arguments if a.tile is not None)

    @property
    def parameters(self) -> tuple[Argument, ...]:
        """Return what a kernel takes, in order."""
        return tuple(argument for argument in self.arguments if argument.is_parameter)

    @property
    def dimensions(self) -> tuple[Argument, ...]:
        """Return the arguments that are read off the tensors' shapes."""
        return tuple(argument for argument in self.arguments if argument.is_dimension)

    def text(self) -> str:
        """Return the canonical text: a line for each argument, each ended by a newline."""
        return "".join(argument.text() + "\n" for argument in self.arguments)


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPE = re.compile(r"\s*(?P<dtype>[A-Za-z_][A-Za-z0-9_]*)?\s*(?P<star>\*)?\s*(?P<shape>\[.*)?\s*\Z")


def parse_argument(
    name: str,
    text: str,
    *,
    out: bool = False,
    range: tuple[int | None, int | None] | None = None,  # noqa: A002 - the manifest's word
    align: int | None = None,
    optional: bool = False,
    strides: tuple[str | int, ...] | None = None,
    is_parameter: bool = True,
) -> Argument:
    """Read one argument's type. Raises `SignatureError` with the column within `text`.

    `range` holds the least and the greatest value, both inclusive, of an integer scalar.
    """
    if not _NAME.fullmatch(name):
        raise SignatureError(f'"{name}" is not a name: use letters, digits and _', argument=name)
    if is_struct(text):
        plain = not (out or range or align or optional or strides)
        return replace(_struct(name, text, plain=plain), is_parameter=is_parameter)
    if "\n" in text or (match := _TYPE.match(text)) is None or match["dtype"] is None:
        raise SignatureError(f'"{text}" is not an argument type', 1, argument=name, hint=_TYPE_HINT)
    dtype = match["dtype"]
    opaque = dtype == "void" and match["star"] is not None and match["shape"] is None
    if dtype == "void" and not opaque:
        raise SignatureError(
            "void is not an element type",
            1,
            argument=name,
            hint='write the type of the elements: "f16*[n]"; for plain bytes "u8*[n]"; '
            'an opaque pointer is "void*"',
        )
    if opaque:
        dtype, dims = POINTER, None
    elif match["star"] is None:
        if match["shape"] is not None:
            column = match.start("shape") + 1
            raise SignatureError(
                f'a tensor needs a * before its shape: "{dtype}*{match["shape"]}"',
                column,
                argument=name,
            )
        dims = None
    elif match["shape"] is None:
        raise SignatureError(
            f'a tensor needs its shape: "{dtype}*[n]"', match.end("star") + 1, argument=name
        )
    else:
        dims = _parse_dims(name, text, match.start("shape"))
    argument = Argument(
        name,
        dtype,
        dims,
        out=out,
        align=align,
        optional=optional,
        strides=strides,
        is_parameter=is_parameter,
    )
    if range is not None:
        argument = replace(argument, low=range[0], high=range[1])
    _check_argument(argument)
    return argument


def _struct(name: str, text: str, *, plain: bool) -> Argument:
    if not plain:
        raise SignatureError("a struct is passed by value, and has a type alone", argument=name)
    try:
        return Argument(name, struct_of(text).text(), None)
    except ValueError as error:
        hint = 'as in "struct Params { f32 alpha; i32 n; i64 strides[3]; void* next }"'
        raise SignatureError(str(error), 1, argument=name, hint=hint) from None


_TYPE_HINT = 'a tensor is written "f16*[m, k]", a scalar "i32" or "f32"'


def _parse_dims(name: str, text: str, start: int) -> tuple[Dim, ...]:
    body = text.rstrip()
    if not body.endswith("]"):
        raise SignatureError("the shape has no closing ]", len(body) + 1, argument=name)
    inner = body[start + 1 : -1]
    if not inner.strip():
        return ()
    dims: list[Dim] = []
    for offset, piece in _split_at_commas(inner):
        column = start + 1 + offset + (len(piece) - len(piece.lstrip())) + 1
        word = piece.strip()
        if not word:
            raise SignatureError("a dimension is missing here", column, argument=name)
        if re.fullmatch(r"[0-9]+", word):
            dims.append(int(word))
        elif _NAME.fullmatch(word):
            dims.append(word)
        else:
            try:
                dims.append(parse(word))
            except ExprError as error:
                raise SignatureError(
                    f'dimension "{word}": {error.message}',
                    column + (error.column or 1) - 1,
                    argument=name,
                ) from None
    return tuple(dims)


def _split_at_commas(text: str) -> list[tuple[int, str]]:
    """Return the pieces between the commas that no bracket encloses, each with its offset."""
    pieces, depth, start = [], 0, 0
    for index, character in enumerate(text):
        if character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        elif character == "," and depth == 0:
            pieces.append((start, text[start:index]))
            start = index + 1
    return [*pieces, (start, text[start:])]


def _check_argument(argument: Argument) -> None:
    """Check one argument by itself, its dtype known or still a constant's name."""
    name, known = argument.name, DTYPES.get(argument.dtype)
    if argument.dims is None:
        if argument.out:
            raise SignatureError("a scalar cannot be out: only tensors are written", argument=name)
        if argument.align is not None:
            raise SignatureError("a scalar has no alignment", argument=name)
        if argument.optional or argument.strides is not None:
            what = "optional" if argument.optional else "strides"
            hint = f"{POINTER} may be None always" if argument.dtype == POINTER else None
            raise SignatureError(f'"{what}" is for tensors', argument=name, hint=hint)
        if known is not None and known.c == "void":
            raise SignatureError(
                f"a scalar cannot be {argument.dtype}",
                1,
                argument=name,
                hint="pass it as f32 and convert it in the kernel",
            )
    elif argument.align is not None and (argument.align < 1 or argument.align.bit_count() != 1):
        raise SignatureError(f"align is {argument.align}, not a power of two", argument=name)
    if argument.out and argument.optional:
        raise SignatureError("an output cannot be optional", argument=name)
    if argument.strides is not None and len(argument.strides) != len(argument.dims or ()):
        raise SignatureError(
            f"{len(argument.strides)} strides for {len(argument.dims or ())} dimensions",
            argument=name,
            hint='one for each, as in strides = ["row", 1]: a name is read off the tensor',
        )
    if argument.low is not None or argument.high is not None:
        _check_range(argument)


def _check_range(argument: Argument) -> None:
    name, low, high = argument.name, argument.low, argument.high
    limits = integer_limits(argument.dtype)
    known = argument.dtype in DTYPES or argument.dtype == POINTER
    if argument.dims is not None or (limits is None and known):
        raise SignatureError("only an integer scalar can have a range", argument=name)
    if low is not None and high is not None and low > high:
        raise SignatureError(f"the range {low}..{high} holds no value", argument=name)
    for bound in (low, high):
        if limits and bound is not None and not limits[0] <= bound <= limits[1]:
            raise SignatureError(f"{bound} does not fit {argument.dtype}", argument=name)


def signature(arguments: Iterable[Argument], constants: Collection[str] = ()) -> Signature:
    """Join arguments, and find those that are dimensions.

    `constants` are the names that `resolve` will later know: a shape may use them, and a string
    among them may be a dtype. Raises `SignatureError` whose `argument` says which one is wrong.
    """
    declared = tuple(arguments)
    by_name: dict[str, Argument] = {}
    for argument in declared:
        if argument.name in by_name:
            raise SignatureError("declared twice", argument=argument.name)
        if argument.name in constants:
            raise SignatureError(
                "is both an argument and a constant: rename one", argument=argument.name
            )
        by_name[argument.name] = argument
        _check_dtype(argument, constants)
    bare = {dim for argument in declared for dim in argument.dims or () if isinstance(dim, str)}
    strides = _strides(declared, by_name, bare)
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
        for dim in argument.dims or ():
            _check_dim(argument, dim, by_name, constants)
        if argument.tile is not None:
            _check_tile(argument, argument.tile, by_name)
    return Signature(marked)


def _check_tile(argument: Argument, tile: Tile, by_name: Mapping[str, Argument]) -> None:
    tensor = by_name.get(tile.tensor)
    if tensor is None or tensor.dims is None or tensor.optional:
        raise SignatureError(
            f'"{tile.tensor}" is no tensor that is always there: there can be no map of it',
            argument=argument.name,
            hint=did_you_mean(tile.tensor, [n for n, a in by_name.items() if a.dims]),
        )
    rank = len(tensor.dims)
    if not 1 <= rank <= 5:
        raise SignatureError(
            f'"{tile.tensor}" has {rank} dimensions; a tensor map has 1 to 5',
            argument=argument.name,
        )
    for what, sizes in (("box", tile.box), ("element-strides", tile.element_strides)):
        if len(sizes) != rank and (sizes or what == "box"):
            raise SignatureError(
                f'{what} has {len(sizes)} sizes; "{tile.tensor}" has {rank} dimensions',
                argument=argument.name,
            )
    if not argument.is_parameter:
        raise SignatureError("a tensor map is made for the kernel", argument=argument.name)


def _strides(
    declared: Sequence[Argument], by_name: Mapping[str, Argument], bare: Collection[Dim]
) -> frozenset[str]:
    """Return the arguments that are read off strides. Raises `SignatureError`."""
    found: set[str] = set()
    always = {dim for argument in declared if not argument.optional for dim in argument.dims or ()}
    for argument in declared:
        for stride in argument.strides or ():
            other = by_name.get(stride) if isinstance(stride, str) else None
            if isinstance(stride, int):
                continue
            if other is None or other.dims is not None or other.dtype not in _DIMENSION_TYPES:
                raise SignatureError(
                    f'stride "{stride}" is not an i32 or i64 argument',
                    argument=argument.name,
                    hint=f'declare it among the arguments: {stride} = "i64"',
                )
            if stride in found or stride in bare:
                raise SignatureError(
                    f'stride "{stride}" is read off more than one place', argument=argument.name
                )
            found.add(stride)
        for dim in argument.dims or ():
            if argument.optional and isinstance(dim, str) and dim in by_name and dim not in always:
                raise SignatureError(
                    f'dimension "{dim}" is read off no tensor that is always there',
                    argument=argument.name,
                )
    return frozenset(found)


def _check_dtype(argument: Argument, constants: Collection[str]) -> None:
    if argument.dtype in (*DTYPES, POINTER, *constants) or is_struct(argument.dtype):
        return
    if argument.tile is not None:
        return
    raise SignatureError(
        f'"{argument.dtype}" is neither a dtype nor a constant of the script',
        1,
        argument=argument.name,
        hint=did_you_mean(argument.dtype, [*DTYPES, *constants]),
    )


def _check_dim(
    argument: Argument, dim: Dim, by_name: Mapping[str, Argument], constants: Collection[str]
) -> None:
    names = {dim} if isinstance(dim, str) else set() if isinstance(dim, int) else set(dim.names)
    for name in sorted(names - set(constants)):
        other = by_name.get(name)
        if other is None:
            if "." in name:
                raise SignatureError(
                    f"a shape cannot depend on {name}: it is the caller's", argument=argument.name
                )
            scalars = [a.name for a in by_name.values() if a.dims is None]
            raise SignatureError(
                f'dimension "{name}" is neither an argument nor a constant of the script',
                argument=argument.name,
                hint=did_you_mean(name, [*scalars, *constants])
                or f'declare it among the arguments: {name} = "i32"',
            )
        if other.dims is not None or integer_limits(other.dtype) is None:
            raise SignatureError(
                f'dimension "{name}" is {other.type_text()}: a dimension is an integer argument',
                argument=argument.name,
            )
        if isinstance(dim, str) and other.dtype not in _DIMENSION_TYPES:
            raise SignatureError(
                f'dimension "{name}" is {other.dtype}: declare it as i32 or i64',
                argument=argument.name,
            )


def resolve(declared: Signature, constants: Mapping[str, bool | int | float | str]) -> Signature:
    """Return the signature with every constant in it replaced by its value: dtypes known, shapes
    over arguments only. Raises `SignatureError`."""
    resolved = []
    for argument in declared.arguments:
        dtype: object = argument.dtype
        other = is_struct(argument.dtype) or argument.tile is not None
        if argument.dtype not in (*DTYPES, POINTER) and not other:
            dtype = constants.get(argument.dtype)
            if not isinstance(dtype, str) or dtype not in DTYPES:
                raise SignatureError(
                    f"constant {argument.dtype} is {dtype!r}, which is not a dtype",
                    argument=argument.name,
                    hint=did_you_mean(str(dtype), DTYPES),
                )
        dims = argument.dims
        if dims is not None:
            dims = tuple(_resolve_dim(argument.name, dim, constants) for dim in dims)
        known = replace(argument, dtype=str(dtype), dims=dims)
        _check_argument(known)
        resolved.append(known)
    return signature(resolved)


def _resolve_dim(argument: str, dim: Dim, constants: Mapping[str, bool | int | float | str]) -> Dim:
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
            raise SignatureError(f"dimension {said}: {error.message}", argument=argument) from None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SignatureError(f"dimension {said} is {value!r}, not a count", argument=argument)
    return value


def _dim_text(dim: Dim) -> str:
    return dim.canonical if isinstance(dim, Expr) else str(dim)
