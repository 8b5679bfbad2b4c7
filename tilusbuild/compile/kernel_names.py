"""Kernels that are called by a C++ name: `marlin::Marlin<256, 4>`, or `::saxpy`.

A manifest names a kernel by its `extern "C"` name, or by a C++ expression such as a template's
instance. The source then gets a variable with the kernel's address, which instantiates the
template; the compiler writes the kernel's symbol as the variable's value into the PTX. The symbol
is known only after the compile: `SYMBOL_FILE` holds it, and the program's own object includes that
file, so that all schedules of an instance share one launcher.

The source of a *unit* names the kernels of several programs. One PTX is compiled for all of them,
and `ENTRY_FILE` makes each program's ptxas compile its own kernel. With the macro `ONLY` defined as
a kernel's number, the source names that kernel alone.
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
"""The name of the launcher's string with the symbol, and of the variable in PTX; in a unit the
kernel's number follows."""
ONLY = "TILUS_KERNEL"
# An external function. nvcc derives the names of internal linkage from the first such function,
# and from its process id in a source of nothing but templates. PTX holds no code of the function.
_ANCHOR = 'extern "C" void tilus_unit(void) {}\n'
# The same for NVRTC, which compiles no functions of the host.
_NVRTC_ANCHOR = _ANCHOR.replace("void", "__device__ void", 1)

_C_NAME = re.compile(r"[A-Za-z_]\w*")
_MANGLED = re.compile(r"_Z([NL]?)(?=\d)")
_SYMBOL = re.compile(r'\s*\.asciz "([^"\\]+)"\n?')


def is_cpp_name(kernel: str) -> bool:
    """Return whether a manifest's kernel name is a C++ expression and not a C identifier."""
    return bool(kernel) and _C_NAME.fullmatch(kernel) is None


def strip_template_arguments(kernel: str) -> str:
    """Return a kernel's name without its template arguments, which differ between schedules."""
    return kernel.partition("<")[0].strip().removeprefix("::") if is_cpp_name(kernel) else kernel


def demangle_name(symbol: str) -> str:
    """Return the C++ name of a mangled function as a manifest writes it, without unnamed
    namespaces and template arguments; "" for a C name."""
    match = _MANGLED.match(symbol)
    if match is None:
        return ""
    parts: list[str] = []
    offset = match.end()
    # `_Z5saxpyi` has one part, `_ZN2v25blend5saxpyEi` several: each is a length and a name.
    while not parts or match[1] == "N":
        length_match = re.match(r"\d+", symbol[offset:])
        if length_match is None:
            break
        name_offset = offset + length_match.end()
        offset = name_offset + int(length_match[0])
        parts.append(symbol[name_offset:offset])
    named_parts = [part for part in parts if not part.startswith(("_GLOBAL__N_", "_INTERNAL_"))]
    # With "::" in front, since a plain name in a manifest means a kernel with C linkage.
    if len(named_parts) == 1:
        return f"::{named_parts[0]}"
    return "::".join(named_parts)


def is_symbol_looked_up(recipe: Recipe) -> bool:
    """Return whether the kernel's symbol is known only after the compile."""
    return is_cpp_name(recipe.symbol) or bool(recipe.unit)


def anchor_kernel(text: str) -> str:
    """Return the source `text` with an anchor for NVRTC, so that symbols are the same in each
    compile. NVRTC instantiates the kernel itself."""
    return f"{text}\n{_NVRTC_ANCHOR}"


def format_anchor(kernel: str) -> str:
    """Return C++ that instantiates a kernel and defines the variable whose value in PTX is the
    kernel's symbol."""
    return f"\n{_ANCHOR}{_format_variable(VARIABLE, kernel)}"


def format_unit_anchors(kernels: Sequence[str]) -> str:
    """Return C++ that does for the kernels of a unit as `format_anchor` does for one: each kernel
    has a variable with its number, and `ONLY` selects one kernel."""
    condition = f"#if !defined({ONLY}) || {ONLY} =="
    lines = (
        f"{condition} {number}\n{_format_variable(f'{VARIABLE}_{number}', kernel)}#endif\n"
        for number, kernel in enumerate(kernels)
    )
    return f"\n{_ANCHOR}{''.join(lines)}"


def _format_variable(variable: str, kernel: str) -> str:
    return f'extern "C" __device__ auto *const {variable} = &{kernel.strip()};\n'


def find_unit_index(recipe: Recipe) -> int:
    """Return the number of a recipe's kernel in its unit."""
    return recipe.unit.index(recipe.symbol)


def make_symbol_edits(recipe: Recipe) -> tuple[str, ...]:
    """Return arguments for sed that take the symbol out of PTX.

    They remove the line of the variable `VARIABLE` and write its value to `SYMBOL_FILE`. If the
    source names the kernels of a unit of programs, they also write `ENTRY_FILE` and remove the
    other kernels' variables.
    """
    # `.global .align 8 .u64 tilus_kernel = _Z5saxpyi;` becomes `.asciz "_Z5saxpyi"` in the file.
    write_symbol = rf's/.* = ([^ ;]+);.*/.asciz "\1"/w {SYMBOL_FILE}'
    # sed's `w` writes a file even if no line matches: an empty file means that there is no kernel.
    if not recipe.unit:
        return ("-e", rf"/\.u64 {VARIABLE} = /{{{write_symbol}", "-e", "d}")
    on_own_line = rf"/\.u64 {VARIABLE}_{find_unit_index(recipe)} = /{{{write_symbol}"
    write_entry = rf's/\.asciz "(.*)"/-Xptxas -e -Xptxas \1/w {ENTRY_FILE}'
    remove_others = rf"/\.u64 {VARIABLE}_[0-9]+ = /d"
    return ("-e", on_own_line, "-e", write_entry, "-e", "d}", "-e", remove_others)


def find_symbol(recipe: Recipe, work: str) -> str:
    """Return the symbol of a recipe's kernel after its compile in the directory `work`; "" if it is
    not known there."""
    if not is_symbol_looked_up(recipe):
        return recipe.symbol
    match = _SYMBOL.fullmatch(try_read_text(os.path.join(work, SYMBOL_FILE)) or "")
    return match[1] if match else ""
