"""The steps that the programs of a unit share: made by the first of them, kept for the others.

What such a step makes follows from its command, the source, the headers and the tools, and its key
is the digest of all four. Kept is also that it failed for the whole unit, which is a result: then
each program makes its own. The store only saves work; it is held to a size, in memory to another.

Of a unit's PTX, each program gives ptxas only its own kernel: ptxas reads all that it is given,
though its options name one kernel: of 60 kernels that took 2.0 s where 0.4 are enough. What is
left out changes no byte of the program's code. So it is only what nothing else in the PTX names,
and nothing at all where line tables, or the PTX itself, are part of what is made. `compile.sh`
gives ptxas the whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

import msgspec
from msgspec import Struct, field

from tilusbuild.compile.kernel_names import VARIABLE, number_of
from tilusbuild.compile.model import Recipe, Step
from tilusbuild.state.envelope import StepStore
from tilusbuild.state.files import sha256_text

MAX_KEPT = 1 << 30
MAX_IN_MEMORY = 64 << 20
"""Bytes: in the directory, and of what was used last. The programs of a unit are mostly built in
turn, and each would read and digest its PTX again, which can be tens of megabytes."""

Span: TypeAlias = tuple[str, int, int]
"""A kernel's symbol, and where its declaration or definition begins and ends, in bytes."""


class Shared(Struct, frozen=True):
    """The output and the log of a step."""

    output: bytes | None
    """None: it does not compile for all programs together."""
    log: str
    kernels: Sequence[Span] = ()
    """Those of PTX that each program can do without, but for its own."""


class UnitSteps(Struct):
    """The shared steps of one program, in the store of its build."""

    store: StepStore
    tools: str
    """The lines of `options.txt` on the tools."""
    used: set[str] = field(default_factory=set)
    """The keys of what the program has had."""

    def get(self, recipe: Recipe, step: Step, make: Callable[[], Shared]) -> Shared:
        """Return what a step makes, made by `make` if it is not kept. Raises what `make` does."""
        parts = (*step.argv, recipe.source, recipe.includes.digest or "", self.tools)
        parts += tuple(text for header in sorted(recipe.headers.items()) for text in header)
        key = sha256_text("\0".join(parts))
        self.used.add(key)
        data = self.store.get_or_make(key, lambda: msgspec.msgpack.encode(make()))
        return msgspec.msgpack.decode(data, type=Shared)

    def drop(self) -> None:
        """Forget what the program was given, so that the next compile makes it again."""
        for key in self.used:
            self.store.drop_output(key)


def unit_store(directory: str) -> StepStore:
    """Return a store in `directory`, less the oldest of what is more than `MAX_KEPT`."""
    with suppress(OSError):
        found = [(each.stat(), each.path) for each in os.scandir(directory)]
        total = sum(stat.st_size for stat, _ in found)
        for stat, path in sorted(found, key=lambda each: each[0].st_mtime_ns):
            if total <= MAX_KEPT:
                break
            os.unlink(path)
            total -= stat.st_size
    return StepStore(directory, in_memory=MAX_IN_MEMORY)


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
