"""The launch of a kernel in two parts: constants of the schedule, and C for each call.

The numbers that a schedule fixes (block, shared memory, the tile sizes in the grid) stand in the
table `tilus_constants`, in the program's own object beside the device code. The expressions over
arguments become C of the launcher, which the schedules of an instance therefore share.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

from tilusbuild.compile import kernel_names
from tilusbuild.compile.model import Launch, Recipe
from tilusbuild.expr import Expr, ExprError, Value
from tilusbuild.signature import Signature, Tile

INT64_LIMITS = (-(1 << 63), (1 << 63) - 1)
_PLACES = ("grid.x", "grid.y", "grid.z", "block.x", "block.y", "block.z", "smem")
_ATTRIBUTES = ("cluster.x", "cluster.y", "cluster.z", "cooperative", "pdl", "carve-out")
_AXES = ("x", "y", "z")
_SWITCHES = ("cooperative", "pdl")
_NOTHING = {"cooperative": 0, "pdl": 0, "carve-out": -1}
"""What a place holds that the launch does not mention, where that is not 1."""


class LaunchError(ValueError):
    """A number of a launch has no value. `keys` is where the script's table has it."""

    def __init__(self, message: str, *keys: str | int) -> None:
        super().__init__(message)
        self.keys = keys


class Geometry(Struct, frozen=True):
    """A launch as the program's table of constants and the launcher's C expressions."""

    slots: dict[str, int]
    """The slot in the table of each number of the launch and of its tensor maps, by name."""
    constants: tuple[int, ...]
    """The values of `tilus_constants`: the slots, then the named constants."""
    texts: tuple[str, ...]
    """The number of each slot as C: the slot itself, or an expression over slots and arguments."""
    sources: tuple[str, ...]
    """For messages: `grid.x = cdiv(n, block_n)`; empty for a number that the schedule fixes."""

    def fixed(self, *names: str) -> tuple[int, ...] | None:
        """Return these numbers; None if one of them depends on an argument of the call."""
        slots = [self.slots[name] for name in names]
        if any(self.sources[slot] for slot in slots):
            return None
        return tuple(self.constants[slot] for slot in slots)

    def number(self, name: str) -> int:
        """Return a number that the schedule fixes; 0 for one that depends on an argument."""
        return self.constants[self.slots[name]]

    @property
    def block(self) -> tuple[int, ...] | None:
        """The threads of a block along x, y, z; None if they depend on an argument."""
        return self.fixed("block.x", "block.y", "block.z")

    @property
    def cluster(self) -> tuple[int, ...] | None:
        """The blocks of a cluster along x, y, z; None if they depend on an argument. Raises
        `KeyError` for a launch without attributes."""
        return self.fixed("cluster.x", "cluster.y", "cluster.z")

    @property
    def smem(self) -> int | None:
        """The bytes of dynamic shared memory of a block; None if they depend on an argument."""
        size = self.fixed("smem")
        return None if size is None else size[0]


def geometry(recipe: Recipe) -> Geometry:
    """Divide a launch into the constants of the schedule and expressions over arguments.

    Raises `LaunchError` if an expression has no value, is not an integer, or has an unknown name.
    """
    if recipe.launch is None:
        raise ValueError("the kernel pipeline needs a launch")
    places = _places(recipe.launch, recipe.signature)
    named = _table_names(recipe, places)
    texts, sources = _texts(
        tuple((place, number and number.source, number) for place, number in places.items()),
        recipe.signature,
        _other_constants(recipe, places, named),
        named,
        frozenset(recipe.constants),
    )
    # A slot of an expression over arguments holds 0.
    fixed = [
        0 if source else _value(recipe, place, expression)
        for (place, expression), source in zip(places.items(), sources, strict=True)
    ]
    fixed += [_int64(name, int(recipe.constants[name]), "launch") for name in named]
    slots = {place: slot for slot, place in enumerate(places)}
    return Geometry(slots, tuple(fixed), texts, sources)


_Places = dict[str, Expr | None]


def launch_places(launch: Launch) -> tuple[str, ...]:
    """Return the names of a launch's own numbers, which are those of the first slots."""
    return (*_PLACES, *_ATTRIBUTES) if launch.has_attributes else _PLACES


def map_places(name: str, tile: Tile) -> dict[str, Expr | None]:
    """Return the numbers of a tensor map by name: the boxes, the strides, and three widths."""
    steps = tile.element_strides or (None,) * len(tile.box)
    return {
        **{f"{name}.box.{axis}": size for axis, size in enumerate(tile.box)},
        **{f"{name}.element-strides.{axis}": step for axis, step in enumerate(steps)},
        f"{name}.interleave": tile.interleave,
        f"{name}.swizzle": tile.swizzle,
        f"{name}.l2-promotion": tile.l2_promotion,
    }


def _places(launch: Launch, signature: Signature) -> _Places:
    """Return the numbers by name, in the order of their slots; None is what `_NOTHING` says."""
    for sizes in (launch.grid, launch.block):
        if not 1 <= len(sizes) <= 3:
            raise ValueError(f"grid and block have 1 to 3 sizes, not {len(sizes)}")
    values = [*_three(launch.grid), *_three(launch.block), launch.smem]
    if launch.has_attributes:
        values += [*_three(launch.cluster), launch.cooperative, launch.pdl, launch.carve_out]
    places = dict(zip(launch_places(launch), values, strict=True))
    for name, tile in signature.tensor_maps:
        places |= map_places(name, tile)
    return places


