"""What a call passes, held against what device code takes: parameters, and variables.

Some arguments a kernel reads of variables: `__constant__ float filter[9]`, which the launcher
fills before each launch.

A variable is found by its symbol, which C++ makes of its name: outside of namespaces that is the
name. Whether the device code has it, and of the size that is declared, is asked of the code itself:
a copy of another size would be an error of each call, and one of another variable none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tilusbuild.runtime.dtypes import get_scalar_type
from tilusbuild.runtime.structs import is_struct, parse_struct

if TYPE_CHECKING:
    from tilusbuild.compile.model import Recipe
    from tilusbuild.runtime.script import ScriptArgument
    from tilusbuild.signature import Argument, Signature

_POINTER_BYTES, _TENSOR_MAP_BYTES = 8, 128


def variable_symbol(name: str) -> str:
    """Return the symbol of a variable that a manifest names: `d_filter`, `conv::filter`."""
    parts = name.removeprefix("::").split("::")
    if len(parts) == 1:
        return parts[0]
    return "_ZN" + "".join(f"{len(part)}{part}" for part in parts) + "E"


def unit_bytes(argument: Argument) -> int:
    """Return the bytes of an element of a tensor, or of all of a scalar or a struct."""
    if is_struct(argument.dtype):
        return parse_struct(argument.dtype).size
    return get_scalar_type(argument.dtype).bytes


def c_type(argument: Argument | ScriptArgument) -> str:
    """Return the C type by which a plain call passes an argument."""
    if argument.dims is None and not is_struct(argument.dtype):
        return get_scalar_type(argument.dtype).c
    return "void *" if argument.out else "const void *"


def known_bytes(argument: Argument) -> int | None:
    """Return how many bytes a call copies; None where its sizes decide that."""
    total = unit_bytes(argument)
    for dim in argument.dims or ():
        if not isinstance(dim, int):
            return None
        total *= dim
    return total


def constants_problem(recipe: Recipe, variables: Mapping[str, int]) -> str | None:
    """Return how the variables of device code, bytes by symbol, differ from what is declared; with
    its place in the source where that has one."""
    for argument in recipe.signature.constants:
        size = variables.get(variable_symbol(argument.constant))
        wanted = known_bytes(argument)
        if size is None:
            named = ", ".join(sorted(variables)) or "none"
            return (
                f"{_place(recipe, argument.constant)}the code has no variable "
                f'"{argument.constant}" for the argument "{argument.name}" (it has: {named})'
            )
        if wanted is not None and size != wanted:
            return (
                f'{_place(recipe, argument.constant)}"{argument.constant}" has {size} bytes; the '
                f'argument "{argument.name}" is declared {argument.format_type()}, which has '
                f"{wanted}"
            )
    return None


def _place(recipe: Recipe, name: str) -> str:
    """Return where a variable is declared, else where the kernel is, as a compiler's errors begin;
    "" for neither."""
    # Imported only here: a plan makes launchers, and has no code to find fault with.
    from tilusbuild.compile.declared import without_comments

    text = without_comments(recipe.source)
    own = re.escape(name.rpartition("::")[2])
    kernel = re.escape(recipe.symbol.partition("<")[0].rpartition("::")[2])
    for found in (
        re.search(rf"__(?:constant|device)__[^;{{}}()=]*?\b{own}\b", text),
        re.search(rf"__global__[^;{{}}=]*?\b{kernel}\s*\(", text),
    ):
        if found is not None:
            return f"source.cu:{text.count(chr(10), 0, found.end()) + 1}: error: "
    return ""


def parameter_problem(signature: Signature, sizes: tuple[int, ...] | None) -> str | None:
    """Return how the kernel's parameters differ from the declared arguments."""
    if sizes is None:
        return None
    arguments = signature.parameters
    if len(sizes) != len(arguments):
        names = ", ".join(argument.name for argument in arguments) or "none"
        return (
            f"the kernel takes {len(sizes)} parameters; {len(arguments)} arguments are declared "
            f"({names}){_surplus(arguments, sizes)}"
        )
    for position, (argument, size) in enumerate(zip(arguments, sizes, strict=True), 1):
        if size != (declared := _bytes(argument)):
            return (
                f"parameter {position} of the kernel has {size} bytes; "
                f'"{argument.name}" is declared {argument.format_type()}, which has {declared}'
            )
    return None


def _surplus(arguments: Sequence[Argument], sizes: Sequence[int]) -> str:
    """Return which arguments the kernel does not take, as far as the sizes of its parameters say:
    the first arguments that fit these, in order, are theirs."""
    left = list(sizes)
    over = [each for each in arguments if not (left and left[0] == _bytes(each) and left.pop(0))]
    if left or not over:
        return ""
    first = f'{over[0].name} = {{ type = "{over[0].format_type()}", parameter = false }}'
    return f"; not taken: {', '.join(each.name for each in over)}, as in {first}"


def variable_sizes(cubin: bytes) -> dict[str, int]:
    """Return the bytes of each variable of a cubin, by its symbol. Raises `BinaryError`."""
    from tilusbuild.binary.cubin import open_cubin

    elf = open_cubin(cubin)
    table = elf.find_section(".symtab")
    symbols = elf.read_symbols(table) if table is not None else ()
    return {each.name: each.size for each in symbols if each.is_object and each.section}


def _bytes(argument: Argument) -> int:
    if argument.tile is not None:
        return _TENSOR_MAP_BYTES
    return unit_bytes(argument) if argument.dims is None else _POINTER_BYTES
