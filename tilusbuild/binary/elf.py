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
_NULL, _NOBITS = 0, 8  # SHT_NULL, SHT_NOBITS: sections without content in the file
_RELOCATABLE = (1).to_bytes(2, "little")  # ET_REL
MAX_NAME_LENGTH = 1 << 16


class BinaryError(TilusbuildError):
    """A binary file is truncated, damaged, or of an unknown kind."""


def is_relocatable(elf: bytes) -> bool:
    """Return whether an ELF file is relocatable: for a linker, and not to be loaded."""
    return elf[16:18] == _RELOCATABLE


class ElfSection(Struct, frozen=True):
    """A row of the section table. A section without content in the file (.bss) has a size, too."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int


class Symbol(Struct, frozen=True):
    """A row of a symbol table. `section` is the index of the section that defines the symbol."""

    name: str
    info: int
    other: int
    section: int
    size: int

    @property
    def is_function(self) -> bool:
        return self.info & 0xF == 2  # STT_FUNC

    @property
    def is_object(self) -> bool:
        return self.info & 0xF == 1  # STT_OBJECT

    @property
    def is_visible(self) -> bool:
        """Global or weak, and defined here."""
        return self.info >> 4 in (1, 2) and self.section != 0


class Elf:
    """An ELF file that starts at `base` in `data`. Raises `BinaryError` for any other data.

    Files are not trusted: sections may overlap, so that all reads together have a budget in bytes.
    """

    def __init__(self, data: bytes, base: int = 0) -> None:
        if data[base : base + len(MAGIC)] != MAGIC:
            raise BinaryError("not a 64-bit little-endian ELF file")
        if len(data) - base < _HEADER.size:
            raise BinaryError("the ELF header is cut off")
        self._data = data
        self._base = base
        self.ident: bytes
        self.machine: int
        self.flags: int
        # e_ident, e_type, e_machine, e_version, e_entry; then the tables' offsets and sizes.
        self.ident, _, self.machine, _, _, *tables = _HEADER.unpack_from(data, base)
        program_offset, section_offset, self.flags, _, *row_sizes, names_index = tables
        program_size, program_count, section_size, section_count = row_sizes
        # Each table is (offset in the file, bytes of a row, number of rows).
        self._program_table = (program_offset, program_size, program_count)
        self._section_table = (section_offset, section_size, section_count)
        # Sections of an honest file do not overlap. The budget is larger than the file, since
        # strings are read symbol by symbol.
        self._budget = 16 * (len(data) - base) + (1 << 16)
        self.sections = self._read_sections(names_index)

    def read_section(self, section: ElfSection) -> bytes:
        """Return the bytes of a section; b"" for a section without content in the file. Raises
        `BinaryError`."""
        if section.kind == _NOBITS:
            return b""
        return self._read_slice(section.offset, section.size)

    def find_section(self, name: str) -> ElfSection | None:
        """Return the first section with this name, or None."""
        return next((section for section in self.sections if section.name == name), None)

    def read_strings(self, index: int) -> bytes:
        """Return the bytes of the string table with this section index."""
        return self.read_section(self._get_section(index))

    def read_symbols(self, table: ElfSection) -> Iterator[Symbol]:
        """Yield all rows of a symbol table in order, row 0 included. Raises `BinaryError`."""
        strings = self.read_strings(table.link)
        content = self.read_section(table)
        complete_size = len(content) - len(content) % _SYMBOL.size  # `iter_unpack` takes whole rows
        for name, info, other, section, _, size in _SYMBOL.iter_unpack(content[:complete_size]):
            yield Symbol(self.read_string(strings, name), info, other, section, size)

    def read_string(self, strings: bytes, offset: int) -> str:
        """Return the text that starts at `offset` in a string table. Raises `BinaryError`."""
        # Bounded, since symbols of a hostile file could share one name of any length.
        end = strings.find(b"\0", offset, offset + MAX_NAME_LENGTH)
        if end < 0:
            raise BinaryError("a name has no end")
        self._spend_budget(end - offset)
        return strings[offset:end].decode("utf-8", "backslashreplace")

    @property
    def size(self) -> int:
        """The size of the ELF file in bytes: up to the end of its last table or section."""
        return min(self.declared_size, len(self._data) - self._base)

    @property
    def declared_size(self) -> int:
        """The size that the tables declare. Of a truncated file it is larger than `size`."""
        ends = [_HEADER.size]
        for offset, row_size, count in (self._section_table, self._program_table):
            ends.append(offset + row_size * count)
        ends += [
            section.offset + section.size
            for section in self.sections
            if section.kind not in (_NULL, _NOBITS)
        ]
        return max(ends)

    def _get_section(self, index: int) -> ElfSection:
        if index >= len(self.sections):
            raise BinaryError(f"there is no section {index}")
        return self.sections[index]

    def _read_slice(self, offset: int, size: int) -> bytes:
        start = self._base + offset
        if start + size > len(self._data):
            raise BinaryError("a section lies outside of the file")
        self._spend_budget(size)
        return self._data[start : start + size]

    def _read_sections(self, names_index: int) -> tuple[ElfSection, ...]:
        """Return the rows of the section table. `names_index` is the index of the section that
        holds their names. Raises `BinaryError`."""
        table_offset, row_size, count = self._section_table
        if count and row_size != _SECTION.size:
            raise BinaryError("the section table has an unknown layout")
        rows = list(_SECTION.iter_unpack(self._read_slice(table_offset, row_size * count)))
        strings = b""
        if rows:
            if names_index >= count:
                raise BinaryError("the section table has no names")
            _, _, _, _, strings_offset, strings_size, *_ = rows[names_index]
            strings = self._read_slice(strings_offset, strings_size)
        return tuple(
            ElfSection(self.read_string(strings, name), kind, flags, offset, size, link, info)
            for name, kind, flags, _, offset, size, link, info, *_ in rows
        )

    def _spend_budget(self, count: int) -> None:
        self._budget -= count
        if self._budget < 0:
            raise BinaryError("the sections of the file overlap without end")


_DYNAMIC = struct.Struct("<qQ")
_DT_NEEDED = 1
_DT_NULL = 0
# The versions that a library needs of its symbols: `GLIBC_2.34`, `GLIBCXX_3.4.30`. They are names
# in its dynamic string table, where no other names have this form.
_GLIBC = re.compile(rb"GLIBC_(\d{1,4})\.(\d{1,4})(?:\.\d+)?\0")
_GLIBCXX = re.compile(rb"GLIBCXX_(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?\0")


class LibraryNeeds(Struct, frozen=True):
    """The needs of a shared library on a host.

    `libraries` are the names of its NEEDED entries. `glibc` is the lowest version with all symbols
    that the library uses, as (2, 34), or None; `libstdcxx` likewise, as (3, 4, 30). `exports` are
    the symbols that the library defines.
    """

    machine: str
    libraries: tuple[str, ...]
    glibc: tuple[int, int] | None
    exports: frozenset[str]
    libstdcxx: tuple[int, int, int] | None = None
    unwinds: bool = True
    """False if the library has unwind entries and not the linker's index of them, so that neither
    a debugger nor an exception finds them."""

    def find_missing_exports(self, *names: str) -> tuple[str, ...]:
        """Return the names that the library does not export."""
        return tuple(name for name in names if name not in self.exports)


def read_needs(data: bytes) -> LibraryNeeds:
    """Return the needs and exports of an x86-64 or aarch64 library. Raises `BinaryError`."""
    elf = Elf(data)
    if elf.machine not in MACHINES:
        raise BinaryError("not a library for x86-64 or aarch64")
    section = elf.find_section(".gnu.version_r")
    names = elf.read_strings(section.link) if section is not None else b""
    glibc_versions = [(int(major), int(minor)) for major, minor in _GLIBC.findall(names)]
    libstdcxx_versions = [
        (int(major), int(minor), int(patch or 0)) for major, minor, patch in _GLIBCXX.findall(names)
    ]
    has_unwind_index = elf.find_section(".eh_frame_hdr") is not None
    has_unwind_entries = elf.find_section(".eh_frame") is not None
    return LibraryNeeds(
        machine=MACHINES[elf.machine],
        libraries=_read_libraries(elf),
        glibc=max(glibc_versions, default=None),
        exports=_read_exports(elf),
        libstdcxx=max(libstdcxx_versions, default=None),
        unwinds=has_unwind_index or not has_unwind_entries,
    )


def _read_libraries(elf: Elf) -> tuple[str, ...]:
    """Return the names of the NEEDED entries. Raises `BinaryError`."""
    section = elf.find_section(".dynamic")
    if section is None:
        raise BinaryError("not a shared library")
    strings = elf.read_strings(section.link)
    content = elf.read_section(section)
    complete_size = len(content) - len(content) % _DYNAMIC.size  # `iter_unpack` takes whole rows
    names = []
    for tag, value in _DYNAMIC.iter_unpack(content[:complete_size]):
        if tag == _DT_NULL:  # rows after it are not read by the loader either
            break
        if tag == _DT_NEEDED:
            names.append(elf.read_string(strings, value))
    return tuple(names)


def _read_exports(elf: Elf) -> frozenset[str]:
    table = elf.find_section(".dynsym")
    if table is None:
        return frozenset()
    return frozenset(s.name for s in elf.read_symbols(table) if s.is_visible and s.name)
