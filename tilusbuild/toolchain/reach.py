"""What of a machine a compile may open: the tools, what they load, and the headers in fingerprints.

The price of a list: a compiler that is installed in an unusual way may need more, and is then named
by what it could not open (`TILUSBUILD_SANDBOX=0` has what it read checked instead).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

from tilusbuild.toolchain.cuda import Cuda
from tilusbuild.toolchain.headers import outermost
from tilusbuild.toolchain.host import HostCompiler
from tilusbuild.toolchain.nvrtc import NvrtcLibrary

_SYSTEM = (
    *("/bin", "/lib", "/lib32", "/lib64", "/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64"),
    *("/usr/libexec", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
)
"""The shell that nvcc runs, the loader, the libraries of every program."""
_STORES = ("/nix/store", "/gnu/store")
"""Where each package has a directory of its own, and programs load from many."""
_OF_A_PREFIX = ("lib", "lib32", "lib64", "libexec")
"""Where a compiler that is not the system's has its parts, beside its `bin`."""


class Reach(Struct, frozen=True):
    """What of a machine the tools of a compile need, as real paths that exist: what a sandbox lets
    them open.

    `headers` are the directories whose contents are in fingerprints: a source may include anything
    there. `tools` are the programs, what they load and what they link: a source has no business
    there, and a compile that includes or assembles a file of them is refused (`compile/reads.py`).
    `nvrtc` is what NVRTC needs besides headers while it compiles. `/usr/local`, `/opt` and home
    directories are in none, unless a tool is installed there.
    """

    tools: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    nvrtc: tuple[str, ...] = ()
    sandboxed: bool = False
    """Whether compiles are to be held to these; else what they read is only checked."""


SANDBOX = "TILUSBUILD_SANDBOX"
"""The variable that is 0 where compiles are to be checked only: for compilers that write or load
what `Reach` does not know."""


def sandbox_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether the user wants compiles in a sandbox."""
    return environment.get(SANDBOX, "").lower() not in ("0", "false", "no", "off")


@lru_cache(maxsize=16)
def reach_of(
    host: HostCompiler, cuda: Cuda | None, nvrtc: NvrtcLibrary | None, *, sandboxed: bool
) -> Reach:
    """Return what compiles with these tools need."""
    tools = [*_SYSTEM, *_needs_of_host(host)]
    headers = [*host.compiler_headers, *host.system_headers]
    if cuda is not None:
        tools += [os.path.dirname(tool.path) for tool in cuda.tools]
        tools += [f"{cuda.root}/nvvm", cuda.libdevice, cuda.library_dir]
        headers += cuda.include_dirs
    libraries: list[str] = []
    if nvrtc is not None:
        libraries = [os.path.dirname(os.path.realpath(nvrtc.library))]
        headers += [nvrtc.include_dir] if nvrtc.include_dir else []
        tools += [os.path.dirname(nvrtc.assembler)] if nvrtc.assembler else []
    return Reach(_real(tools), _real(headers), _real(libraries), sandboxed)


def _needs_of_host(host: HostCompiler) -> Iterator[str]:
    for tool in (*host.tools, *host.parts):
        if not tool.path:
            continue
        for path in (tool.path, os.path.realpath(tool.path)):
            directory = os.path.dirname(path)
            yield directory
            yield from (store for store in _STORES if path.startswith(store + "/"))
            prefix = os.path.dirname(directory)
            if os.path.basename(directory) == "bin" and prefix not in ("/", "/usr"):
                yield from (os.path.join(prefix, name) for name in (*_OF_A_PREFIX, host.target))


def _real(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the real paths of those that exist, less those inside of another one."""
    return tuple(outermost(os.path.realpath(path) for path in paths if os.path.exists(path)))
