"""What a shared library asks of the machine that loads it, and what it offers: for preflight.

From the section tables, which a linker leaves even in a stripped library: the libraries it needs,
the highest symbol versions of glibc and libstdc++, the instruction set that it is marked with, the
exported names. Layout: the System V ABI with its x86-64 supplement ("Program Property"), and the
Linux Standard Base, "Symbol Versioning".
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from tilusbuild.binary.elf import MACHINES, BinaryError, Elf

_DYNAMIC = struct.Struct("<qQ")
_VERNEED = struct.Struct("<HHIII")
_VERNAUX = struct.Struct("<IHHII")
_DT_NEEDED = 1
_MOST_VERSIONS = 4096
_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?")
_GLIBCXX = re.compile(r"GLIBCXX_(\d+)\.(\d+)(?:\.(\d+))?")
_NOTE = struct.Struct("<III4s")  # sizes of name and content, kind, "GNU\0"
_PROPERTY = struct.Struct("<II")
_PROPERTIES = 5
_ISA_NEEDED = 0xC0008002
_LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
"""The bits of GNU_PROPERTY_X86_ISA_1_NEEDED, from the lowest."""


@dataclass(frozen=True, slots=True)
class Needs:
    """A library's demands. `glibc` is the lowest version that loads it, as (2, 34), or None;
    `libstdcxx` likewise, as (3, 4, 30); `isa` the x86-64 level that it is marked with, or None:
    compilers mark it only when told to (`-mneeded`).

    `versions` are all the symbol versions it asks for, sorted ("GLIBCXX_3.4.30" …); `exports` are
    the names that it defines for others.
    """

    machine: str
    libraries: tuple[str, ...]
    glibc: tuple[int, int] | None
    versions: tuple[str, ...]
    exports: frozenset[str]
    libstdcxx: tuple[int, int, int] | None = None
    isa: str | None = None

    def missing(self, *names: str) -> tuple[str, ...]:
        """Return those of `names` that the library does not export."""
        return tuple(name for name in names if name not in self.exports)


def read_needs(data: bytes) -> Needs:
    """Return what an x86-64 or aarch64 shared library needs and exports. Raises `BinaryError`."""
    elf = Elf(data)
    if elf.machine not in MACHINES:
        raise BinaryError("not a library for x86-64 or aarch64")
    versions = sorted(_versions(elf))
    glibc = [(int(m[1]), int(m[2])) for v in versions if (m := _GLIBC.fullmatch(v))]
    cxx = [(int(m[1]), int(m[2]), int(m[3] or 0)) for v in versions if (m := _GLIBCXX.fullmatch(v))]
    return Needs(
        machine=MACHINES[elf.machine],
        libraries=_libraries(elf),
        glibc=max(glibc, default=None),
        versions=tuple(versions),
        exports=_exports(elf),
        libstdcxx=max(cxx, default=None),
        isa=_isa(elf),
    )


def _libraries(elf: Elf) -> tuple[str, ...]:
    section = elf.named(".dynamic")
    if section is None:
        raise BinaryError("not a shared library")
    strings = elf.strings(section.link)
    content = elf.content(section)
    names = []
    for tag, value in _DYNAMIC.iter_unpack(content[: len(content) - len(content) % _DYNAMIC.size]):
        if tag == 0:
            break
        if tag == _DT_NEEDED:
            names.append(elf.text(strings, value))
    return tuple(names)


def _versions(elf: Elf) -> set[str]:
    section = elf.named(".gnu.version_r")
    if section is None:
        return set()
    strings, content = elf.strings(section.link), elf.content(section)
    names: set[str] = set()
    at = 0
    for _ in range(_MOST_VERSIONS):
        _, count, _, auxiliary, onward = _unpack(_VERNEED, content, at)
        inner = at + auxiliary
        for _ in range(count):
            _, _, _, name, step = _unpack(_VERNAUX, content, inner)
            names.add(elf.text(strings, name))
            if not step:
                break
            inner += step
        if not onward:
            break
        at += onward
    return names


def _unpack(layout: struct.Struct, content: bytes, at: int) -> tuple[int, ...]:
    if at + layout.size > len(content):
        raise BinaryError("the table of symbol versions is cut off")
    return layout.unpack_from(content, at)


def _exports(elf: Elf) -> frozenset[str]:
    table = elf.named(".dynsym")
    if table is None:
        return frozenset()
    return frozenset(s.name for s in elf.symbols(table) if s.is_visible and s.name)


def _isa(elf: Elf) -> str | None:
    section = elf.named(".note.gnu.property")
    content = (
        elf.content(section) if section is not None and MACHINES[elf.machine] == "x86_64" else b""
    )
    if len(content) < _NOTE.size:
        return None
    _, size, kind, owner = _NOTE.unpack_from(content)
    if kind != _PROPERTIES or owner != b"GNU\0":
        return None
    at, end = _NOTE.size, min(len(content), _NOTE.size + size)
    while at + _PROPERTY.size <= end:
        name, length = _PROPERTY.unpack_from(content, at)
        at += _PROPERTY.size
        if name == _ISA_NEEDED and length == 4 and at + length <= end:
            bits = int.from_bytes(content[at : at + 4], "little") & (1 << len(_LEVELS)) - 1
            return _LEVELS[bits.bit_length() - 1] if bits else None
        at += length + -length % 8
    return None
