"""The host compiler: g++ on PATH, the programs that it runs, and their fingerprint.

nvcc preprocesses with it, launchers and the cpu pipeline are compiled with it, so all its parts
are in every fingerprint: the drivers, the compilers proper, the assembler, the linker, the core
headers, and whatever else these read when they compile and link an empty library, such as a file
`specs` or the objects of every library. The libraries of the system, which the tools load and which
are linked dynamically, are not: an update of the C library would compile everything again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.errors import Diagnostic, InputError, Location
from tilusbuild.runtime.regular import read_text
from tilusbuild.state.digests import Digests
from tilusbuild.state.files import sha256_text
from tilusbuild.toolchain.headers import HeaderDirectories
from tilusbuild.toolchain.probe import (
    LIBRARY_PATH,
    Probe,
    ProbeError,
    ToolFiles,
    reraise_shortage,
)

WRAPPERS = ("ccache", "sccache", "distcc", "icecc", "colorgcc")
# The programs of g++ and gcc, besides the assembler and the linker. collect2 starts the linker.
_COMPONENTS = ("cc1plus", "cc1", "collect2")
# The startup objects and the archives of gcc that a shared library is linked with.
_LINKED_FILES = ("crti.o", "crtn.o", "crtbeginS.o", "crtendS.o", "libgcc.a", "libgcc_eh.a")
# Where the system has libraries that tools load, and data such as locales. What is linked into a
# library ends in one of `_LINKED_ENDINGS`: `crti.o`, `libc_nonshared.a`, the script `libc.so`.
_SYSTEM_DIRECTORIES = ("/lib", "/usr/lib", "/etc/", "/usr/share/")
_LINKED_ENDINGS = (".o", ".a", ".so")
# Compiled when a compiler is examined, which a build after an edit does not do.
_GLIBC_MACRO = r"#\s*define\s+(__GLIBC(?:_MINOR)?__)\s+(\d+)"
# `#define __AVX512FP16__ 1` and `-mavx512fp16`. Linux does not list AVX10.
_FEATURES = (
    r"(avx(?!10)\w*?|amx[-_]\w+?|fma4?|f16c|bmi2?|lzcnt|abm|movbe|popcnt|s?sse3|sse4[._]\d|sse4a"
    r"|v?aes|v?pclmul(?:qdq)?|gfni|sha|adx|rdrnd|rdseed)"
)
_FEATURE_MACRO = rf"(?ai)#define __{_FEATURES}__ 1\n"
_FEATURE_FLAG = rf"(?a)-m{_FEATURES}(?=,|$)"
_LINUX_NAMES = {
    "bmi": "bmi1", "lzcnt": "abm", "sse3": "pni", "sha": "shani", "rdrnd": "rdrand",
    "pclmul": "pclmulqdq",
}  # fmt: skip
BASELINES = {"x86_64": "x86-64-v2", "aarch64": "armv8-a"}
"""The `-march` of host code without `host-march`, by machine."""
_VERSION = r"\d+(?:\.\d+)+"
# ` /usr/include/c++/12`, or `ignoring nonexistent directory "/usr/local/include"`
_MENTIONED_DIRECTORY = r'(?m)^(?: (/.*)|ignoring .* directory "(/.*)")$'


class ToolFile(Struct, frozen=True):
    """The file of a tool: its path, its version ("-" for a file without one) and its digest."""

    name: str
    path: str
    version: str
    digest: str

    @property
    def line(self) -> str:
        """The tool's line in a fingerprint."""
        return f"{self.name} {self.version} {self.digest}"


