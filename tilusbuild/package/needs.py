"""What all libraries of a package together ask of a host, as the libraries themselves say.

The instruction set is the exception: compilers seldom mark it, so it is also read off the recorded
`-march` of host code. Baseline code asks for nothing.
"""

from __future__ import annotations

import re

from tilusbuild.binary import Needs as Library
from tilusbuild.package.errors import CannotPack
from tilusbuild.package.listing import Needs

TVM_FFI_ABI = "0.1"
"""The series of apache-tvm-ffi whose packed call (`TVMFFISafeCallType` in its c_api.h) a library's
`__tvm_ffi_launch` has."""
_LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
_BASELINES = ("x86-64", "armv8-a")
_MARCH = re.compile(r"(?<!\S)-march=([A-Za-z0-9_.+-]+)", re.ASCII)


class Together:
    """Collects libraries; `needs` is what the host must have for all of them."""

    def __init__(self) -> None:
        self._machines: dict[str, str] = {}
        self._isas: set[str] = set()
        self._glibc: tuple[int, int] | None = None
        self._libstdcxx: tuple[int, int, int] | None = None
        self._libraries: set[str] = set()
        self._tvm_ffi = False

    def add(self, path: str, library: Library, options_txt: str) -> None:
        """Add one. `path` is for messages; `options_txt` how it was compiled, "" if unknown."""
        self._machines.setdefault(library.machine, path)
        self._isas.update(_MARCH.findall(options_txt))
        if library.isa is not None:
            self._isas.add(library.isa)
        if library.glibc is not None:
            self._glibc = max(self._glibc or library.glibc, library.glibc)
        if library.libstdcxx is not None:
            self._libstdcxx = max(self._libstdcxx or library.libstdcxx, library.libstdcxx)
        self._libraries.update(library.libraries)
        self._tvm_ffi |= not library.missing("__tvm_ffi_launch")

    def needs(self) -> Needs:
        """Raises `CannotPack` for libraries of several machines, or none at all."""
        if len(self._machines) != 1:
            there = "; ".join(
                f"{path} is for {machine}" for machine, path in self._machines.items()
            )
            raise CannotPack(f"a package is for one machine: {there or 'there is no library'}")
        return Needs(
            machine=next(iter(self._machines)),
            isa=_highest(self._isas),
            glibc=_dotted(self._glibc),
            libraries=tuple(sorted(self._libraries)),
            tvm_ffi=TVM_FFI_ABI if self._tvm_ffi else None,
            libstdcxx=_dotted(self._libstdcxx),
        )


def _highest(isas: set[str]) -> str | None:
    """One name for all: the highest level; what is on no ladder joins it."""
    levels = [level for level in _LEVELS if level in isas][-1:]
    others = sorted(isas.difference(_LEVELS))
    if others:
        levels = [level for level in levels if level not in _BASELINES]
    found = "+".join([*levels, *(each for each in others if each not in _BASELINES)])
    return None if found in ("", *_BASELINES) else found


def _dotted(version: tuple[int, ...] | None) -> str | None:
    return None if version is None else ".".join(map(str, version))
