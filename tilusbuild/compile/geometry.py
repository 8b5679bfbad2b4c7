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
from tilusbuild.signature.model import Signature, Tile, list_packed_values

INT64_LIMITS = (-(1 << 63), (1 << 63) - 1)
_SIZE_NAMES = ("grid.x", "grid.y", "grid.z", "block.x", "block.y", "block.z", "smem")
_ATTRIBUTE_NAMES = ("cluster.x", "cluster.y", "cluster.z", "cooperative", "pdl", "carve-out")
_AXES = ("x", "y", "z")
_SWITCHES = ("cooperative", "pdl")
# The numbers that a launch leaves out are 1, except these; -1 leaves the carve-out to CUDA.
_DEFAULT_NUMBERS = {"cooperative": 0, "pdl": 0, "carve-out": -1}


class LaunchError(ValueError):
    """A number of a launch has no value. `keys` lead to the number in the script's table."""

    def __init__(self, message: str, *keys: str | int) -> None:
        super().__init__(message)
        self.keys = keys


class Geometry(Struct, frozen=True):
    """A launch as the program's table of constants and the launcher's C expressions."""

    slots: dict[str, int]
    """The slot in the table of each number of the launch and of its tensor maps, by name."""
    constants: tuple[int, ...]
    """The values of `tilus_constants`: the slots, then the named constants."""
    c_expressions: tuple[str, ...]
    """The number of each slot as C: the slot itself, or an expression over slots and arguments."""
    sources: tuple[str, ...]
    """For messages: `grid.x = cdiv(n, block_n)`; empty for a number that the schedule fixes."""

    def read_fixed_numbers(self, *names: str) -> tuple[int, ...] | None:
        """Return these numbers; None if one of them depends on an argument of the call."""
        slots = [self.slots[name] for name in names]
        if any(self.sources[slot] for slot in slots):
            return None
        return tuple(self.constants[slot] for slot in slots)

    def find_fixed_number(self, name: str) -> int | None:
        """Return a number that the schedule fixes; None for one that depends on an argument."""
        slot = self.slots[name]
        return None if self.sources[slot] else self.constants[slot]

    def read_number(self, name: str) -> int:
        """Return a number that the schedule fixes; 0 for one that depends on an argument."""
        return self.constants[self.slots[name]]

    @property
    def block(self) -> tuple[int, ...] | None:
        """The threads of a block along x, y, z; None if they depend on an argument."""
        return self.read_fixed_numbers("block.x", "block.y", "block.z")

    @property
    def cluster(self) -> tuple[int, ...] | None:
        """The blocks of a cluster along x, y, z; None if they depend on an argument. Raises
        `KeyError` for a launch without attributes."""
        return self.read_fixed_numbers("cluster.x", "cluster.y", "cluster.z")

    @property
    def smem(self) -> int | None:
        """The bytes of dynamic shared memory of a block; None if they depend on an argument."""
        return self.find_fixed_number("smem")


def build_geometry(recipe: Recipe) -> Geometry:
    """Return the launch of a recipe, divided into constants of the schedule and expressions over
    arguments. Raises `LaunchError` if an expression has no value, is not an integer, or has an
    unknown name."""
    if recipe.launch is None:
        raise ValueError("the kernel pipeline needs a launch")
    numbers = _collect_numbers(recipe.launch, recipe.signature)
    constant_names = _list_table_constants(recipe, numbers)
    # The source is a part of the key of a cache: equal expressions may be written differently.
    launch_numbers = [
        (name, None if expression is None else expression.source, expression)
        for name, expression in numbers.items()
    ]
    c_expressions, sources = _format_numbers(
        tuple(launch_numbers),
        recipe.signature,
        _collect_other_constants(recipe, numbers, constant_names),
        constant_names,
        frozenset(recipe.constants),
    )
    constants: list[int] = []
    for (name, expression), source in zip(numbers.items(), sources, strict=True):
        depends_on_argument = bool(source)
        # The slot of an expression over arguments holds 0.
        constants.append(0 if depends_on_argument else _evaluate_number(recipe, name, expression))
    constants += [
        _check_int64(name, int(recipe.constants[name]), "launch") for name in constant_names
    ]
    slots = {number_name: slot for slot, number_name in enumerate(numbers)}
    return Geometry(slots, tuple(constants), c_expressions, sources)


