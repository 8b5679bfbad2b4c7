"""Kernels that are called by a C++ name: `marlin::Marlin<256, 4>`, or `::saxpy`.

A kernel's name is that of an `extern "C"` function, or anything else that C++ takes for a kernel:
such a kernel is instantiated because its name is asked for, and its symbol is what the compiler
makes of the name. The symbol is known when the device code is made; it stands in `SYMBOL_FILE`,
which the program's own object includes, so that the schedules of an instance share a launcher.

The source of a *unit* names the kernels of several programs. Its PTX is made once for all of them;
`ENTRY_FILE` has each program's ptxas take its own kernel of it. With `ONLY` defined as a kernel's
number the source names that one alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from tilusbuild.compile.model import Recipe
from tilusbuild.runtime.regular import try_read_text

SYMBOL_FILE = "kernel.s"
"""One line of assembly: the symbol as a string."""
ENTRY_FILE = "kernel.opt"
"""Options for nvcc: the symbol as the one kernel that ptxas compiles."""
VARIABLE = "tilus_kernel"
"""What the launcher reads the symbol from; likewise the variable in PTX that names it, in a unit
with the kernel's number behind it."""
ONLY = "TILUS_KERNEL"
_ANCHOR = 'extern "C" void tilus_unit(void) {}\n'
"""A function that others could call: nvcc makes the names of internal linkage from its name, and in
a source without one, of nothing but templates, from its process id. PTX has no code of it."""
_NVRTC_ANCHOR = _ANCHOR.replace("void", "__device__ void", 1)
"""The same for NVRTC, which compiles no functions of the host."""

_C_NAME = re.compile(r"[A-Za-z_]\w*")
_MANGLED = re.compile(r"_Z([NL]?)(?=\d)")
_SYMBOL = re.compile(r'\s*\.asciz "([^"\\]+)"\n?')


def is_cpp(kernel: str) -> bool:
    """Return whether a kernel is called by a C++ name."""
    return bool(kernel) and _C_NAME.fullmatch(kernel) is None


def plain_name(kernel: str) -> str:
    """Return a kernel's name without its template arguments, which differ between schedules."""
    return kernel.partition("<")[0].strip().removeprefix("::") if is_cpp(kernel) else kernel


def cpp_name(symbol: str) -> str:
    """Return the name, for a manifest, of a C++ function that is not a template's, without a
    namespace that has no name; "" for a C name."""
    found = _MANGLED.match(symbol)
    parts: list[str] = []
    at = found.end() if found else len(symbol)
    while found and (not parts or found[1] == "N") and (size := re.match(r"\d+", symbol[at:])):
        begin = at + size.end()
        at = begin + int(size[0])
        parts.append(symbol[begin:at])
    named = [part for part in parts if not part.startswith(("_GLOBAL__N_", "_INTERNAL_"))]
    return "::".join(named if len(named) > 1 else ["", *named] if named else [])


def is_looked_up(recipe: Recipe) -> bool:
    """Return whether the symbol is taken from what was compiled."""
    return is_cpp(recipe.symbol) or bool(recipe.unit)


def anchored(text: str) -> str:
    """Return a source for NVRTC, which instantiates the kernel, with the same symbols each time."""
    return f"{text}\n{_NVRTC_ANCHOR}"


def naming(kernel: str) -> str:
    """Return the lines of C++ that instantiate a kernel and make a variable of its address, whose
    value in PTX is the symbol."""
    return f"\n{_ANCHOR}{_named(VARIABLE, kernel)}"


def naming_all(kernels: Sequence[str]) -> str:
    """Return `naming` of the kernels of a unit."""
    wanted = f"#if !defined({ONLY}) || {ONLY} =="
    lines = (
        f"{wanted} {number}\n{_named(f'{VARIABLE}_{number}', kernel)}#endif\n"
        for number, kernel in enumerate(kernels)
    )
    return f"\n{_ANCHOR}{''.join(lines)}"


def _named(variable: str, kernel: str) -> str:
    return f'extern "C" __device__ auto *const {variable} = &{kernel.strip()};\n'


def number_of(recipe: Recipe) -> int:
    """Return the number of a recipe's kernel in its unit."""
    return recipe.unit.index(recipe.symbol)


def take_symbol(recipe: Recipe) -> tuple[str, ...]:
    """Return the arguments for sed that move the variable's line out of PTX, to `SYMBOL_FILE`; in a
    unit also to `ENTRY_FILE`, and the other kernels' lines nowhere."""
    taken = rf's/.* = ([^ ;]+);.*/.asciz "\1"/w {SYMBOL_FILE}'
    if not recipe.unit:
        return ("-e", rf"/\.u64 {VARIABLE} = /{{{taken}", "-e", "d}")
    own = rf"/\.u64 {VARIABLE}_{number_of(recipe)} = /{{{taken}"
    entry = rf's/\.asciz "(.*)"/-Xptxas -e -Xptxas \1/w {ENTRY_FILE}'
    return ("-e", own, "-e", entry, "-e", "d}", "-e", rf"/\.u64 {VARIABLE}_[0-9]+ = /d")


def symbol_of(recipe: Recipe, work: str) -> str:
    """Return the symbol of a recipe's kernel, whose code was made in `work`; "": not known."""
    if not is_looked_up(recipe):
        return recipe.symbol
    found = _SYMBOL.fullmatch(try_read_text(os.path.join(work, SYMBOL_FILE)) or "")
    return found[1] if found else ""
