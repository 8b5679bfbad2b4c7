"""The files of a machine that a compile may open: tools, their libraries, and hashed headers.

A compiler that is installed in an unusual way may need more files. The error then names the file
that could not be opened; `TILUSBUILD_SANDBOX=0` leaves only the check of reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

from tilusbuild.toolchain.cuda import Cuda
from tilusbuild.toolchain.headers import drop_nested
from tilusbuild.toolchain.host import HostCompiler
from tilusbuild.toolchain.nvrtc import NvrtcLibrary

# The shell that nvcc runs, the loader, the libraries of every program.
_SYSTEM_PATHS = (
    *("/bin", "/lib", "/lib32", "/lib64", "/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64"),
    *("/usr/libexec", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
)
# The package stores of Nix and Guix: each package has its own directory, and programs load files
# of many.
_PACKAGE_STORES = ("/nix/store", "/gnu/store")
# The directories beside `bin` that hold the parts of a compiler outside of /usr.
_PARTS_OF_PREFIX = ("lib", "lib32", "lib64", "libexec")


class Reach(Struct, frozen=True):
    """The real, existing paths that a sandbox lets the tools of a compile open.

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
    """Whether compiles run in a sandbox of these paths; otherwise their reads are only checked."""


SANDBOX = "TILUSBUILD_SANDBOX"
"""The environment variable that switches the sandbox off with 0, for compilers that need files
which `Reach` does not list."""


def is_sandbox_requested(environment: Mapping[str, str]) -> bool:
    """Return whether the environment leaves the sandbox on."""
    return environment.get(SANDBOX, "").lower() not in ("0", "false", "no", "off")


@lru_cache(maxsize=16)
def find_reach(
    host: HostCompiler, cuda: Cuda | None, nvrtc: NvrtcLibrary | None, *, sandboxed: bool
) -> Reach:
    """Return the existing paths that compiles with these tools need. The answer is cached, so
    paths that appear later are not in it."""
    tools = [*_SYSTEM_PATHS, *_list_host_files(host)]
    headers = [*host.compiler_headers, *host.system_headers]
    if cuda is not None:
        tools += [os.path.dirname(tool.path) for tool in cuda.tools]
        tools += [f"{cuda.root}/nvvm", cuda.libdevice, cuda.library_dir]
        tools += _list_link_targets([os.path.dirname(cuda.nvcc), cuda.library_dir])
        headers += [*cuda.include_dirs, *_list_link_targets(cuda.include_dirs[:1])]
    libraries: list[str] = []
    if nvrtc is not None:
        libraries = [os.path.dirname(os.path.realpath(nvrtc.library))]
        headers += [nvrtc.include_dir] if nvrtc.include_dir else []
    return Reach(
        tools=_resolve_existing(tools),
        headers=_resolve_existing(headers),
        nvrtc=_resolve_existing(libraries),
        sandboxed=sandboxed,
    )


def _list_link_targets(directories: Iterable[str]) -> Iterator[str]:
    """Yield what the links below directories lead to: distributions join toolkits by links, and a
    fingerprint has the content that is read through them."""
    for directory in directories:
        for parent, inner, files in os.walk(directory):
            paths = (os.path.join(parent, name) for name in (*inner, *files))
            yield from (path for path in paths if os.path.islink(path))


def _list_host_files(host: HostCompiler) -> Iterator[str]:
    """Yield the directories of the host tools, and of what they load and start."""
    yield from host.files
    for tool in (*host.tools, *host.parts):
        if not tool.path:
            continue
        for path in (tool.path, os.path.realpath(tool.path)):
            directory = os.path.dirname(path)
            yield directory
            yield from (store for store in _PACKAGE_STORES if path.startswith(store + "/"))
            # /opt/gcc/bin/g++ has its compilers and libraries in /opt/gcc.
            prefix = os.path.dirname(directory)
            if os.path.basename(directory) == "bin" and prefix not in ("/", "/usr"):
                yield from (os.path.join(prefix, name) for name in (*_PARTS_OF_PREFIX, host.target))


def _resolve_existing(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the real paths of `paths` that exist, without paths inside of another one."""
    return tuple(drop_nested(os.path.realpath(path) for path in paths if os.path.exists(path)))