class HostCompiler(Struct, frozen=True):
    """The host's compilers. `parts` are the files that they run or link; `target` is "x86_64-…".

    `libc` is the version of the C library's headers ("2.36", or "-" when it is not glibc).
    """

    cxx: ToolFile
    cc: ToolFile
    ld: ToolFile
    as_: ToolFile
    parts: tuple[ToolFile, ...]
    target: str
    libc: str
    compiler_headers: tuple[str, ...]
    system_headers: tuple[str, ...]
    files: tuple[str, ...] = ()
    """The real paths of the other files that the tools read to make an empty library."""
    library_path: str = ""
    """The LD_LIBRARY_PATH that the tools do not start without."""

    @property
    def machine(self) -> str:
        """The machine that it compiles for, as `uname -m`: "aarch64"."""
        return self.target.partition("-")[0]

    @property
    def baseline(self) -> str | None:
        """The `-march` of its code without `host-march`; None for a machine that is not known."""
        return BASELINES.get(self.machine)

    @property
    def tools(self) -> tuple[ToolFile, ...]:
        """The programs that a compile starts: g++, gcc, as, ld."""
        return (self.cxx, self.cc, self.as_, self.ld)

    def format_fingerprint(self, memory: Digests) -> tuple[str, ...]:
        """Return the host compiler's lines of `options.txt`: versions and digests, no path. Raises
        `OSError`."""
        headers = HeaderDirectories((), self.compiler_headers, self.system_headers)
        tools = (self.cxx, self.cc, *self.parts, self.as_, self.ld)
        return (
            f"host {self.target}",
            *(tool.line for tool in tools),
            *self._format_files_line(memory),
            f"c++-headers {self.cxx.version} {headers.digest_compiler_headers(memory)}",
            f"c-headers {self.libc} {headers.digest_system_core(memory)}",
        )

    def _format_files_line(self, memory: Digests) -> tuple[str, ...]:
        """Return the line of the other files; () without one. Raises `OSError`."""
        # The compiler's own directories are those of `cc1plus`, where a file `specs` is, too.
        components = (part.path for part in self.parts if part.name in _COMPONENTS)
        own_directories = tuple({os.path.dirname(os.path.realpath(path)) for path in components})
        digests = sorted(
            f"{os.path.basename(path)} {memory.digest_file(path)}"
            for path in self.files
            if path.startswith(own_directories)
            or path.endswith(_LINKED_ENDINGS)
            or not path.startswith(_SYSTEM_DIRECTORIES)
        )
        text = "\n".join(digests)
        return (f"host-files {len(digests)} {sha256_text(text)}",) if digests else ()


def find_host(
    probe: Probe,
    requested: str | None = None,
    location: Location | None = None,
    key: str = "toolchain.cxx",
) -> HostCompiler:
    """Return the first g++ on PATH with its gcc, as and ld. Raises `InputError`.

    Compiler wrappers such as ccache are skipped, since tilusbuild caches compiles itself.
    `requested` is the value of `key`, a key of the manifest at `location` or a variable: the name
    ("g++-11", "gcc-11") or the absolute path of a driver, which has the other one beside it. Raises
    `OSError` for a shortage of the machine.
    """
    name = os.path.basename(requested or "g++")
    if not re.fullmatch(r"(.*-)?g\+\+(-.*)?", name):
        name = "g++"  # Debian's package of the compiler that is needed
    try:
        cxx, cc = _find_drivers(probe, requested)
    except ProbeError as error:
        setting = "" if requested is None else f'{key} = "{requested}": '
        remedy = f"apt install {name}"
        if key.isupper():
            remedy += f"\nset {key}={name}, or unset {key}"
        raise _make_missing_error(f"{setting}{error}", remedy, location) from None
    try:
        return _examine_drivers(probe, cxx, cc)
    except (ProbeError, OSError) as error:
        reraise_shortage(error)
        raise _make_missing_error(
            f"{cxx}: {error}", f"apt install --reinstall {name}", location
        ) from error


def _find_drivers(probe: Probe, requested: str | None) -> tuple[str, str]:
    """Return the paths of a g++ and its gcc. Raises `ProbeError` if one is missing."""
    if requested is None:
        cxx, cc = _find_driver(probe, "g++"), _find_driver(probe, "gcc")
        if cxx is None or cc is None:
            missing = [name for name, path in (("g++", cxx), ("gcc", cc)) if path is None]
            raise ProbeError(f"{' and '.join(missing)} not found on PATH")
        return cxx, cc
    parts = re.fullmatch(r"(.*-)?(g\+\+|c\+\+|gcc|cc)(-.*)?", os.path.basename(requested))
    if parts is None:
        raise ProbeError("this is not the name of a g++")
    driver = requested if os.path.isabs(requested) else _find_driver(probe, requested)
    if driver is None:
        raise ProbeError(f"{requested} not found on PATH")
    start, middle, end = parts.groups("")
    names = ("g++", "gcc") if middle.startswith("g") else ("c++", "cc")
    directory = os.path.dirname(driver)
    cxx, cc = (os.path.join(directory, f"{start}{name}{end}") for name in names)
    for path in (cxx, cc):
        if not os.path.isfile(path) or not os.access(path, os.X_OK):
            raise ProbeError(f"{path} does not exist, or is not executable")
    return cxx, cc


