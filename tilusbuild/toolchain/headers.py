"""The headers outside a project, and which of them a fingerprint covers: core ones, others if used.

A compile sees whole include directories, but a toolkit's holds headers of libraries and profilers
that few programs include, and `/usr/include` holds what any package left there. So that a toolkit
from wheels equals the same toolkit from an installer, and that an unrelated package does not
rebuild the world, a fingerprint has two parts:

- `core`, in every fingerprint: what nvcc's front end, CUDA's runtime, its math headers and
  cooperative groups, libcu++, the C++ library and the C library consist of. Core headers include
  core headers only (a test holds that for the toolkit);
- the rest, as one digest for each directory: in the fingerprint of those programs that include
  anything which is not core (`digest_external_headers`). CUB and Thrust are among these: they check
  whether NVTX is there, so what they are depends on the rest.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from fnmatch import translate

from msgspec import Struct

from tilusbuild.state.digests import Digests
from tilusbuild.state.files import sha256_text

_NO_FILES = sha256_text("")

_TOOLKIT_DIRECTORIES = ("crt/", "cooperative_groups/", "cuda/", "nv/")
_TOOLKIT_FILES = """
    builtin_types.h channel_descriptor.h common_functions.h cooperative_groups.h cuComplex.h cuda.h
    cudaTypedefs.h cuda_awbarrier*.h cuda_bf16.h* cuda_fp*.h* cuda_device_runtime_api.h
    cuda_occupancy.h cuda_pipeline*.h cuda_runtime*.h cuda_surface_types.h cuda_texture_types.h
    cudart_platform.h device_*.h* driver_*.h fatbinary_section.h host_config.h host_defines.h
    library_types.h math_constants.h math_functions.h* mma.h sm_*.h* surface_*.h texture_*.h
    vector_functions.h* vector_types.h
"""
_SYSTEM_DIRECTORIES = ("asm/", "asm-generic/", "bits/", "gnu/", "sys/")
_SYSTEM_FILES = """
    aio.h alloca.h arpa/inet.h assert.h byteswap.h complex.h cpio.h ctype.h dirent.h dlfcn.h elf.h
    endian.h err.h errno.h error.h execinfo.h fcntl.h features.h features-time64.h fenv.h fnmatch.h
    getopt.h glob.h iconv.h ifaddrs.h inttypes.h langinfo.h lastlog.h libgen.h libintl.h limits.h
    link.h linux/close_range.h linux/const.h linux/errno.h linux/falloc.h linux/limits.h
    linux/posix_types.h linux/stat.h linux/stddef.h linux/types.h locale.h malloc.h math.h memory.h
    monetary.h netdb.h netinet/in.h nl_types.h poll.h pthread.h pwd.h regex.h sched.h semaphore.h
    setjmp.h signal.h spawn.h stdc-predef.h stdint.h stdio.h stdlib.h string.h strings.h syscall.h
    tgmath.h threads.h time.h uchar.h ucontext.h unistd.h utime.h values.h wait.h wchar.h wctype.h
    xlocale.h
"""
_TOOLKIT_PATTERN = "|".join(translate(pattern) for pattern in _TOOLKIT_FILES.split())
_SYSTEM_FILE_NAMES = frozenset(_SYSTEM_FILES.split())
# The directories of core files, which are searched for them.
_SYSTEM_FILE_DIRECTORIES = frozenset(
    name.partition("/")[0] + "/" for name in _SYSTEM_FILE_NAMES if "/" in name
)


def is_core_of_toolkit(name: str) -> bool:
    """Return whether a header is core, by its name relative to the toolkit's include directory.

    A directory's name ends with a slash; so it does in `is_core_of_system`.
    """
    name = name.removeprefix("cccl/")  # where CUDA 13 has libcu++; before, beside the others
    return (
        not name
        or name.startswith(_TOOLKIT_DIRECTORIES)
        or re.match(_TOOLKIT_PATTERN, name) is not None
    )


def is_core_of_system(name: str) -> bool:
    """Return whether a header is core, by its name relative to a C library's directory."""
    return (
        name.startswith(_SYSTEM_DIRECTORIES)
        or name in _SYSTEM_FILE_NAMES
        or name in _SYSTEM_FILE_DIRECTORIES
    )


# All directories are entered: a header that is not core may lie in one that is.
def _is_beyond_toolkit_core(name: str) -> bool:
    return name.endswith("/") or not is_core_of_toolkit(name)


def _is_beyond_system_core(name: str) -> bool:
    return name.endswith("/") or not is_core_of_system(name)


