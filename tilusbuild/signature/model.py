"""The values of a signature: arguments in the kernel's order, with shapes and tensor maps.

Each argument has a canonical text: its line in `program.txt`, which the program's hash covers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.expr import Expr, parse_expression
from tilusbuild.runtime.dtypes import POINTER, get_integer_limits
from tilusbuild.runtime.structs import parse_struct

Dim = str | int | Expr
"""A dimension in a shape: a bare name, a literal, or an expression over names."""
ANY_SHAPE: tuple[Dim, ...] = ("...",)
"""The shape of a contiguous tensor of any shape, as in `f32*[...]`."""


class SignatureError(Exception):
    """The text of an argument is wrong. `column` counts from 1 within the text."""

    argument: str | None = None
    """The argument's name; None while one argument is parsed alone."""
    undeclared: tuple[str, ...] = ()
    """The names of dimensions that no argument, or one of a wrong type, has."""

    def __init__(self, message: str, column: int | None = None, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        self.hint = hint


MAP_WIDTHS = {
    "interleave": (0, 16, 32),
    "swizzle": (0, 32, 64, 128),
    "l2-promotion": (0, 64, 128, 256),
}
"""The values of CUtensorMapInterleave, …Swizzle and …L2promotion of cuda.h, in bytes."""


class Tile(Struct, frozen=True):
    """The parameters of a tensor map: the box of a tensor that one TMA copy moves.

    Expressions depend on constants only. Interleave, swizzle and L2 promotion are bytes; 0: none.
    """

    tensor: str
    box: tuple[Expr, ...]
    """Elements, in the tensor's order of dimensions."""
    element_strides: tuple[Expr, ...] = ()
    """() is 1 in every dimension."""
    interleave: Expr = parse_expression(0)
    swizzle: Expr = parse_expression(0)
    l2_promotion: Expr = parse_expression(0)
    nan: bool = False
    """Whether elements out of bounds read as NaN and not as zero."""
    view: Argument | None = None
    """The tensor as the map has it: another type, shape and strides over the same memory."""

    def substitute_constants(self, constants: Mapping[str, bool | int | float | str]) -> Tile:
        """Return the tile with the names of constants replaced by their values."""
        widths = ("interleave", "swizzle", "l2_promotion")
        return replace(
            self,
            box=tuple(size.substitute(constants) for size in self.box),
            element_strides=tuple(step.substitute(constants) for step in self.element_strides),
            **{name: getattr(self, name).substitute(constants) for name in widths},
        )

    def format_text(self) -> str:
        """Return the canonical text."""
        words = [f"of {self.tensor} box {', '.join(e.canonical for e in self.box)}"]
        if self.view is not None:
            words.insert(0, self.view.format_line())
        if self.element_strides:
            words.append(f"strides {', '.join(e.canonical for e in self.element_strides)}")
        words += [
            f"{name.replace('_', '-')} {width.canonical}"
            for name in ("interleave", "swizzle", "l2_promotion")
            if (width := getattr(self, name)).constant != 0
        ]
        return " ".join([*words, *(["nan"] if self.nan else [])])


def _format_dims(dims: tuple[Dim, ...]) -> str:
    return ", ".join(dim.canonical if isinstance(dim, Expr) else str(dim) for dim in dims)


class Argument(Struct, frozen=True):
    """One argument of the kernel. `dims` is None for a scalar; `()` is a tensor of one element."""

    name: str
    dtype: str
    dims: tuple[Dim, ...] | None = None
    out: bool = False
    """Whether the kernel writes the tensor."""
    inout: bool = False
    """Whether the kernel also reads a tensor that it writes."""
    low: int | None = None
    high: int | None = None
    is_dimension: bool = False
    align: int | None = None
    """Alignment of a tensor's address in bytes; None: the size of an element."""
    optional: bool = False
    """Whether a caller may pass None for a tensor. The kernel then gets a null pointer."""
    strides: tuple[Dim, ...] | None = None
    """The strides of a tensor in elements: arguments or numbers. None: contiguous."""
    is_stride: bool = False
    """Whether the launcher reads the value off a tensor's strides."""
    tile: Tile | None = None
    """The tile of a tensor map. The launcher makes the map."""
    is_parameter: bool = True
    """Whether the kernel has this parameter. Other arguments are used by the launcher only."""
    constant: str = ""
    """The `__constant__` variable that the launcher copies the value to; "" for none."""
    bytes: Expr | None = None
    """The size of a workspace: memory that a call may leave out. None for other arguments."""
    zeroed: bool = False
    """Whether the launcher fills a workspace with zeros before each launch."""
    values: tuple[Expr, ...] = ()
    """Of the members of a struct that the launcher makes, which is a parameter and no argument."""

    @property
    def is_passed(self) -> bool:
        """Whether a caller passes the argument. Others follow from the tensors."""
        return not (self.is_dimension or self.is_stride or self.tile is not None)

    @property
    def is_tensor(self) -> bool:
        return self.dims is not None

    def format_type(self) -> str:
        """Return the type in the manifest's spelling: `f16*[m, k]`."""
        if self.dims is None:
            return self.dtype
        return f"{self.dtype}*[{_format_dims(self.dims)}]"

    def format_line(self) -> str:
        """Return the argument's line in `program.txt`."""
        words = [f"{self.name}: {'in' * self.inout}{'out ' * self.out}{self.format_type()}"]
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
            words.append(f"strides {_format_dims(self.strides)}")
        if self.is_stride:
            words.append("stride")
        if self.tile is not None:
            words.append(self.tile.format_text())
        if self.bytes is not None:
            words.append(f"bytes {self.bytes.canonical}{' zeroed' * self.zeroed}")
        if self.constant:
            words.append(f"constant {self.constant}")
        elif not self.is_parameter:
            words.append("not a parameter")
        return " ".join(words)


NULL = Argument("null pointer", POINTER)
"""A parameter of the kernel that no argument has: a null pointer."""


class Signature(Struct, frozen=True):
    """The arguments in the kernel's order. `join_arguments` and `resolve_constants` make it."""

    arguments: tuple[Argument, ...]
    chosen_parameters: tuple[Argument, ...] | None = None
    """The kernel's parameters where they are not the arguments in order; `NULL` stands for none."""

    @property
    def callable_arguments(self) -> tuple[Argument, ...]:
        """Return the arguments that a caller passes, in order."""
        return tuple(argument for argument in self.arguments if argument.is_passed)

    @property
    def value_arguments(self) -> tuple[Argument, ...]:
        """Return the arguments with a value in a call: all but the tensor maps."""
        return tuple(argument for argument in self.arguments if argument.tile is None)

    @property
    def tensor_maps(self) -> tuple[tuple[str, Tile], ...]:
        """Return the tensor maps by the names of their arguments."""
        return tuple((a.name, a.tile) for a in self.arguments if a.tile is not None)

    @property
    def workspaces(self) -> tuple[Argument, ...]:
        """Return the workspaces, in order."""
        return tuple(argument for argument in self.arguments if argument.bytes is not None)

    def substitute_bytes(self, constants: Mapping[str, bool | int | float | str]) -> Signature:
        """Return the signature with the names of constants replaced in the sizes of workspaces."""
        arguments = tuple(
            a if a.bytes is None else replace(a, bytes=a.bytes.substitute(constants))
            for a in self.arguments
        )
        return replace(self, arguments=arguments) if self.workspaces else self

    @property
    def constants(self) -> tuple[Argument, ...]:
        """Return the arguments that are copied to `__constant__` variables, in order."""
        return tuple(argument for argument in self.arguments if argument.constant)

    @property
    def packed(self) -> tuple[Argument, ...]:
        """Return the parameters that the launcher makes of the arguments, in order."""
        return tuple(argument for argument in self.chosen_parameters or () if argument.values)

    @property
    def parameters(self) -> tuple[Argument, ...]:
        """Return the kernel's parameters, in order."""
        if self.chosen_parameters is not None:
            return self.chosen_parameters
        return tuple(argument for argument in self.arguments if argument.is_parameter)

    @property
    def dimensions(self) -> tuple[Argument, ...]:
        """Return the arguments that are read off the tensors' shapes."""
        return tuple(argument for argument in self.arguments if argument.is_dimension)

    def format_parameters(self) -> list[str]:
        """Return the lines of `program.txt` on `chosen_parameters` and on maps of views."""
        names = ", ".join(argument.name for argument in self.chosen_parameters or ())
        lines = [f"parameters = {names}"] if self.chosen_parameters is not None else []
        return lines + [a.format_line() for a in self.arguments if a.tile and a.tile.view]

    def format_text(self) -> str:
        """Return the canonical text: a line for each argument, each ended by a newline."""
        return "".join(argument.format_line() + "\n" for argument in self.arguments)


def make_struct_parameter(dtype: str, values: tuple[Expr, ...]) -> Argument:
    """Return a parameter that the launcher makes. Raises `ValueError` for another number of values
    than the struct has."""
    parsed = parse_struct(dtype)
    if len(values) != len(parsed.scalars):
        raise ValueError(f"{parsed.name} has {len(parsed.scalars)} members, not {len(values)}")
    name = f"{dtype} of ({', '.join(value.canonical for value in values)})"
    return Argument(name, dtype, values=values)


class PackedValue(NamedTuple):
    """A value in a struct that the launcher makes."""

    name: str
    dtype: str
    parameter: Argument
    offset: int
    """Bytes from the start of all structs of the signature: each begins at a multiple of 8."""
    expression: Expr
    argument: Argument | None
    """The argument whose bytes it is; None for a number to compute."""


def list_packed_values(signature: Signature) -> list[PackedValue]:
    """Return the values in the structs that the launcher makes. Raises `ValueError` for a value
    that is not of its member's type."""
    arguments = {argument.name: argument for argument in signature.value_arguments}
    packed = []
    start = 0
    for parameter in signature.packed:
        parsed = parse_struct(parameter.dtype)
        offsets = [m.offset + i * m.bytes for m in parsed.members for i in range(m.elements or 1)]
        rows = zip(parsed.scalars, offsets, parameter.values, strict=True)
        for (member, member_name), offset, value in rows:
            argument = arguments.get(value.canonical)
            if argument is not None and argument.is_tensor:
                has_bytes = member.dtype == POINTER
            else:
                has_bytes = argument is not None and argument.dtype == member.dtype
            name = f"{parsed.name}.{member_name}"
            if not has_bytes and get_integer_limits(member.dtype) is None:
                raise ValueError(f"{name} is a {member.dtype}, not {value.canonical}")
            source = argument if has_bytes else None
            packed.append(PackedValue(name, member.dtype, parameter, start + offset, value, source))
        start += -(-parsed.size // 8) * 8
    return packed