def _examine_drivers(probe: Probe, cxx: str, cc: str) -> HostCompiler:
    """Return the host compiler of a g++ and a gcc. Raises `InputError`, `ProbeError` and
    `OSError`."""
    memory = probe.memory
    probe, traced = _trace_driver(probe, cxx)
    version = _read_version(probe, cxx)
    target = probe.query_program(cxx, "-dumpmachine").strip()
    paths = {
        name: _find_subprogram(probe, cc if name == "cc1" else cxx, name)
        for name in (*_COMPONENTS, "as", "ld")
    }
    for name in ("as", "ld"):
        if paths[name] is None:
            raise _make_missing_error(f"{name} not found", "apt install binutils")
    compiler_headers, system_headers = _list_search_directories(probe, cxx, paths["cc1plus"])
    candidates = [os.path.join(directory, "features.h") for directory in system_headers]
    features = next(filter(os.path.isfile, candidates), None)
    if features is None:
        raise _make_missing_error(
            "the C library's headers are not installed", "apt install libc6-dev"
        )
    linked_files = {name: _find_linked_file(probe, cxx, name) for name in _LINKED_FILES}

    def make_tool(name: str, path: str, version: str) -> ToolFile:
        return ToolFile(name, path, version, memory.digest_file(os.path.realpath(path)))

    def make_binutil(name: str) -> ToolFile:
        path = paths[name] or name
        first_line = probe.query_program(path, "--version").splitlines()[0]
        # "GNU ld (crosstool-NG 1.25.0) 2.38": the last version is the tool's.
        versions = re.findall(_VERSION, first_line)
        return make_tool(name, path, versions[-1] if versions else "-")

    parts = [make_tool(name, path, version) for name in _COMPONENTS if (path := paths[name])]
    parts += [make_tool(name, file, "-") for name, file in linked_files.items() if file]
    tools = (
        make_tool("g++", cxx, version),
        make_tool("gcc", cc, _read_version(probe, cc)),
        make_binutil("ld"),
        make_binutil("as"),
    )
    read_paths = dict.fromkeys(map(os.path.realpath, traced.read))
    known_paths = {os.path.realpath(tool.path) for tool in (*tools, *parts)}
    headers = tuple(f"{path}/" for path in (*compiler_headers, *system_headers))
    known_paths |= {path for path in read_paths if path.startswith(headers)}
    return HostCompiler(
        *tools,
        parts=tuple(parts),
        target=target,
        libc=_read_libc_version(features),
        compiler_headers=compiler_headers,
        system_headers=system_headers,
        files=tuple(path for path in read_paths if path not in known_paths),
        library_path=probe.library_path,
    )


def list_cpu_features(probe: Probe, cxx: str, march: str) -> tuple[str, ...]:
    """Return the features of a CPU that code for `-march=MARCH` may use, in the spelling of
    /proc/cpuinfo without `_`, sorted; none for a MARCH that the compiler does not know."""
    with suppress(ProbeError):
        macros = probe.query_program(cxx, f"-march={march}", "-dM", "-E", "-x", "c", os.devnull)
        return tuple(sorted(map(_spell_feature, re.findall(_FEATURE_MACRO, macros))))
    return ()


def list_flag_features(flags: Iterable[str]) -> set[str]:
    """Return the same of flags such as `-mavx512f`, also behind `-Xcompiler`."""
    return {_spell_feature(name) for flag in flags for name in re.findall(_FEATURE_FLAG, flag)}


def _spell_feature(name: str) -> str:
    plain_name = re.sub(r"[-._]", "", name.lower())
    return _LINUX_NAMES.get(plain_name, plain_name)