class HeaderDirectories(Struct, frozen=True):
    """The directories that every compile searches besides a program's own, in their order.

    `toolkit`: nvcc's; its first holds the others. `compiler`: the C++ library's and the compiler's
    own, all of them core. `system`: `/usr/include`, with headers of any package.
    """

    toolkit: tuple[str, ...]
    compiler: tuple[str, ...]
    system: tuple[str, ...]

    def digest_toolkit_core(self, memory: Digests) -> str:
        """Return the digest of the toolkit's core. Raises `OSError`."""
        # The first directory holds the others (include/cccl).
        return _combine_digests(
            memory.digest_tree(directory, "core toolkit", is_core_of_toolkit)
            for directory in self.toolkit[:1]
        )

    def digest_compiler_headers(self, memory: Digests) -> str:
        """Return the digest of the host compiler's own headers. Raises `OSError`."""
        return _combine_digests(
            memory.digest_tree(directory, "all", lambda _: True)
            for directory in drop_nested(self.compiler)
        )

    def digest_system_core(self, memory: Digests) -> str:
        """Return the digest of the C library's core. Raises `OSError`."""
        return _combine_digests(
            memory.digest_tree(directory, "core system", is_core_of_system)
            for directory in self.system
        )

    def digest_external_headers(
        self, includes: Iterable[str] | None, memory: Digests
    ) -> tuple[str, ...]:
        """Return lines for a program's fingerprint: the digests of headers that are not core; () if
        all of `includes` are core or absent. Installing an absent one then changes the fingerprint.

        `includes` are the names, as written, that the program includes and that none of its own
        directories has; None for any name."""
        if includes is not None and not any(self.is_external(name) for name in set(includes)):
            return ()
        lines: list[str] = []
        if self.toolkit:
            # The first directory holds the others (include/cccl).
            digest = memory.digest_tree(self.toolkit[0], "rest toolkit", _is_beyond_toolkit_core)
            lines.append(f"other-cuda-headers - {_combine_digests([digest])}")
        system_digests = [
            memory.digest_tree(directory, "rest system", _is_beyond_system_core)
            for directory in drop_nested(self.system)
        ]
        lines.append(f"other-headers - {_combine_digests(system_digests)}")
        return tuple(lines)

    def is_external(self, name: str) -> bool:
        """Return whether a name in an include finds an existing header that is not core. The first
        directory that has the name decides."""
        for directory in self.toolkit:
            if os.path.isfile(os.path.join(directory, name)):
                return _is_beyond_toolkit_core(name)
        if any(os.path.isfile(os.path.join(directory, name)) for directory in self.compiler):
            return False
        for directory in self.system:
            if os.path.isfile(os.path.join(directory, name)):
                return _is_beyond_system_core(name)
        return False


def _combine_digests(digests: Iterable[str]) -> str:
    """Return one digest of several in order; digests of directories without files are skipped."""
    return sha256_text("".join(f"{digest}\n" for digest in digests if digest != _NO_FILES))


def drop_nested(directories: Iterable[str]) -> list[str]:
    """Return the directories that are not inside of another one of the list, in their order."""
    distinct = list(dict.fromkeys(directories))
    return [
        directory
        for directory in distinct
        if not any(directory.startswith(parent + "/") for parent in distinct)
    ]


def find_package_directory(package: str, path: str) -> str:
    """Return the directory `path` of an installed Python package; links in it are not resolved.
    Raises `LookupError`.

    `package` may be dotted. Of a namespace package, the first directory with `path` is used.
    """
    directories = _find_package(package)
    if directories is None:
        raise LookupError(f'no package "{package}" is installed in this Python environment')
    if not directories:
        raise LookupError(f'"{package}" is a module, not a package with files')
    for directory in directories:
        candidate = os.path.abspath(os.path.join(directory, path))
        if os.path.isdir(candidate):
            return candidate
    raise LookupError(f'package "{package}" ({directories[0]}) has no directory "{path}"')


def _find_package(package: str) -> list[str] | None:
    """Return the directories of a Python package; [] for a module, None if it is not installed."""
    # Nothing is imported, as `importlib.util.find_spec` does with the parents of a dotted name: it
    # would run their code, and may take seconds.
    directories: list[str] | None = None  # all of Python's path
    name = ""
    for part in package.split("."):
        if not part.isidentifier():
            return None
        name = f"{name}.{part}" if name else part
        specs = (finder.find_spec(name, directories) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None:
            return None
        directories = list(spec.submodule_search_locations or ())
    return directories
