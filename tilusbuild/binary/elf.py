"""ELF, 64 bit, little endian: section tables, and what a shared library needs and exports.

Offsets and sizes come from the file and are checked before use: what lies outside of the file is a
`BinaryError`, never a short slice. Sections may overlap, so all that is read of one file together
is bounded by a multiple of its size. Layout: the System V ABI, "Object Files" (gabi 4.1).

`read_needs` is for preflight, and uses the section tables, which a linker leaves even in a stripped
library: the libraries that it needs, the highest symbol versions of glibc and libstdc++, the
exported names. Layout: the System V ABI, and the Linux Standard Base, "Symbol Versioning".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from msgspec import Struct

from tilusbuild.errors import TilusbuildError

MAGIC = b"\x7fELF\x02\x01"
"""ELF, 64 bit, little endian."""

MACHINE_CUDA = 190
MACHINES = {62: "x86_64", 183: "aarch64"}

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_NOBITS = 8
_RELOCATABLE = (1).to_bytes(2, "little")
MAX_NAME_LENGTH = 1 << 16


class BinaryError(TilusbuildError):
    """The bytes are not what they should be: truncated, damaged, or of an unknown kind."""


def is_relocatable(elf: bytes) -> bool:
    """Return whether an ELF file is one for a linker, which no loader takes."""
    return elf[16:18] == _RELOCATABLE


class ElfSection(Struct, frozen=True):
    """A row of the section table. `size` is also that of a section without content (.bss)."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int


class Symbol(Struct, frozen=True):
    name: str
    info: int
    other: int
    section: int
    size: int

    @property
    def is_function(self) -> bool:
        return self.info & 0xF == 2

    @property
    def is_object(self) -> bool:
        return self.info & 0xF == 1

    @property
    def is_visible(self) -> bool:
        """Global or weak, and defined here."""
        return self.info >> 4 in (1, 2) and self.section != 0


class Elf:
    """An ELF file that starts at `base` in `data`. Raises `BinaryError` when it is not one."""

    def __init__(self, data: bytes, base: int = 0) -> None:
        if data[base : base + len(MAGIC)] != MAGIC:
            raise BinaryError("not a 64-bit little-endian ELF file")
        if len(data) - base < _HEADER.size:
            raise BinaryError("the ELF header is cut off")
        fields = _HEADER.unpack_from(data, base)
        self._data = data
        self._base = base
        self.ident: bytes = fields[0]
        self.machine: int = fields[2]
        self.flags: int = fields[7]
        self._programs = (fields[5], fields[9], fields[10])
        self._table = (fields[6], fields[11], fields[12])
        self._budget = 16 * (len(data) - base) + (1 << 16)
        self.sections = self._read_sections(fields[13])

    def content(self, section: ElfSection) -> bytes:
        """Return a section's bytes; none for a section that has no content in the file."""
        if section.kind == _NOBITS:
            return b""
        return self._slice(section.offset, section.size)

    def named(self, name: str) -> ElfSection | None:
        """Return the first section of that name."""
        return next((section for section in self.sections if section.name == name), None)

    def strings(self, index: int) -> bytes:
        """Return the content of a string table, by section index."""
        return self.content(self._at(index))

    def symbols(self, table: ElfSection) -> Iterator[Symbol]:
        """Yield the rows of a symbol table, in order and from row 0."""
        strings = self.strings(table.link)
        content = self.content(table)
        whole = len(content) - len(content) % _SYMBOL.size
        for name, info, other, section, _, size in _SYMBOL.iter_unpack(content[:whole]):
            yield Symbol(self.text(strings, name), info, other, section, size)

    def text(self, strings: bytes, offset: int) -> str:
        """Return the text that starts at `offset` in a string table."""
        end = strings.find(b"\0", offset, offset + MAX_NAME_LENGTH)
        if end < 0:
            raise BinaryError("a name has no end")
        self._spend(end - offset)
        return strings[offset:end].decode("utf-8", "backslashreplace")

    @property
    def size(self) -> int:
        """Bytes from the first of the header to the last that a table or a section takes."""
        return min(self.declared_size, len(self._data) - self._base)

    @property
    def declared_size(self) -> int:
        """What `size` would be if nothing were cut off: more than there is of a truncated file."""
        ends = [_HEADER.size]
        for offset, unit, count in (self._table, self._programs):
            ends.append(offset + unit * count)
        ends += [s.offset + s.size for s in self.sections if s.kind not in (0, _NOBITS)]
        return max(ends)

    def _at(self, index: int) -> ElfSection:
        if index >= len(self.sections):
            raise BinaryError(f"there is no section {index}")
        return self.sections[index]

    def _slice(self, offset: int, size: int) -> bytes:
        start = self._base + offset
        if start + size > len(self._data):
            raise BinaryError("a section lies outside of the file")
        self._spend(size)
        return self._data[start : start + size]

    def _read_sections(self, names: int) -> tuple[ElfSection, ...]:
        offset, unit, count = self._table
        if count and unit != _SECTION.size:
            raise BinaryError("the section table has an unknown layout")
        rows = list(_SECTION.iter_unpack(self._slice(offset, unit * count)))
        strings = b""
        if rows:
            if names >= count:
                raise BinaryError("the section table has no names")
            strings = self._slice(rows[names][4], rows[names][5])
        return tuple(
            ElfSection(self.text(strings, r[0]), r[1], r[2], r[4], r[5], r[6], r[7]) for r in rows
        )

    def _spend(self, count: int) -> None:
        self._budget -= count
        if self._budget < 0:
            raise BinaryError("the sections of the file overlap without end")