_LaunchNumbers = dict[str, Expr | None]


def list_launch_numbers(launch: Launch) -> tuple[str, ...]:
    """Return the names of a launch's own numbers, which are those of the first slots."""
    return (*_SIZE_NAMES, *_ATTRIBUTE_NAMES) if launch.has_attributes else _SIZE_NAMES


def collect_map_numbers(name: str, tile: Tile) -> dict[str, Expr | None]:
    """Return the numbers of a tensor map by name: the boxes, the strides, and three widths."""
    steps = tile.element_strides or (None,) * len(tile.box)
    return {
        **{f"{name}.box.{axis}": size for axis, size in enumerate(tile.box)},
        **{f"{name}.element-strides.{axis}": step for axis, step in enumerate(steps)},
        f"{name}.interleave": tile.interleave,
        f"{name}.swizzle": tile.swizzle,
        f"{name}.l2-promotion": tile.l2_promotion,
    }


def _collect_numbers(launch: Launch, signature: Signature) -> _LaunchNumbers:
    """Return the numbers of a launch, of structs that the launcher makes, and of tensor maps by
    name, in the order of their slots. None stands for the default (`_DEFAULT_NUMBERS`)."""
    for name, sizes in (("grid", launch.grid), ("block", launch.block)):
        if not 1 <= len(sizes) <= 3:
            raise ValueError(f"launch.{name} has 1 to 3 sizes, not {len(sizes)}")
    expressions = [*_pad_to_three(launch.grid), *_pad_to_three(launch.block), launch.smem]
    if launch.has_attributes:
        expressions += _pad_to_three(launch.cluster)
        expressions += [launch.cooperative, launch.pdl, launch.carve_out]
    numbers = dict(zip(list_launch_numbers(launch), expressions, strict=True))
    packed = list_packed_values(signature)
    numbers |= {
        f"parameters.{index}.{value.name}": value.expression
        for index, value in enumerate(packed)
        if value.argument is None
    }
    for name, tile in signature.tensor_maps:
        numbers |= collect_map_numbers(name, tile)
    return numbers


def _find_manifest_keys(number_name: str) -> tuple[str | int, ...]:
    """Return the keys that lead to a number in the script's table: ("launch", "grid", 0) for
    "grid.x", and ("args", "x_map") for "x_map.box.0"."""
    name, _, part = number_name.partition(".")
    if part in _AXES:
        return ("launch", name, _AXES.index(part))
    return ("args", name) if part else ("launch", name)


def _pad_to_three(sizes: tuple[Expr, ...]) -> list[Expr | None]:
    return [*sizes, None, None, None][:3]


def _collect_other_constants(
    recipe: Recipe, numbers: _LaunchNumbers, table_constants: tuple[str, ...]
) -> tuple[tuple[str, Value, type], ...]:
    """Return (name, value, type) of the constants that expressions use and that have no slot.

    `table_constants` names the constants with slots; other integers are left out. The type is there
    since the result is the key of a cache, in which True equals 1.
    """
    used_names = {
        name for number in numbers.values() if number is not None for name in number.names
    }
    # A truth value is not left out, so the type is compared: to isinstance, True is an int.
    return tuple(
        (name, value, type(value))
        for name, value in recipe.constants.items()
        if name in used_names and name not in table_constants and type(value) is not int
    )