def _trace_driver(probe: Probe, cxx: str) -> tuple[Probe, ToolFiles]:
    """Return a probe that starts the driver `cxx`, with the user's LD_LIBRARY_PATH if needed, and
    the files that its tools read to make an empty library. Raises `ProbeError` and `OSError`."""
    command = (cxx, "-shared", "-fPIC", "-x", "c++", os.devnull, "-o", "empty.so")
    user_path = probe.env.get(LIBRARY_PATH, "")
    try:
        return probe, probe.trace_program(*command)
    except ProbeError:
        # Modules and package managers may leave a compiler's libraries to LD_LIBRARY_PATH.
        if not user_path:
            raise
    user_probe = replace(probe, library_path=user_path)
    return user_probe, user_probe.trace_program(*command)


def _read_version(probe: Probe, driver: str) -> str:
    # gcc before 7 knows only the second option; later ones follow the first.
    return probe.query_program(driver, "-dumpfullversion", "-dumpversion").strip()


def _find_driver(probe: Probe, name: str) -> str | None:
    """Return the first executable of the name on PATH, compiler wrappers left out; None
    without one."""
    for path in probe.find_all_executables(name):
        if os.path.basename(os.path.realpath(path)) not in WRAPPERS:
            return path
    return None


def _find_subprogram(probe: Probe, driver: str, name: str) -> str | None:
    """Return the path of the program `name` that a driver runs: its own, else the first on
    PATH, else None."""
    # Without such a program of its own, gcc prints the bare name.
    path = probe.query_program(driver, f"-print-prog-name={name}").strip()
    if os.path.isabs(path) and os.path.isfile(path):
        return path
    return next(probe.find_all_executables(name), None)


def _find_linked_file(probe: Probe, driver: str, name: str) -> str | None:
    """Return the path of the file `name` that a driver links into every library; None if
    it is missing."""
    path = probe.query_program(driver, f"-print-file-name={name}").strip()
    return os.path.realpath(path) if os.path.isabs(path) and os.path.isfile(path) else None


def _list_search_directories(
    probe: Probe, cxx: str, cc1plus: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the directories of `#include <…>` in two tuples: the compiler's, and the system's.
    Raises `ProbeError`."""

    def describe_search(output: str) -> str:
        # The stored output is of g++, but cc1plus does the search, among directories that come and
        # go: a change of either must make g++ run again.
        lines = [probe.memory.digest_file(cc1plus) if cc1plus else ""]
        # The compiler skips directories that are missing or twice there: these may exist later.
        for listed, ignored in re.findall(_MENTIONED_DIRECTORY, output):
            directory = listed or ignored
            is_there = os.path.isdir(directory)
            lines.append(f"{directory} {os.path.realpath(directory)} {is_there}")
        return "\n".join(lines)

    output = probe.query_program(
        cxx, "-E", "-x", "c++", "-v", "/dev/null", rests_on=describe_search
    )
    _, _, tail = output.partition("#include <...> search starts here:\n")
    search_list, _, _ = tail.partition("End of search list.")
    lines = [line.strip() for line in search_list.splitlines()]
    directories = [os.path.realpath(line) for line in lines if line]
    if not directories:
        raise ProbeError("does not print its include directories")
    # glibc has no stddef.h of its own: it is the compiler's.
    compiler_directories = tuple(
        directory
        for directory in directories
        if os.path.isfile(os.path.join(directory, "stddef.h"))
        or os.path.isfile(os.path.join(directory, "bits", "c++config.h"))
        or "/c++/" in directory + "/"
    )
    others = dict.fromkeys(path for path in directories if path not in compiler_directories)
    return compiler_directories, tuple(others)


def _read_libc_version(features: str) -> str:
    """Return glibc's version from the path of its features.h; "-" for another C library."""
    # `#define __GLIBC__ 2`, `#define __GLIBC_MINOR__ 36`
    values = dict(re.findall(_GLIBC_MACRO, read_text(features, "replace")))
    return f"{values['__GLIBC__']}.{values['__GLIBC_MINOR__']}" if len(values) == 2 else "-"


def _make_missing_error(
    problem: str, install_command: str, location: Location | None = None
) -> InputError:
    hint = f"nvcc, launchers and the cpu target need one; on Debian and Ubuntu: {install_command}"
    return InputError(Diagnostic(f"no host compiler: {problem}", location, hint))
