"""The parameters of a compiled kernel, held against the declared arguments.

A launch hands the driver a row of pointers, and nothing at run time notices when the kernel reads
them as something else. The cubin says how many bytes each parameter has, used or not; a missing or
an extra one, and a 32-bit integer declared as 64 bits, are found before anything runs.
"""

from __future__ import annotations

import struct

from tilusbuild.binary.cubin import open_cubin
from tilusbuild.runtime.dtypes import DTYPES
from tilusbuild.signature import Argument, Signature

# Attributes of `.nv.info.<kernel>`, undocumented: one entry a parameter (index, then offset and
# position in halves of a word, then the size above bit 18), and the bytes of all of them. A test
# holds them to kernels of known parameters.
_PARAMETER, _ALL_PARAMETERS = 0x17, 0x19
_SIZED = 4
_POINTER_BYTES = 8


def parameter_sizes(cubin: bytes, kernel: str) -> tuple[int, ...] | None:
    """The size of each parameter in bytes, in order; None when the cubin does not say it.

    Raises `BinaryError` for what is no cubin.
    """
    elf = open_cubin(cubin)
    section = elf.named(f".nv.info.{kernel}")
    if section is None:
        return None
    content = elf.content(section)
    sizes: dict[int, int] = {}
    total = at = 0
    while at + 4 <= len(content):
        form, attribute, value = struct.unpack_from("<BBH", content, at)
        at += 4
        if attribute == _ALL_PARAMETERS and form != _SIZED:
            total = value
        if form != _SIZED:
            continue
        if attribute == _PARAMETER and value == 12 and at + 12 <= len(content):
            _, place, word = struct.unpack_from("<III", content, at)
            sizes[place & 0xFFFF] = word >> 18
        at += value
    if sorted(sizes) != list(range(len(sizes))) or (total and not sizes):
        return None
    return tuple(sizes[index] for index in range(len(sizes)))


def parameter_problem(signature: Signature, sizes: tuple[int, ...] | None) -> str | None:
    """Why the kernel's parameters are not the declared arguments, as one line."""
    if sizes is None:
        return None
    arguments = signature.arguments
    if len(sizes) != len(arguments):
        names = ", ".join(argument.name for argument in arguments) or "none"
        return (
            f"the kernel takes {len(sizes)} parameters; {len(arguments)} arguments are declared "
            f"({names})"
        )
    for position, (argument, size) in enumerate(zip(arguments, sizes, strict=True), 1):
        if size != (declared := _bytes(argument)):
            return (
                f"parameter {position} of the kernel has {size} bytes; "
                f'"{argument.name}" is declared {argument.type_text()}, which has {declared}'
            )
    return None


def _bytes(argument: Argument) -> int:
    return DTYPES[argument.dtype].bytes if argument.dims is None else _POINTER_BYTES
