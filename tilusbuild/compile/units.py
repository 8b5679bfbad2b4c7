"""The steps that programs share: the first program runs them, the others read their outputs.

Programs of one source share the code of an architecture, whatever other architectures each has and
however each launches its kernel. Programs of a unit share the front end's PTX; its failure is
stored as well: each program then runs the step alone. A key is the digest of the commands, the
source, the headers and the tools. The stores only save work, and are limited to `MAX_KEPT` bytes on
disk, that of units to `MAX_IN_MEMORY` in a process.

Each program gives ptxas only its own kernel of the unit's PTX. ptxas parses its input in full even
if an option names one kernel: 2.0 s instead of 0.4 s for 60 kernels. Removing the other kernels
must not change a byte of the code, so a kernel stays if anything else in the PTX names it, and all
of them stay if the product holds line tables or PTX. `compile.sh` gives ptxas the full PTX.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from tilusbuild.compile.kernel_names import VARIABLE, find_unit_index
from tilusbuild.compile.model import Recipe, Step
from tilusbuild.state.envelope import StepStore
from tilusbuild.state.files import sha256_text

MAX_KEPT = 1 << 30
MAX_IN_MEMORY = 64 << 20
"""Bytes in the directory, and of the entries used last in memory. Programs of a unit are mostly
built in turn, and each would read and digest the unit's PTX again: tens of megabytes."""


class PtxSpan(NamedTuple):
    """A kernel in PTX: its symbol, and the offsets in bytes at which its declaration or definition
    begins and ends."""

    symbol: str
    begin: int
    end: int


class UnitOutput(Struct, frozen=True):
    """The output and the log of a step."""

    output: bytes | None
    """None if the step failed for the unit: each program then runs the step alone."""
    log: str
    kernels: Sequence[PtxSpan] = ()
    """The kernels of PTX output; a program needs one of them."""


class Code(Struct, frozen=True):
    """The device code of one architecture: a cubin, and its PTX and `SYMBOL_FILE` if a program has
    asked for them."""

    files: Mapping[str, bytes]
    """By name; those of a cubin and of PTX have an ending only."""
    log: str


class UnitSteps(Struct):
    """The shared steps of one program, in the stores of its build: of units, and of code."""

    tools: str = ""
    """The lines of `options.txt` on the tools."""
    store: StepStore = field(default_factory=StepStore)
    codes: StepStore = field(default_factory=StepStore)
    used: set[str] = field(default_factory=set)
    """The keys that the program has read."""

    def load_code(
        self, recipe: Recipe, name: str, names: Set[str], make: Callable[[], Code]
    ) -> Code:
        """Return the code of the architecture `name`, with files `names` at least, as `load_or_run`
        does."""
        archs = tuple(arch for arch in recipe.archs if arch.name == name)
        # The commands of a program that has this architecture alone are those of the key.
        options = replace(recipe.options, compress=False)
        alone = replace(recipe, archs=archs, ptx=False, options=options)
        steps = recipe.pipeline.list_commands(alone)
        key = self._use_key(recipe, [word for step in steps if step.code for word in step.argv])

        def make_compressed() -> bytes:
            return zlib.compress(msgspec.msgpack.encode(make()), 1)

        # Twice: a program without PTX, or without a C++ name, has stored fewer files.
        for _ in range(2):
            encoded = zlib.decompress(self.codes.get_or_make(key, make_compressed))
            code = msgspec.msgpack.decode(encoded, type=Code)
            if names <= code.files.keys():
                break
            self.codes.drop_output(key)
        return code

    def load_or_run(self, recipe: Recipe, step: Step, make: Callable[[], UnitOutput]) -> UnitOutput:
        """Return the step's output from the store; if the store has none, return what `make`
        returns, and store it. Add the key to `used`. Raises what `make` raises."""
        # The kernel's own name is not in the key: the source names all kernels of the unit.
        key = self._use_key(recipe, step.argv)
        encoded = self.store.get_or_make(key, lambda: msgspec.msgpack.encode(make()))
        return msgspec.msgpack.decode(encoded, type=UnitOutput)

    def _use_key(self, recipe: Recipe, argv: Sequence[str]) -> str:
        """Return the key of what these words make of a recipe's source; add it to `used`."""
        parts = [*argv, recipe.source, recipe.includes.digest or "", self.tools]
        for name, text in sorted(recipe.headers.items()):
            parts += (name, text)
        self.used.add(key := sha256_text("\0".join(parts)))
        return key

    def forget_used(self) -> None:
        """Remove the outputs that the program read, so that the next compile runs the steps."""
        for key in self.used:
            self.store.drop_output(key)
            self.codes.drop_output(key)