def _keys(place: str) -> tuple[str | int, ...]:
    name, _, rest = place.partition(".")
    axis = (_AXES.index(rest),) if rest in _AXES else ()
    return ("args", name) if rest and not axis else ("launch", name, *axis)


def _three(sizes: tuple[Expr, ...]) -> list[Expr | None]:
    return [*sizes, None, None, None][:3]


def _other_constants(
    recipe: Recipe, places: _Places, table: tuple[str, ...]
) -> tuple[tuple[str, Value, type], ...]:
    """Return the constants that expressions use and that have no slot, by name. True equals 1, so
    the type is there, too."""
    used = {name for place in places.values() if place is not None for name in place.names}
    return tuple(
        (name, value, type(value))
        for name, value in recipe.constants.items()
        if name in used and name not in table and type(value) is not int
    )


# Schedules that differ only in the values of integers share the texts: a plan may have a hundred
# thousand of them. Equal expressions may be written differently, so the source is in the key.
@lru_cache(maxsize=256)
def _texts(
    places: tuple[tuple[str, str | None, Expr | None], ...],
    signature: Signature,
    others: tuple[tuple[str, Value, type], ...],
    table: tuple[str, ...],
    constants: frozenset[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the texts and the sources of a launch, as `Geometry` has them. `table` are the
    constants with slots behind those of the places."""
    numbers = numbers_in_c(signature)
    names = {name: f"tilus_constants[{len(places) + i}]" for i, name in enumerate(table)} | numbers
    values = {name: value for name, value, _ in others}
    texts = [f"tilus_constants[{slot}]" for slot in range(len(places))]
    sources = [""] * len(places)
    for slot, (place, _, expression) in enumerate(places):
        if expression is None:
            continue
        try:
            expression.check_names({*numbers, *constants})
            if expression.names & numbers.keys():
                rest = expression.substitute(values)
                if rest.find_c_type() == "float":
                    raise _wrong(place, expression, " is not an integer: use //")
                texts[slot], sources[slot] = rest.to_c(names), f"{place} = {expression.source}"
        except ExprError as error:
            raise _wrong(place, expression, f": {error.message}") from None
    return tuple(texts), tuple(sources)


def _value(recipe: Recipe, place: str, expression: Expr | None) -> int:
    """Return a number of the launch that depends on no argument."""
    if expression is None:
        return _NOTHING.get(place, 1)
    try:
        value = expression.evaluate(recipe.constants)
    except ExprError as error:
        raise _wrong(place, expression, f": {error.message}") from None
    if type(value) is bool and place in _SWITCHES:
        return int(value)
    if type(value) is not int:
        raise _wrong(place, expression, f" is {value!r}, not an integer")
    return _int64(place, value, *_keys(place))


def _wrong(place: str, expression: Expr, what: str) -> LaunchError:
    return LaunchError(f"{place} = {expression.source}{what}", *_keys(place))


def _table_names(recipe: Recipe, places: _Places) -> tuple[str, ...]:
    """Return the integer constants of the expressions over arguments: they get slots too."""
    arguments = {argument.name for argument in recipe.signature.arguments}
    used = {
        name
        for expression in places.values()
        if expression is not None and expression.names & arguments
        for name in expression.names - arguments
    }
    return tuple(
        name
        for name in sorted(used)
        if isinstance(value := recipe.constants.get(name), int) and not isinstance(value, bool)
    )


def numbers_in_c(signature: Signature) -> dict[str, str]:
    """Return the arguments that an expression may use, by name, as C."""
    return {
        argument.name: f"number[{index}]"
        for index, argument in enumerate(signature.value_arguments)
        if argument.dims is None
        and argument.dtype in ("i8", "i16", "i32", "i64", "u8", "u16", "u32")
    }


def _int64(name: str, value: int, *keys: str | int) -> int:
    if not INT64_LIMITS[0] <= value <= INT64_LIMITS[1]:
        raise LaunchError(f"{name} is {value}, which 64 bits cannot hold", *keys)
    return value


def _symbol(recipe: Recipe) -> str:
    """Return the symbol of a kernel that is known only when the program is assembled."""
    if not kernel_names.is_looked_up(recipe):
        return ""
    name = kernel_names.VARIABLE
    return f"""\
    .globl {name}
    .hidden {name}
    .type {name}, %object
{name}:
    .include "{kernel_names.SYMBOL_FILE}"
    .size {name}, . - {name}
"""


def program_source(recipe: Recipe, image: str) -> str:
    """Return the assembly of a program's own object: device code, constants, architectures."""
    archs = ", ".join(arch.name for arch in recipe.archs) + (" and PTX" if recipe.ptx else "")
    numbers = "\n".join(f"    .quad {value}" for value in geometry(recipe).constants)
    return f"""\
    .section .rodata
    .balign 64
    .globl tilus_image
    .hidden tilus_image
    .type tilus_image, %object
tilus_image:
    .incbin "{image}"
    .size tilus_image, . - tilus_image
    .balign 8
    .globl tilus_constants
    .hidden tilus_constants
    .type tilus_constants, %object
tilus_constants:
{numbers}
    .size tilus_constants, . - tilus_constants
    .globl tilus_archs
    .hidden tilus_archs
    .type tilus_archs, %object
tilus_archs:
    .asciz "{archs}"
    .size tilus_archs, . - tilus_archs
{_symbol(recipe)}    .section .note.GNU-stack,"",%progbits
"""
