"""Arguments that a kernel reads of variables: `__constant__ float filter[9]`, which the launcher
fills before each launch.

A variable is found by its symbol, which C++ makes of its name: outside of namespaces that is the
name. Whether the device code has it, and of the size that is declared, is asked of the code itself:
a copy of another size would be an error of each call, and one of another variable none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilusbuild.runtime.dtypes import scalar_type
from tilusbuild.runtime.structs import is_struct, struct_of

if TYPE_CHECKING:
    from tilusbuild.compile.model import Recipe
    from tilusbuild.signature import Argument


def variable_symbol(name: str) -> str:
    """Return the symbol of a variable that a manifest names: `d_filter`, `conv::filter`."""
    parts = name.removeprefix("::").split("::")
    if len(parts) == 1:
        return parts[0]
    return "_ZN" + "".join(f"{len(part)}{part}" for part in parts) + "E"


def unit_bytes(argument: Argument) -> int:
    """Return the bytes of an element of a tensor, or of all of a scalar or a struct."""
    if is_struct(argument.dtype):
        return struct_of(argument.dtype).size
    return scalar_type(argument.dtype).bytes


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
                f'argument "{argument.name}" is declared {argument.type_text()}, which has {wanted}'
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
