"""Registers, stack, shared memory and barriers of each kernel, from a cubin's own tables.

A cubin is an ELF file of machine 190. Kernels are the function symbols that carry the entry flag;
`.nv.info` holds what concerns a symbol, `.nv.info.<kernel>` what the kernel says of itself. The
attributes' numbers are undocumented; they are held to ptxas's own log by a test over all
architectures, and to cubins of CUDA 12.9 (the older header layout) and 13.0.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tilusbuild.binary.elf import MACHINE_CUDA, BinaryError, Elf, Section

_ENTRY = 0x10  # in a symbol's `other`: a kernel, not a device function
_RESERVED_SMEM = 1024
_FUNC_BARRIERS_SHIFT, _FUNC_BARRIERS_MASK = 20, 0x7F

# The formats of an attribute: 4 has a size and then so many bytes, the others a 16-bit value.
_FORMAT_SIZED, _FORMAT_BYTE = 4, 2
_REGCOUNT, _FRAME_SIZE, _MIN_STACK_SIZE = 0x2F, 0x11, 0x12
_MAX_THREADS, _REQUIRED_THREADS, _NUM_BARRIERS = 0x05, 0x10, 0x4C

_ARCH_OPTION = re.compile(rb"-arch[ =](sm_(\d{2,3})[af]?)(?![0-9a-z])")


@dataclass(frozen=True, slots=True)
class KernelUsage:
    """What one kernel needs. Sizes are bytes.

    `stack` is what a thread needs with the functions it calls, as far as ptxas knows it;
    `static_smem` is without the part that the driver reserves from sm_90 on; `max_threads` is what
    the source promised with `__launch_bounds__` or `__block_size__`; `barriers` counts named ones.
    """

    name: str
    registers: int
    stack: int
    static_smem: int
    max_threads: int | None
    code_bytes: int
    barriers: int


def read_cubin(data: bytes) -> tuple[KernelUsage, ...]:
    """Return the kernels of a cubin, in the order of its symbol table. Raises `BinaryError`."""
    elf = open_cubin(data)
    table = elf.named(".symtab")
    if table is None:
        raise BinaryError("the cubin has no symbols")
    symbols = list(elf.symbols(table))
    kernels = {
        index: symbol.name
        for index, symbol in enumerate(symbols)
        if symbol.is_function and symbol.other & _ENTRY
    }
    of_symbol = _per_symbol(elf)
    sections = {section.name: section for section in elf.sections}
    reserved = _RESERVED_SMEM if any(n.startswith(".nv.shared.reserved") for n in sections) else 0
    return tuple(
        _usage(elf, name, of_symbol.get(index, {}), sections, reserved)
        for index, name in kernels.items()
    )


def open_cubin(data: bytes, base: int = 0) -> Elf:
    """Return the ELF view of a cubin. Raises `BinaryError` for anything else."""
    elf = Elf(data, base)
    if elf.machine != MACHINE_CUDA:
        raise BinaryError("an ELF file, but not a cubin")
    return elf


def cubin_arch(elf: Elf) -> tuple[str, bool]:
    """Return a cubin's architecture, and whether its suffix is known for certain.

    The header has the number. The suffix stands in the note that ptxas leaves since CUDA 12.8, and
    before that in a flag that knows `a` only.
    """
    old = elf.ident[8] < 8
    number = elf.flags & 0xFF if old else elf.flags >> 8 & 0xFFFF
    note = elf.named(".note.nv.tkinfo")
    if note is not None:
        options = _ARCH_OPTION.findall(elf.content(note)[:4096])
        if options and int(options[-1][1]) == number:
            return options[-1][0].decode("ascii"), True
    if elf.flags & (0x800 if old else 0x8):
        return f"sm_{number}a", True
    return f"sm_{number}", number < 90 or old


def _per_symbol(elf: Elf) -> dict[int, dict[int, int]]:
    """For each symbol's index, the attributes that concern it."""
    found: dict[int, dict[int, int]] = {}
    section = elf.named(".nv.info")
    if section is not None:
        for attribute, words in _attributes(elf.content(section)):
            if len(words) == 2:
                found.setdefault(words[0], {})[attribute] = words[1]
    return found


def _usage(
    elf: Elf, name: str, attributes: dict[int, int], sections: dict[str, Section], reserved: int
) -> KernelUsage:
    text = sections.get(f".text.{name}")
    shared = sections.get(f".nv.shared.{name}")
    info = sections.get(f".nv.info.{name}")
    own = dict(_attributes(elf.content(info))) if info is not None else {}
    bound = own.get(_REQUIRED_THREADS) or own.get(_MAX_THREADS)
    barriers = own.get(_NUM_BARRIERS)
    if text is None:
        raise BinaryError(f"kernel {name} has no code")
    in_flags = text.flags >> _FUNC_BARRIERS_SHIFT & _FUNC_BARRIERS_MASK
    return KernelUsage(
        name=name,
        registers=attributes.get(_REGCOUNT, text.info >> 24),
        stack=max(attributes.get(_MIN_STACK_SIZE, 0), attributes.get(_FRAME_SIZE, 0)),
        static_smem=max(0, shared.size - reserved) if shared is not None else 0,
        max_threads=bound[0] * bound[1] * bound[2] if bound and len(bound) == 3 else None,
        code_bytes=text.size,
        barriers=barriers[0] if barriers else in_flags,
    )


def _attributes(content: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each attribute's number and its value as 32-bit words (one for a short value)."""
    at, end = 0, len(content)
    while at + 4 <= end:
        form, attribute, value = struct.unpack_from("<BBH", content, at)
        at += 4
        if form != _FORMAT_SIZED:
            yield attribute, (value & 0xFF if form == _FORMAT_BYTE else value,)
            continue
        if at + value > end:
            raise BinaryError("an attribute of a kernel is cut off")
        # Only the short ones are asked for: long lists of addresses need not be unpacked.
        if value <= 12:
            yield attribute, struct.unpack_from(f"<{value // 4}I", content, at)
        at += value
