"""A signature as values: arguments in the kernel's order, their shapes and tensor maps, each with
the one line of `program.txt` that states it whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.expr import Expr, parse_expression

Dim = str | int | Expr
"""A dimension in a shape: a bare name, a literal, or an expression over names."""
ANY_SHAPE: tuple[Dim, ...] = ("...",)
"""The shape of a contiguous tensor of any shape, as in `f32*[...]`."""


class SignatureError(Exception):
    """An argument's text is wrong. `column` counts from 1 within that text."""

    argument: str | None = None
    """Its name, from where several are looked at."""

    def __init__(self, message: str, column: int | None = None, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        self.hint = hint


class Tile(Struct, frozen=True):
    """What a tensor map is of: boxes of a tensor, as the tensor memory accelerator copies them. The
    expressions are over constants; a width in bytes is 0 where there is none."""

    tensor: str
    box: tuple[Expr, ...]
    """Elements, in the tensor's order of dimensions."""
    element_strides: tuple[Expr, ...] = ()
    """() is 1 in every dimension."""
    interleave: Expr = parse_expression(0)
    swizzle: Expr = parse_expression(0)
    l2_promotion: Expr = parse_expression(0)
    nan: bool = False
    """Whether what is out of bounds reads as NaN; else it is zero."""

    def substitute(self, known: Mapping[str, bool | int | float | str]) -> Tile:
        """Return it with these names replaced by their values."""
        widths = ("interleave", "swizzle", "l2_promotion")
        return replace(
            self,
            box=tuple(size.substitute(known) for size in self.box),
            element_strides=tuple(step.substitute(known) for step in self.element_strides),
            **{name: getattr(self, name).substitute(known) for name in widths},
        )

    def text(self) -> str:
        """Return the canonical text."""
        words = [f"of {self.tensor} box {', '.join(e.canonical for e in self.box)}"]
        if self.element_strides:
            words.append(f"strides {', '.join(e.canonical for e in self.element_strides)}")
        words += [
            f"{name.replace('_', '-')} {width.canonical}"
            for name in ("interleave", "swizzle", "l2_promotion")
            if (width := getattr(self, name)).constant != 0
        ]
        return " ".join([*words, *(["nan"] if self.nan else [])])


class Argument(Struct, frozen=True):
    """One argument of the kernel. `dims` is None for a scalar; `()` is a tensor of one element."""

    name: str
    dtype: str
    dims: tuple[Dim, ...] | None = None
    out: bool = False
    """Whether the kernel writes the tensor."""
    inout: bool = False
    """Whether it reads it, too."""
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
    constant: str = ""
    """The variable of the device code that it is copied to before a launch; "" for none."""

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
        dims = (dim.canonical if isinstance(dim, Expr) else str(dim) for dim in self.dims)
        return f"{self.dtype}*[{', '.join(dims)}]"

    def text(self) -> str:
        """Return one line that states the whole argument, for `program.txt`."""
        words = [f"{self.name}: {'in' * self.inout}{'out ' * self.out}{self.type_text()}"]
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
        if self.constant:
            words.append(f"constant {self.constant}")
        elif not self.is_parameter:
            words.append("not a parameter")
        return " ".join(words)


class Signature(Struct, frozen=True):
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
    def constants(self) -> tuple[Argument, ...]:
        """Return what is copied to variables of the device code, in order."""
        return tuple(argument for argument in self.arguments if argument.constant)

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