# The schedules that differ only in the values of integers share the result: a plan may have a
# hundred thousand of them.
@lru_cache(maxsize=256)
def _format_numbers(
    launch_numbers: tuple[tuple[str, str | None, Expr | None], ...],
    signature: Signature,
    other_constants: tuple[tuple[str, Value, type], ...],
    table_constants: tuple[str, ...],
    usable_names: frozenset[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return `c_expressions` and `sources` of a launch's `Geometry`. Raises `LaunchError`.

    `launch_numbers` are (name, source, expression) by slot. `table_constants` are the names of
    the constants whose slots follow; the values of `other_constants` are written into the C.
    `usable_names` are all names that expressions may use besides arguments.
    """
    argument_numbers = map_arguments_to_c(signature)
    c_names = {
        name: f"tilus_constants[{slot}]"
        for slot, name in enumerate(table_constants, len(launch_numbers))
    } | argument_numbers
    values = {name: value for name, value, _ in other_constants}
    # A number that depends on no argument is its slot.
    c_expressions = [f"tilus_constants[{slot}]" for slot in range(len(launch_numbers))]
    sources = [""] * len(launch_numbers)
    for slot, (number_name, _, expression) in enumerate(launch_numbers):
        if expression is None:
            continue
        try:
            expression.check_names({*argument_numbers, *usable_names})
            if expression.names & argument_numbers.keys():
                substituted = expression.substitute(values)
                # C would divide integers where the expression language has a fraction.
                if substituted.find_c_type() == "float":
                    raise _make_launch_error(number_name, expression, " is not an integer: use //")
                c_expressions[slot] = substituted.to_c(c_names)
                sources[slot] = f"{number_name} = {expression.source}"
        except ExprError as error:
            raise _make_launch_error(number_name, expression, f": {error.message}") from None
    return tuple(c_expressions), tuple(sources)


def _evaluate_number(recipe: Recipe, number_name: str, expression: Expr | None) -> int:
    """Return a number of the launch that depends on no argument: the default for None. Raises
    `LaunchError` if it has no value, or is not an integer of 64 bits."""
    if expression is None:
        return _DEFAULT_NUMBERS.get(number_name, 1)
    try:
        value = expression.evaluate(recipe.constants)
    except ExprError as error:
        raise _make_launch_error(number_name, expression, f": {error.message}") from None
    if type(value) is bool and number_name in _SWITCHES:
        return int(value)
    if type(value) is not int:
        raise _make_launch_error(number_name, expression, f" is {value!r}, not an integer")
    return _check_int64(number_name, value, *_find_manifest_keys(number_name))


def _make_launch_error(number_name: str, expression: Expr, problem: str) -> LaunchError:
    return LaunchError(
        f"{number_name} = {expression.source}{problem}", *_find_manifest_keys(number_name)
    )


def _list_table_constants(recipe: Recipe, numbers: _LaunchNumbers) -> tuple[str, ...]:
    """Return the integer constants of the expressions over arguments: they get slots too."""
    arguments = {argument.name for argument in recipe.signature.arguments}
    used_names = {
        name
        for expression in numbers.values()
        if expression is not None and expression.names & arguments
        for name in expression.names - arguments
    }
    return tuple(name for name in sorted(used_names) if type(recipe.constants.get(name)) is int)


def map_arguments_to_c(signature: Signature) -> dict[str, str]:
    """Return the arguments that an expression may use, by name, as C."""
    return {
        argument.name: f"number[{index}]"
        for index, argument in enumerate(signature.value_arguments)
        if argument.dims is None
        and argument.dtype in ("i8", "i16", "i32", "i64", "u8", "u16", "u32")
    }


def _check_int64(name: str, value: int, *keys: str | int) -> int:
    if not INT64_LIMITS[0] <= value <= INT64_LIMITS[1]:
        raise LaunchError(f"{name} is {value}, which 64 bits cannot hold", *keys)
    return value


def _format_symbol(recipe: Recipe) -> str:
    """Return the assembly of the symbol's string; "" if the symbol is known before the compile."""
    if not kernel_names.is_symbol_looked_up(recipe):
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


def format_program_source(recipe: Recipe, image: str) -> str:
    """Return the assembly of a program's own object: device code, constants, architectures."""
    archs = ", ".join(arch.name for arch in recipe.archs) + (" and PTX" if recipe.ptx else "")
    numbers = "\n".join(f"    .quad {value}" for value in build_geometry(recipe).constants)
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
{_format_symbol(recipe)}    .section .note.GNU-stack,"",%progbits
"""
