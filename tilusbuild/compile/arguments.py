"""Compare the declared arguments with the compiled device code: parameters and variables.

An argument can be copied to a variable of the kernel (`__constant__ float filter[9]`) before each
launch. The variable is looked up by its symbol: outside of namespaces the symbol is the name.

The compiled code is checked for the variable and its size, since a copy of another size would fail
in each call, and a copy to another variable would not fail at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tilusbuild.runtime.dtypes import get_scalar_type
from tilusbuild.runtime.structs import is_struct, parse_struct
from tilusbuild.signature.reading import KernelSource

if TYPE_CHECKING:
    from tilusbuild.compile.model import Recipe
    from tilusbuild.runtime.script import ScriptArgument
    from tilusbuild.signature.model import Argument, Signature

_POINTER_BYTES = 8
_TENSOR_MAP_BYTES = 128  # sizeof(CUtensorMap), cuda.h


def mangle_variable_name(name: str) -> str:
    """Return the symbol of a variable that a manifest names: `d_filter`, `conv::filter`."""
    # Itanium C++ ABI, 5.1.2: a variable outside of namespaces is not mangled.
    parts = name.removeprefix("::").split("::")
    if len(parts) == 1:
        return parts[0]
    return "_ZN" + "".join(f"{len(part)}{part}" for part in parts) + "E"


def count_unit_bytes(argument: Argument) -> int:
    """Return the bytes of one element of a tensor, or of a scalar or a struct."""
    if is_struct(argument.dtype):
        return parse_struct(argument.dtype).size
    return get_scalar_type(argument.dtype).bytes


def format_c_type(argument: Argument | ScriptArgument) -> str:
    """Return the C type of an argument in a call of the launcher."""
    if argument.dims is None and not is_struct(argument.dtype):
        return get_scalar_type(argument.dtype).c
    return "void *" if argument.out else "const void *"


def count_copied_bytes(argument: Argument) -> int | None:
    """Return how many bytes of an argument a call copies; None if its dimensions are not
    constant."""
    total = count_unit_bytes(argument)
    for dim in argument.dims or ():
        if not isinstance(dim, int):
            return None
        total *= dim
    return total


def find_constants_problem(recipe: Recipe, variables: Mapping[str, int]) -> str | None:
    """Return the first difference between the variables of the device code (bytes by symbol) and
    the declared arguments, as a compiler's error line; None if they agree."""
    for argument in recipe.signature.constants:
        size = variables.get(mangle_variable_name(argument.constant))
        copied_bytes = count_copied_bytes(argument)
        if size is None:
            variable_names = ", ".join(sorted(variables)) or "none"
            return (
                f"{_locate_variable(recipe, argument.constant)}the code has no variable "
                f'"{argument.constant}" for the argument "{argument.name}" '
                f"(it has: {variable_names})"
            )
        if copied_bytes is not None and size != copied_bytes:
            return (
                f'{_locate_variable(recipe, argument.constant)}"{argument.constant}" has {size} '
                f'bytes; the argument "{argument.name}" is declared {argument.format_type()}, '
                f"which has {copied_bytes}"
            )
    return None


def _locate_variable(recipe: Recipe, name: str) -> str:
    """Return the prefix `source.cu:LINE: error: ` for the declaration of a variable, else for that
    of the kernel; "" if neither is found."""
    source = KernelSource(recipe.source, jinja=False)
    kernel = recipe.symbol.partition("<")[0].rpartition("::")[2]
    lines = [declaration.line for declaration in source.kernels if declaration.plain == kernel]
    line = source.variable_lines.get(name.rpartition("::")[2], lines[0] if lines else None)
    return "" if line is None else f"source.cu:{line}: error: "


def find_parameter_problem(signature: Signature, sizes: tuple[int, ...] | None) -> str | None:
    """Return how the kernel's parameters differ from the declared arguments; None if they agree, or
    if `sizes`, the bytes of each parameter, is None for unknown."""
    if sizes is None:
        return None
    arguments = signature.parameters
    if len(sizes) != len(arguments):
        names = ", ".join(argument.name for argument in arguments) or "none"
        return (
            f"the kernel takes {len(sizes)} parameters; {len(arguments)} arguments are declared "
            f"({names}){_describe_surplus_parameters(arguments, sizes)}"
        )
    for position, (argument, size) in enumerate(zip(arguments, sizes, strict=True), 1):
        declared_bytes = _count_parameter_bytes(argument)
        if size != declared_bytes:
            return (
                f'parameter {position} of the kernel has {size} bytes; "{argument.name}" is '
                f"declared {argument.format_type()}, which has {declared_bytes}"
            )
    return None


def _describe_surplus_parameters(arguments: Sequence[Argument], sizes: Sequence[int]) -> str:
    """Return the end of a sentence that names the arguments which the kernel does not take; "" if
    the sizes leave it open. Arguments are matched to parameters in order, by size."""
    remaining_sizes, surplus = list(sizes), []
    for argument in arguments:
        if remaining_sizes and remaining_sizes[0] == _count_parameter_bytes(argument):
            remaining_sizes.pop(0)
        else:
            surplus.append(argument)
    # With parameters left over, the order differs, and no argument can be named.
    if remaining_sizes or not surplus:
        return ""
    example = f'{surplus[0].name} = {{ type = "{surplus[0].format_type()}", parameter = false }}'
    return f"; not taken: {', '.join(argument.name for argument in surplus)}, as in {example}"


def read_variable_sizes(cubin: bytes) -> dict[str, int]:
    """Return the bytes of each variable of a cubin, by its symbol. Raises `BinaryError`."""
    from tilusbuild.binary.cubin import open_cubin

    elf = open_cubin(cubin)
    table = elf.find_section(".symtab")
    symbols = elf.read_symbols(table) if table is not None else ()
    # A symbol of section 0 is only declared in the cubin, and defined elsewhere.
    return {symbol.name: symbol.size for symbol in symbols if symbol.is_object and symbol.section}


def _count_parameter_bytes(argument: Argument) -> int:
    if argument.tile is not None:
        return _TENSOR_MAP_BYTES
    return count_unit_bytes(argument) if argument.dims is None else _POINTER_BYTES
