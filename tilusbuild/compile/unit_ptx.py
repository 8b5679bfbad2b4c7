"""The PTX of a unit, less the kernels of other programs.

ptxas reads all that it is given, though it is told to compile one kernel: of 60 kernels that took
2.0 s where 0.4 are enough. What is left out changes no byte of the program's code. So it is only
what nothing else in the PTX names, and nothing at all where line tables, or the PTX itself, are
part of what is made. `compile.sh` gives ptxas the whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from tilusbuild.compile.kernel_names import VARIABLE, number_of
from tilusbuild.compile.model import Recipe

Span: TypeAlias = tuple[str, int, int]
"""A kernel's symbol, and where its declaration or definition begins and ends, in bytes."""

_ENTRY = re.compile(rb"^\.[a-z]+ \.entry ([^\s(]+)\s*\(", re.MULTILINE)
# Of a definition or a declaration; or inline assembly, in which any line may be a brace.
_END = re.compile(rb"^(?:\}|;|\s*// begin inline asm$)", re.MULTILINE)
_AFTER_ASM = b"// end inline asm"
_COMMENT = re.compile(rb"//[^\n]*")
_NAMED = re.compile(rb"^.* %s_\d+ = .*\n" % VARIABLE.encode(), re.MULTILINE)
_WORD = re.compile(rb"[\w$]+")
_DEBUG = re.compile(rb"^\s*\.(?:section|loc)\b", re.MULTILINE)


def entries(ptx: bytes) -> list[Span]:
    """Return the kernels of PTX as nvcc writes it, in order; none where debug information refers to
    them, or where one does not end."""
    if _DEBUG.search(ptx):
        return []
    found: list[Span] = []
    at = 0
    while match := _ENTRY.search(ptx, at):
        at = match.end()
        while (end := _END.search(ptx, at)) and end[0].endswith(b"asm"):
            at = ptx.find(_AFTER_ASM, end.end())
            if at < 0:
                return []
        if end is None:
            return []
        at = end.end()
        found.append((match[1].decode(), match.start(), at))
    return found


def of_one(recipe: Recipe, ptx: bytes, kernels: Sequence[Span]) -> bytes:
    """Return what the recipe's program needs of its unit's PTX, whose kernels these are."""
    named = b" %s_%d = " % (VARIABLE.encode(), number_of(recipe))
    begin = ptx.find(named)
    end_of_name = ptx.find(b";", begin)
    if recipe.ptx or begin < 0 or end_of_name < 0:
        return ptx
    own = ptx[begin + len(named) : end_of_name]
    kept, at = [], 0
    for name, start, end in kernels:
        if name.encode() != own:
            kept.append(ptx[at:start])
            at = end
    left = b"".join((*kept, ptx[at:]))
    rest = _COMMENT.sub(b"", _NAMED.sub(b"", left))
    others = {each for name, _, _ in kernels if (each := name.encode()) in rest} - {own}
    # Taking all words apart costs more than the rest, and mostly no other name is there at all.
    return ptx if others and not others.isdisjoint(_WORD.findall(rest)) else left