_DYNAMIC = struct.Struct("<qQ")
_DT_NEEDED = 1
_GLIBC = re.compile(rb"GLIBC_(\d{1,4})\.(\d{1,4})(?:\.\d+)?\0")
_GLIBCXX = re.compile(rb"GLIBCXX_(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?\0")
"""Versions of symbols that a library asks for: their names are in the table of its dynamic names,
where it has no others of this form."""


class Needs(Struct, frozen=True):
    """What a library needs of a host.

    `glibc` is the lowest version that loads it, as (2, 34), or None; `libstdcxx` likewise, as
    (3, 4, 30); `exports` are the names that it defines for others.
    """

    machine: str
    libraries: tuple[str, ...]
    glibc: tuple[int, int] | None
    exports: frozenset[str]
    libstdcxx: tuple[int, int, int] | None = None
    unwinds: bool = True
    """Whether a debugger and an exception find its unwind entries, if it has any: by an index that
    the linker makes."""

    def missing(self, *names: str) -> tuple[str, ...]:
        """Return those of `names` that the library does not export."""
        return tuple(name for name in names if name not in self.exports)


def read_needs(data: bytes) -> Needs:
    """Return what an x86-64 or aarch64 shared library needs and exports. Raises `BinaryError`."""
    elf = Elf(data)
    if elf.machine not in MACHINES:
        raise BinaryError("not a library for x86-64 or aarch64")
    section = elf.named(".gnu.version_r")
    names = elf.strings(section.link) if section is not None else b""
    glibc = [(int(a), int(b)) for a, b in _GLIBC.findall(names)]
    cxx = [(int(a), int(b), int(c or 0)) for a, b, c in _GLIBCXX.findall(names)]
    return Needs(
        machine=MACHINES[elf.machine],
        libraries=_libraries(elf),
        glibc=max(glibc, default=None),
        exports=_exports(elf),
        libstdcxx=max(cxx, default=None),
        unwinds=elf.named(".eh_frame_hdr") is not None or elf.named(".eh_frame") is None,
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


def _exports(elf: Elf) -> frozenset[str]:
    table = elf.named(".dynsym")
    if table is None:
        return frozenset()
    return frozenset(s.name for s in elf.symbols(table) if s.is_visible and s.name)
