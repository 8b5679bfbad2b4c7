"""Kernels that are called by a C++ name: `marlin::Marlin<256, 4>`, or `::saxpy`.

A kernel's name is that of an `extern "C"` function, or anything else that C++ takes for a kernel:
such a kernel is instantiated because its name is asked for, and its symbol is what the compiler
makes of the name. The symbol is known when the device code is made; it stands in `SYMBOL_FILE`,
which the program's own object includes, so that the schedules of an instance share a launcher.
"""

from __future__ import annotations

import os
import re

from tilusbuild.compile.model import Recipe
from tilusbuild.runtime.regular import read_text

SYMBOL_FILE = "kernel.s"
"""One line of assembly: the symbol as a string."""
VARIABLE = "tilus_kernel"
"""What the launcher reads the symbol from; likewise the variable in PTX that names it."""

_C_NAME = re.compile(r"[A-Za-z_]\w*")
_SYMBOL = re.compile(r'\s*\.asciz "([^"\\]+)"\n?')


def is_cpp(kernel: str) -> bool:
    """Return whether a kernel is called by a C++ name."""
    return bool(kernel) and _C_NAME.fullmatch(kernel) is None


def plain_name(kernel: str) -> str:
    """Return a kernel's name without its template arguments, which differ between schedules."""
    return kernel.partition("<")[0].strip().removeprefix("::") if is_cpp(kernel) else kernel


def naming(kernel: str) -> str:
    """Return the lines of C++ that instantiate a kernel and make a variable of its address, whose
    value in PTX is the symbol."""
    return f'\nextern "C" __device__ auto *const {VARIABLE} = &{kernel.strip()};\n'


def take_symbol() -> tuple[str, ...]:
    """Return the arguments for sed that move the variable's line out of PTX, to `SYMBOL_FILE`."""
    taken = rf's/.* = ([^ ;]+);.*/.asciz "\1"/w {SYMBOL_FILE}'
    return ("-e", rf"/\.u64 {VARIABLE} = /{{{taken}", "-e", "d}")


def symbol_of(recipe: Recipe, work: str) -> str:
    """Return the symbol of a recipe's kernel, whose device code was made in `work`; "" when it is
    not known."""
    if not is_cpp(recipe.symbol):
        return recipe.symbol
    try:
        found = _SYMBOL.fullmatch(read_text(os.path.join(work, SYMBOL_FILE)))
    except OSError:
        return ""
    return found[1] if found else ""
