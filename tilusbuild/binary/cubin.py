"""Read the registers, stack and shared memory of each kernel, from a cubin and from ptxas' log.

A cubin is an ELF file of machine 190. Kernels are the function symbols with the entry flag.
`.nv.info` has attributes of symbols, `.nv.info.<kernel>` attributes of one kernel. The numbers of
the attributes are undocumented: a test compares them with ptxas' log over all architectures, and
with cubins of CUDA 12.9 (the older header layout) and 13.0. The log is the output of `ptxas -v`,
also as nvcc prints it; spills are in the log only.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from tilusbuild.binary.elf import MACHINE_CUDA, BinaryError, Elf, ElfSection

_ENTRY_FLAG = 0x10  # in a symbol's `other`: a kernel, not a device function
_RESERVED_SMEM_BYTES = 1024  # of a block, from sm_90 on

# Format, number, and 16 bits: for format 4 a size, which as many bytes follow, else the value.
_ATTRIBUTE = struct.Struct("<BBH")
_FORMAT_SIZED, _FORMAT_BYTE = 4, 2
_REGCOUNT, _FRAME_SIZE, _MIN_STACK_SIZE = 0x2F, 0x11, 0x12
_MAX_THREADS, _REQUIRED_THREADS = 0x05, 0x10
_BLOCKS_OF_CLUSTER = 0x3D
# `_PARAMETER` has three words for each parameter: an index; offset and position, 16 bits each;
# the size from bit 18 on. `_ALL_PARAMETERS` has the size of all parameters. Sizes are bytes.
_PARAMETER, _ALL_PARAMETERS = 0x17, 0x19

# In the header's flags: the suffix "a", before and since version 8 of the ABI.
_OLD_FLAG_A, _FLAG_A = 0x800, 0x8

_ABI_OF_CUDA_13 = 8  # the version in the header's `ident`; 7 up to CUDA 12
# Such as `Cuda compilation tools, release 13.0, V13.0.88`.
_TOOLKIT = re.compile(rb"Cuda compilation tools, [^\0]*V(\d+(?:\.\d+)+)")
_ARCH_OPTION = re.compile(rb"-arch[ =](sm_(\d{2,3})[af]?)(?![0-9a-z])")


class KernelUsage(Struct, frozen=True):
    """The resources of one kernel. Sizes are bytes.

    `stack` is a thread's stack with the functions that it calls, as far as ptxas knows them.
    `static_smem` is without the part that the driver reserves from sm_90 on. `max_threads` comes
    from `__launch_bounds__` or `__block_size__`, `cluster` from `__cluster_dims__`, in blocks.
    `parameters` are the parameters' sizes, None if the cubin does not record them.
    """

    name: str
    registers: int
    stack: int
    static_smem: int
    max_threads: int | None
    cluster: tuple[int, int, int] | None = None
    parameters: tuple[int, ...] | None = None


def read_cubin(data: bytes) -> tuple[KernelUsage, ...]:
    """Return the kernels of a cubin, in the order of its symbol table. Raises `BinaryError`."""
    elf = open_cubin(data)
    table = elf.find_section(".symtab")
    if table is None:
        raise BinaryError("the cubin has no symbols")
    symbols = list(elf.read_symbols(table))
    kernels = {
        index: symbol.name
        for index, symbol in enumerate(symbols)
        if symbol.is_function and symbol.other & _ENTRY_FLAG
    }
    symbol_attributes = _group_by_symbol(elf)
    sections = {section.name: section for section in elf.sections}
    # With such a section, a kernel's own section includes the driver's part, which ptxas does not
    # report.
    has_reserved_part = any(name.startswith(".nv.shared.reserved") for name in sections)
    reserved_bytes = _RESERVED_SMEM_BYTES if has_reserved_part else 0
    return tuple(
        _read_usage(elf, name, symbol_attributes.get(index, {}), sections, reserved_bytes)
        for index, name in kernels.items()
    )


def open_cubin(data: bytes, base: int = 0) -> Elf:
    """Return the ELF view of a cubin. Raises `BinaryError` for anything else."""
    elf = Elf(data, base)
    if elf.machine != MACHINE_CUDA:
        raise BinaryError("an ELF file, but not a cubin")
    return elf


def read_cubin_arch(elf: Elf) -> str:
    """Return the name of a cubin's architecture.

    The header has its number. The suffix is in the note of ptxas since CUDA 12.8, and before that
    in a flag for `a`.
    """
    if elf.ident[8] < _ABI_OF_CUDA_13:
        number, flag_a = elf.flags & 0xFF, _OLD_FLAG_A
    else:
        number, flag_a = elf.flags >> 8 & 0xFFFF, _FLAG_A
    note = elf.find_section(".note.nv.tkinfo")
    if note is not None:
        # The note has ptxas' command, `… -arch sm_90a …`, in which the last option counts.
        options = _ARCH_OPTION.findall(elf.read_section(note)[:4096])
        if options:
            name, digits = options[-1]
            if int(digits) == number:
                return str(name, "ascii")
    return f"sm_{number}a" if elf.flags & flag_a else f"sm_{number}"


def read_toolkit(data: bytes) -> str:
    """Return the version of the CUDA toolkit that made a cubin: that of ptxas' note, else the first
    one whose drivers load cubins of its ABI. Raises `BinaryError`."""
    elf = open_cubin(data)
    note = elf.find_section(".note.nv.tkinfo")
    if note is not None and (match := _TOOLKIT.search(elf.read_section(note)[:4096])):
        return match[1].decode()
    return "12.0" if elf.ident[8] < _ABI_OF_CUDA_13 else "13.0"


def _group_by_symbol(elf: Elf) -> dict[int, dict[int, int]]:
    """Return the attributes of each symbol, by its index: attribute number → value."""
    by_symbol: dict[int, dict[int, int]] = {}
    section = elf.find_section(".nv.info")
    if section is not None:
        for attribute, value in _iterate_attributes(elf.read_section(section)):
            if len(value) == 2:  # a symbol's index, and a number
                by_symbol.setdefault(value[0], {})[attribute] = value[1]
    return by_symbol


def _read_usage(
    elf: Elf,
    name: str,
    symbol_attributes: dict[int, int],
    sections: dict[str, ElfSection],
    reserved_bytes: int,
) -> KernelUsage:
    """Return the resources of one kernel. `symbol_attributes` are those of its symbol,
    `reserved_bytes` the shared memory that the driver takes of its section. Raises
    `BinaryError`."""
    text = sections.get(f".text.{name}")
    shared = sections.get(f".nv.shared.{name}")
    info = sections.get(f".nv.info.{name}")
    attribute_rows = [*_iterate_attributes(elf.read_section(info))] if info is not None else []
    kernel_attributes = dict(attribute_rows)
    block = kernel_attributes.get(_REQUIRED_THREADS) or kernel_attributes.get(_MAX_THREADS, ())
    cluster = kernel_attributes.get(_BLOCKS_OF_CLUSTER, ())
    if text is None:
        raise BinaryError(f"kernel {name} has no code")
    return KernelUsage(
        name=name,
        # Without the attribute, the number is in the upper byte of the code section's `info`.
        registers=symbol_attributes.get(_REGCOUNT, text.info >> 24),
        stack=max(symbol_attributes.get(_MIN_STACK_SIZE, 0), symbol_attributes.get(_FRAME_SIZE, 0)),
        static_smem=max(0, shared.size - reserved_bytes) if shared is not None else 0,
        max_threads=math.prod(block) if len(block) == 3 else None,
        cluster=(cluster[0], cluster[1], cluster[2]) if len(cluster) == 3 else None,
        parameters=_read_parameter_sizes(attribute_rows) if info is not None else None,
    )


def _read_parameter_sizes(
    attribute_rows: Iterable[tuple[int, tuple[int, ...]]],
) -> tuple[int, ...] | None:
    """Return the bytes of each parameter in order; None if the cubin does not record all of
    them."""
    sizes: dict[int, int] = {}
    total_bytes = 0
    for attribute, value in attribute_rows:
        if attribute == _PARAMETER and len(value) == 3:
            _, offset_and_position, size_and_flags = value
            sizes[offset_and_position & 0xFFFF] = size_and_flags >> 18
        elif attribute == _ALL_PARAMETERS:
            total_bytes = max(value, default=0)
    has_gaps = sorted(sizes) != list(range(len(sizes)))
    if has_gaps or (total_bytes and not sizes):
        return None
    return tuple(sizes[index] for index in range(len(sizes)))


def _iterate_attributes(content: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each attribute's number and its value as 32-bit words (one for a short value). Values
    of more than three words are skipped. Raises `BinaryError`."""
    offset, end = 0, len(content)
    while offset + _ATTRIBUTE.size <= end:
        form, attribute, size_or_value = _ATTRIBUTE.unpack_from(content, offset)
        offset += _ATTRIBUTE.size
        if form != _FORMAT_SIZED:
            yield attribute, (size_or_value & 0xFF if form == _FORMAT_BYTE else size_or_value,)
            continue
        if offset + size_or_value > end:
            raise BinaryError("an attribute of a kernel is cut off")
        # Longer values are lists of addresses, which no function here uses.
        if size_or_value <= 3 * 4:
            yield attribute, struct.unpack_from(f"<{size_or_value // 4}I", content, offset)
        offset += size_or_value


