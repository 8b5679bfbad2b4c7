"""A package's contents: its list, the source of each file's bytes, and its host requirements.

Bytes are read when a format's writer asks for them, and only handed out if they are those of the
list: a cache that changes while it is packed ends in `PackageError`, never in a package that
does not verify. Host requirements are read from the libraries. The instruction set is the
exception: compilers seldom mark it, so the recorded `-march` of host code counts, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from tilusbuild.binary.elf import LibraryNeeds
from tilusbuild.package.errors import cannot_pack
from tilusbuild.package.listing import FileEntry, FileList, HostNeeds
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.files import sha256_bytes

TVM_FFI = "0.1.9"
"""The oldest apache-tvm-ffi for a package's libraries and runtime. Later ones of its series 0.1
have the packed call (`TVMFFISafeCallType` in c_api.h) of a library's `__tvm_ffi_launch`, too."""
_X86_LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
_BASELINE_ISAS = ("x86-64", "armv8-a")
_MARCH = re.compile(r"(?<!\S)-march=([A-Za-z0-9_.+-]+)", re.ASCII)


class Contents(Struct, frozen=True):
    """A package to write. `encoded` is the list's text; `origins` has each listed file's bytes, or
    the path to read them from; `beside` the attestations about the list, by their names."""

    listed: FileList
    encoded: bytes
    origins: Mapping[str, bytes | str]
    beside: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """The sha256 of the list."""
        return sha256_bytes(self.encoded)

    def read_listed(self, path: str) -> bytes:
        """Read a listed file again. Raises `PackageError` if its size or sha256 differs from the
        list."""
        origin = self.origins[path]
        data = origin if isinstance(origin, bytes) else read_file(origin)
        if FileEntry(len(data), sha256_bytes(data)) != self.listed.files[path]:
            raise cannot_pack(f"{path} changed while it was packed", hint="pack again")
        return data


def read_file(path: str) -> bytes:
    """Return the content of a file of the cache. Raises `PackageError`."""
    try:
        return read_bytes(path)
    except OSError as error:
        raise cannot_pack(f"{path} cannot be read: {error.strerror}") from None


# The requirements on a host.


class PackedLibrary(NamedTuple):
    """A library of a package. `path` is for messages; `options` are those of its compile, "" if
    unknown."""

    path: str
    needs: LibraryNeeds
    options: str


def collect_host_needs(packed: Iterable[PackedLibrary]) -> HostNeeds:
    """Return the requirements of all libraries together. Raises `PackageError` for libraries of
    several machines, or none at all."""
    packed = list(packed)
    # The last of equal keys stays in a dictionary. Reversed, that is the first library of each
    # machine, which the message names.
    machines = {library.needs.machine: library.path for library in reversed(packed)}
    if len(machines) != 1:
        machine_list = "; ".join(f"{path} is for {machine}" for machine, path in machines.items())
        raise cannot_pack(f"a package is for one machine: {machine_list or 'there is no library'}")
    all_needs = [library.needs for library in packed]
    isas = {march for library in packed for march in _MARCH.findall(library.options)}
    has_launcher = any(not needs.find_missing_exports("__tvm_ffi_launch") for needs in all_needs)
    return HostNeeds(
        machine=next(iter(machines)),
        isa=_join_isas(isas),
        glibc=_format_newest(needs.glibc for needs in all_needs),
        libraries=tuple(sorted({name for needs in all_needs for name in needs.libraries})),
        tvm_ffi=TVM_FFI if has_launcher else None,
        libstdcxx=_format_newest(needs.libstdcxx for needs in all_needs),
    )


def _join_isas(isas: set[str]) -> str | None:
    """Return the highest x86-64 level and the names that are not levels, as "x86-64-v3+znver3".
    Return None if only baselines are among them, which need no more than the machine."""
    # The highest level includes those below it. A name such as "znver3" has no place in this order,
    # so it is added to the level.
    highest_level = [level for level in _X86_LEVELS if level in isas][-1:]
    isa_names = (*highest_level, *sorted(isas.difference(_X86_LEVELS)))
    return "+".join(name for name in isa_names if name not in _BASELINE_ISAS) or None


def _format_newest(versions: Iterable[tuple[int, ...] | None]) -> str | None:
    return ".".join(map(str, max(filter(None, versions), default=()))) or None
