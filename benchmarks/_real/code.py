"""Machine code of two builds, kernel by kernel: equal, different, or in one of them only.

Compared are the bytes of each kernel's `.text` section. Names of what is internal to a source hold
a number that nvcc makes of its path; it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tilusbuild.binary.cubin import read_cubin
from tilusbuild.binary.elf import BinaryError, Elf
from tilusbuild.binary.fatbin import extract_cubins

_INTERNAL = re.compile(r"_?[0-9a-f]{8}_[0-9]+_\w+?_cu_[0-9a-f]{8}_[0-9]+")
_ANONYMOUS = re.compile(r"([0-9]+)(?=_GLOBAL__N_)")
"""The length of a name that nvcc makes for an anonymous namespace, before that."""


@dataclass(frozen=True)
class Compared:
    """Kernels of both builds, by what became of them."""

    equal: int
    different: tuple[str, ...]
    ours_only: tuple[str, ...]
    theirs_only: tuple[str, ...]

    def __str__(self) -> str:
        both = self.equal + len(self.different)
        rest = [
            f"{len(names)} {where}"
            for names, where in ((self.ours_only, "ours only"), (self.theirs_only, "theirs only"))
            if names
        ]
        return ", ".join([f"{self.equal} of {both}", *rest])


Naming: TypeAlias = Callable[[Path, str], str]
"""Names a file's kernel otherwise than its symbol, where many files have one of the same name."""


def _general(name: str) -> str:
    """Return a kernel's name without what depends on its source's path, or on the compile."""
    while match := _ANONYMOUS.search(name):
        name = name[: match.start()] + name[match.end() + int(match[1]) :]
    return _INTERNAL.sub("", name)


def kernels(files: Iterable[Path], naming: Naming | None = None) -> dict[str, bytes]:
    """Return the code of every kernel in objects, libraries and cubins, by target and name."""
    code_by_kernel: dict[str, bytes] = {}
    for path in files:
        try:
            cubins = extract_cubins(path.read_bytes())
        except BinaryError:
            continue
        for cubin in cubins:
            elf = Elf(cubin.data)
            for kernel in read_cubin(cubin.data):
                section = elf.find_section(f".text.{kernel.name}")
                if section is not None:
                    name = naming(path, kernel.name) if naming else _general(kernel.name)
                    code_by_kernel[f"{cubin.image.arch} {name}"] = elf.read_section(section)
    return code_by_kernel


def compare(
    own_files: Iterable[Path], peer_files: Iterable[Path], naming: Naming | None = None
) -> Compared:
    """Compare two builds."""
    mine, other = kernels(own_files, naming), kernels(peer_files, naming)
    both = mine.keys() & other.keys()
    different = tuple(sorted(name for name in both if mine[name] != other[name]))
    return Compared(
        len(both) - len(different),
        different,
        tuple(sorted(mine.keys() - other.keys())),
        tuple(sorted(other.keys() - mine.keys())),
    )