# `ptxas info : Compiling entry function 'saxpy' for 'sm_90a'`
_ENTRY_LINE = re.compile(r"Compiling entry function '(?P<kernel>[^']+)' for '(?P<arch>[^']+)'")
_FRAME_LINE = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", re.ASCII
)
# `ptxas info : Used 32 registers, used 1 barriers, 64 bytes cumulative stack size, 4+0 bytes smem`
_REGISTERS = re.compile(r"Used (\d+) registers", re.ASCII)
_BARRIERS = re.compile(r"used (\d+) barriers", re.ASCII)
_STACK = re.compile(r"(\d+) bytes cumulative stack size", re.ASCII)
_SMEM = re.compile(r"(\d+)(?:\+\d+)? bytes smem", re.ASCII)


class PtxasUsage(Struct, frozen=True):
    """The lines of ptxas' log about one kernel for one architecture. Sizes are bytes.

    Stack and spills are a thread's. `static_smem` is a block's, without the driver's part.
    """

    arch: str
    kernel: str
    registers: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    static_smem: int = 0
    barriers: int = 0

    @property
    def spill_bytes(self) -> int:
        return self.spill_stores + self.spill_loads


def parse_ptxas(log: str) -> tuple[PtxasUsage, ...]:
    """Return the kernels in a compiler's log, in the order of the log.

    A kernel's lines follow the one that names it. Its stack is the largest that any line reports,
    its spills are the sums.
    """
    kernels: list[dict[str, Any]] = []
    for line in log.splitlines():
        if entry_match := _ENTRY_LINE.search(line):
            kernels.append(
                {**entry_match.groupdict(), "stack": 0, "spill_stores": 0, "spill_loads": 0}
            )
        elif not kernels:
            continue
        elif frame_match := _FRAME_LINE.search(line):
            stack, stores, loads = map(int, frame_match.groups())
            kernels[-1]["stack"] = max(kernels[-1]["stack"], stack)
            kernels[-1]["spill_stores"] += stores
            kernels[-1]["spill_loads"] += loads
        elif registers_match := _REGISTERS.search(line):
            kernels[-1] |= {
                "registers": int(registers_match[1]),
                "stack": max(kernels[-1]["stack"], _find_number(_STACK, line)),
                "static_smem": _find_number(_SMEM, line),
                "barriers": _find_number(_BARRIERS, line),
            }
    return tuple(PtxasUsage(**kernel) for kernel in kernels)


def _find_number(pattern: re.Pattern[str], line: str) -> int:
    match = pattern.search(line)
    return int(match[1]) if match else 0
