"""What a shared library asks of the machine that loads it, and what it offers: for preflight.

From the section tables, which a linker leaves even in a stripped library: the libraries it needs,
the highest glibc symbol version, the exported names. Layout: the System V ABI and the Linux
Standard Base, "Symbol Versioning".
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


@dataclass(frozen=True, slots=True)
class Needs:
    """A library's demands. `glibc` is the lowest version that loads it, as (2, 34), or None.

    `versions` are all the symbol versions it asks for, sorted ("GLIBCXX_3.4.30" …); `exports` are
    the names that it defines for others.
    """

    machine: str
    libraries: tuple[str, ...]
    glibc: tuple[int, int] | None
    versions: tuple[str, ...]
    exports: frozenset[str]

    def missing(self, *names: str) -> tuple[str, ...]:
        """Those of `names` that the library does not export."""
        return tuple(name for name in names if name not in self.exports)


def read_needs(data: bytes) -> Needs:
    """What an x86-64 or aarch64 shared library needs and exports. Raises `BinaryError`."""
    elf = Elf(data)
    if elf.machine not in MACHINES:
        raise BinaryError("not a library for x86-64 or aarch64")
    versions = sorted(_versions(elf))
    glibc = [(int(m[1]), int(m[2])) for v in versions if (m := _GLIBC.fullmatch(v))]
    return Needs(
        machine=MACHINES[elf.machine],
        libraries=_libraries(elf),
        glibc=max(glibc, default=None),
        versions=tuple(versions),
        exports=_exports(elf),
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