def trim_store(directory: str) -> None:
    """Remove the oldest files above `MAX_KEPT` bytes from a store's directory."""
    with suppress(OSError):
        files = [(entry.stat(), entry.path) for entry in os.scandir(directory)]
        total = sum(stat.st_size for stat, _ in files)
        for stat, path in sorted(files, key=lambda file: file[0].st_mtime_ns):
            if total <= MAX_KEPT:
                break
            os.unlink(path)
            total -= stat.st_size


# `.visible .entry _Z5saxpyi(`, a kernel's first line: nvcc indents everything inside of functions.
_ENTRY = re.compile(rb"^\.[a-z]+ \.entry ([^\s(]+)\s*\(", re.MULTILINE)
# A definition ends at the line `}`, a declaration at `;`. Inline assembly before that is skipped,
# since its lines may be braces.
_ENTRY_END = re.compile(rb"^(?:\}|;|\s*// begin inline asm$)", re.MULTILINE)
_END_OF_ASM = b"// end inline asm"
_COMMENT = re.compile(rb"//[^\n]*")
_VARIABLE_LINE = re.compile(rb"^.* %s_\d+ = .*\n" % VARIABLE.encode(), re.MULTILINE)
_WORD = re.compile(rb"[\w$]+")
_DEBUG_DIRECTIVE = re.compile(rb"^\s*\.(?:section|loc)\b", re.MULTILINE)


def find_entries(ptx: bytes) -> list[PtxSpan]:
    """Return the kernels of nvcc's PTX in order; none if debug information refers to them, or if
    the end of one is not found."""
    if _DEBUG_DIRECTIVE.search(ptx):
        return []
    entries: list[PtxSpan] = []
    offset = 0
    while match := _ENTRY.search(ptx, offset):
        offset = match.end()
        while (end_match := _ENTRY_END.search(ptx, offset)) and end_match[0].endswith(b"asm"):
            offset = ptx.find(_END_OF_ASM, end_match.end())
            if offset < 0:
                return []
        # PTX that is cut short or not understood has no entries: programs take it whole.
        if end_match is None:
            return []
        offset = end_match.end()
        entries.append(PtxSpan(match[1].decode(), match.start(), offset))
    return entries


def extract_kernel(recipe: Recipe, ptx: bytes, kernels: Sequence[PtxSpan]) -> bytes:
    """Return the unit's PTX without the kernels that the recipe's program does not need. `kernels`
    are those of `find_entries(ptx)`.

    All are kept if the product holds PTX, or if something else names one that would be removed.
    """
    # `.global .align 8 .u64 tilus_kernel_3 = _Z5saxpyi;` says which kernel is the program's.
    prefix = b" %s_%d = " % (VARIABLE.encode(), find_unit_index(recipe))
    prefix_offset = ptx.find(prefix)
    symbol_end = ptx.find(b";", prefix_offset)
    if recipe.ptx or prefix_offset < 0 or symbol_end < 0:
        return ptx
    own_symbol = ptx[prefix_offset + len(prefix) : symbol_end]
    kept_pieces, kept_from = [], 0
    for kernel in kernels:
        if kernel.symbol.encode() != own_symbol:
            kept_pieces.append(ptx[kept_from : kernel.begin])
            kept_from = kernel.end
    remaining = b"".join((*kept_pieces, ptx[kept_from:]))
    # The variables name every kernel, and comments do not matter.
    searched_text = _COMMENT.sub(b"", _VARIABLE_LINE.sub(b"", remaining))
    removed_symbols = {kernel.symbol.encode() for kernel in kernels} - {own_symbol}
    # Splitting into words is the slow part, so the cheap substring test comes first.
    possibly_named = {symbol for symbol in removed_symbols if symbol in searched_text}
    if possibly_named and not possibly_named.isdisjoint(_WORD.findall(searched_text)):
        return ptx
    return remaining
