"""The sections of `tilus.toml` but its scripts and libraries: project, build, toolchain, …"""

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from tilusbuild.arch import Arch, parse_arch
from tilusbuild.errors import did_you_mean
from tilusbuild.expr import Value
from tilusbuild.manifest.names import MAX_NAME, FactName, LimitName, MacroName, TableName
from tilusbuild.manifest.table import NOTHING, Key, Table, ValueFault, describe_kind, format_toml
from tilusbuild.manifest.values import (
    VALUE_SCHEMA,
    AnyValue,
    Duration,
    Size,
    Text,
    check_value,
    reject_boolean,
    spell_archs,
)
from tilusbuild.rooms import find_contributions

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

DeviceCompiler: TypeAlias = Literal["nvcc", "nvrtc"]
Standard = Literal["c++14", "c++17", "c++20", "c++23"]
# `true` equals 1, so that the literal alone would take it.
Level = Annotated[Literal[0, 1, 2], Key(before=reject_boolean)]


def check_macro_value(value: object) -> Value:
    """Return the value of a macro. Raises `ValueFault` for a text of several lines."""
    text = check_value(value)
    # nvcc hands macros to a shell, and g++ reads none of several lines.
    if isinstance(text, str) and (_NO_MACRO.search(text) or text.rstrip().endswith("\\")):
        raise ValueFault(
            "cannot be passed to a compiler",
            "a macro is one line: it holds no line break, no control character but a tab, and "
            "ends in no backslash; longer ones belong in a header",
        )
    return text


_NO_MACRO = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
Macros: TypeAlias = Mapping[
    MacroName, Annotated[Value, Key(plain=check_macro_value, schema=VALUE_SCHEMA)]
]


class ProjectSection(Table, frozen=True):
    """The project's name and version. Nothing of it enters a program's hash."""

    name: Annotated[
        str,
        Key(
            pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$",
            max_length=MAX_NAME,
            examples=["attention-kernels"],
        ),
    ]
    """The project's name: letters, digits, `.`, `_` and `-`."""
    version: Annotated[
        str, Key(pattern=r"^[0-9][0-9A-Za-z.+_-]*$", max_length=MAX_NAME, examples=["0.1.0"])
    ]
    """The version of the project and of its packages."""
    description: Annotated[str | None, Key(examples=["Attention for small batches"])] = None
    """One line for people."""


def _check_relative(pattern: str) -> str:
    """Return a pattern of headers. Raises `ValueFault` if it leads out of its directory."""
    if os.path.isabs(pattern) or os.pardir in pattern.split("/"):
        raise ValueFault("must be relative to the include directories", 'as in "generated/*.cuh"')
    return pattern


HeaderPattern = Annotated[Text, Key(after=_check_relative)]


class Directory(Table, frozen=True):
    """A directory of `include-dirs` or `link-dirs`, in the project or in a Python package.

    Written as a path, or as `{ package = …, path = … }`. A path may lead out of the project; `~` is
    the home directory.
    """

    shorthands = ((str, "path"),)

    path: Annotated[Text, Key(examples=["include"])]
    """The directory, relative to the manifest or to the package."""
    package: Annotated[
        str | None, Key(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", examples=["cutlass_library"])
    ] = None
    """The import name of an installed Python package."""


LibraryName = Annotated[str, Key(pattern=r"^[^-/\x00-\x1f][^/\x00-\x1f]*$")]
Soname = Annotated[str, Key(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")]


class ProductKeys(Table, frozen=True, kw_only=True):
    """What scripts and libraries say alike: what they are built for, how their sources are
    compiled, and how a library, or a script with `entry`, is linked."""

    targets: Annotated[
        tuple[Text, ...] | None, Key(min_length=1, examples=[["h100", "ampere"]])
    ] = None
    """The `[target.NAME]` to build for. Without it: all."""
    include_dirs: Annotated[tuple[Directory, ...], Key(examples=[["kernels/include"]])] = ()
    """Directories that `#include` searches before those of `[build]`."""
    headers: Annotated[tuple[HeaderPattern, ...], Key(examples=[["tables/*.inc"]])] = ()
    """Patterns of further headers, as `headers` of `[build]`."""
    flags: Annotated[
        tuple[Text, ...], Key(examples=[["--use_fast_math"], ["-Xcompiler", "-fvisibility=hidden"]])
    ] = ()
    """Arguments for the device compiler, after those of `[build]` and of the target. In a script,
    `{{ … }}` is an expression over the values of the program."""
    toolchain: Annotated[Text | None, Key(examples=["cuda12"])] = None
    """The `[toolchain.named.NAME]` that compiles and links. The toolchain of a library also
    compiles the objects of scripts that name none."""
    unsafe_flags: bool = False
    """As `unsafe-flags` of `[build]`, for these sources and for the overrides of the script."""
    defines: Annotated[Macros, Key(examples=[{"EPILOGUE": "relu"}])] = NOTHING
    """Macros, merged over those of `[build]` and of the target. In a script, `{{ … }}` is an
    expression, as in `flags`."""
    link_libs: Annotated[tuple[LibraryName, ...], Key(examples=[["cublas", "dl"]])] = ()
    """Libraries to link, as after `-l`. The hash has the content of those in `link-dirs`, and the
    name of others."""
    link_dirs: Annotated[
        tuple[Directory, ...], Key(examples=[["vendor/lib", {"package": "torch", "path": "lib"}]])
    ] = ()
    """Directories that are searched first for `link-libs`, in order."""
    rpath: Annotated[tuple[Text, ...], Key(examples=[["$ORIGIN", "$ORIGIN/../lib"]])] = ()
    """Directories that the loader searches for libraries. tilusbuild adds none."""
    needed: Annotated[tuple[Soname, ...], Key(examples=[["libfarm.so.2"]])] = ()
    """Sonames of libraries that the loading process has. The link does not read these libraries."""
    undefined: bool = False
    """Allow symbols that no linked library defines. The loading process must define them."""

    @property
    def links(self) -> bool:
        """Whether a key of the link is set."""
        return bool(self.link_libs or self.rpath or self.needed or self.undefined)


class BuildSection(Table, frozen=True):
    """Settings of every program of the project."""

    cache_dir: Annotated[Text | None, Key(examples=[".cache"])] = None
    """The directory of the cache tree; `~` is the home directory. Without it: `.cache` at the root
    of the git repository that holds the manifest, else `~/.cache/tilus`."""
    cache_max_size: Annotated[Size | None, Key(examples=["20GB"])] = None
    """The size of the cache tree that a build keeps to: one that adds programs removes what no
    project needs, the longest unused first. Without it: no limit."""
    jobs: Annotated[int | None, Key(ge=1, examples=[8])] = None
    """The number of compilers that run at once. Without it: one for each core that this process may
    use."""
    load_average: Annotated[float | None, Key(gt=0, before=reject_boolean, examples=[16.0])] = None
    """At this load average or a higher one, only one compiler runs. Without it: no limit."""
    nice: Annotated[int | None, Key(ge=0, le=19, before=reject_boolean, examples=[10])] = None
    """The niceness of the compilers, as for `nice -n`: 0 to 19. Without it: 0."""
    level: Annotated[Level | None, Key(examples=[1])] = None
    """The part of each tuning space that is built: 0 the default schedule, 1 a sample, 2 all.
    Without it: 2."""
    include_dirs: Annotated[
        tuple[Directory, ...],
        Key(examples=[["include", {"package": "cutlass_library", "path": "source/include"}]]),
    ] = ()
    """Directories that `#include` searches after those of the script, in order."""
    headers: Annotated[tuple[HeaderPattern, ...], Key(examples=[["generated/*.cuh"]])] = ()
    """Patterns of headers that programs may include and that no text of the project names, relative
    to the include directories or to the project. A pattern matches at most 20,000 files of 512
    MiB."""
    flags: Annotated[tuple[Text, ...], Key(examples=[["-O3", "-lineinfo"]])] = ()
    """Arguments for the device compiler, one per item."""
    unsafe_flags: bool = False
    """Pass on flags that run a program, write beside the output, or name a file or directory. No
    hash covers these files. A build that compiles warns."""
    defines: Annotated[Macros, Key(examples=[{"NDEBUG": 1}])] = NOTHING
    """Macros for every target. `true` defines a macro as 1, `""` as nothing."""
    line_directives: bool = False
    """Compile with `#line` directives, so that debuggers and profilers show the template. An edit
    that moves lines then compiles again."""
    timeout: Annotated[Duration, Key(examples=["10m"])] = 600.0
    """The longest time for one compile."""


def is_path(text: str) -> bool:
    """Return whether a manifest's name of a tool is a path."""
    return "/" in text or text.startswith(("~", "."))


def parse_requirement(text: str) -> "SpecifierSet":
    """Return the set of versions of nvcc that a requirement such as `>=12.4,<14` allows.

    Requirements are Python's version specifiers (PEP 440). Raises `ValueFault` for any other text,
    and for `~=` and `===`, which a reader who does not know Python's packaging cannot guess.
    """
    # Imported here: it takes some 10 ms, and most builds have no requirement.
    from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
    from packaging.version import VERSION_PATTERN

    version = text.strip()
    if re.fullmatch(VERSION_PATTERN, version, re.VERBOSE | re.IGNORECASE):
        hint = f'write ">={version}" for that or later, "=={version}.*" for that'
        raise ValueFault("is missing a comparison", hint)
    # One by one, so that the message names the wrong part.
    for part in text.split(","):
        try:
            is_allowed = Specifier(part.strip()).operator not in ("~=", "===")
        except InvalidSpecifier:
            is_allowed = False
        if not is_allowed:
            raise ValueFault(
                f'is neither a requirement on a version nor a path: "{part.strip()}"',
                'as in ">=12.4", ">=12.4,<14", "==13.0.*", or a path such as "/opt/cuda/bin/nvcc"',
            )
    return SpecifierSet(text)


def _check_nvcc(text: str) -> str:
    """Return a path, or a requirement on nvcc's version. Raises `ValueFault`."""
    if not is_path(text):
        parse_requirement(text)
    return text


def _check_march(text: str) -> str:
    """Return the name of an architecture of the host compiler. Raises `ValueFault`."""
    from tilusbuild.manifest.denied_flags import names_march

    if text == "native":
        raise ValueFault(
            'must not be "native": a package must also run on other machines',
            'name the oldest CPU that it runs on: "x86-64-v2", "x86-64-v3", "armv8-a"',
        )
    if not names_march(text):
        raise ValueFault(
            "must be the name of an architecture", 'such as "x86-64-v3" or "armv8-a+crc"'
        )
    return text


_GXX = re.compile(r"(?:.*-)?g\+\+(?:-.+)?")


def _check_cxx(text: str) -> str:
    """Return the name or the path of a g++. Raises `ValueFault`."""
    if not _GXX.fullmatch(os.path.basename(text)):
        raise ValueFault(
            "must be a g++, whose gcc is beside it", 'such as "g++-11" or "/opt/gcc-11/bin/g++"'
        )
    return text


class NamedToolchainSection(Table, frozen=True):
    """Other compilers, for each script, library or target with `toolchain = "NAME"`.

    Keys that you leave out have their values in `[toolchain]`. No hash has the name.
    """

    nvcc: Annotated[
        Text | None, Key(after=_check_nvcc, examples=[">=12.4,<14", "/opt/cuda-13.0/bin/nvcc"])
    ] = None
    """A requirement on the version of nvcc and of NVRTC, or the path of nvcc. Without it: the first
    complete toolkit."""
    cxx: Annotated[
        Text | None, Key(after=_check_cxx, examples=["g++-12", "/opt/gcc-12/bin/g++"])
    ] = None
    """The host compiler: a name on `PATH`, or a path. Its gcc must be beside it. Without it:
    that of `NVCC_CCBIN` or `CXX`, else the first g++ on `PATH`."""
    std: Standard | None = None
    """The language standard, for device and host code."""
    host_march: Annotated[Text | None, Key(after=_check_march, examples=["x86-64-v2"])] = None
    """The oldest CPU that host code runs on, as `-march` names it; `native` is an error. Without
    it: `x86-64-v2`, or `armv8-a` of a compiler for aarch64."""
    device_compiler: DeviceCompiler | None = None
    """The compiler of kernels. Programs of NVRTC and of nvcc differ."""
    cudart: Literal["static", "shared"] | None = None
    """The CUDA runtime in the library of an `entry` script: a copy of 0.7 MB, or the one that the
    process has loaded."""


class ToolchainSection(NamedToolchainSection, frozen=True):
    """The compilers, and the command that starts them."""

    std: Standard = "c++17"
    device_compiler: DeviceCompiler = "nvcc"
    cudart: Literal["static", "shared"] = "static"
    launcher: Annotated[tuple[Text, ...], Key(examples=[["srun", "-n1"]])] = ()
    """A command that every compiler is started through."""
    named: Mapping[TableName, NamedToolchainSection] = NOTHING
    """Other toolchains, by name."""


_ARCH = {"type": "string", "pattern": r"^(sm_[0-9]+[af]?|cpu)$"}
ARCHS_SCHEMA = {"anyOf": [_ARCH, {"type": "array", "items": _ARCH, "minItems": 1}]}


class TargetSection(Table, frozen=True):
    """The device to compile for: one GPU architecture, several in one binary, or the CPU."""

    arch: Annotated[
        tuple[Text, ...],
        Key(
            min_length=1,
            before=spell_archs,
            schema=ARCHS_SCHEMA,
            examples=["sm_90a", ["sm_80", "sm_90a"], "cpu"],
        ),
    ]
    """One architecture as nvcc spells it, an array of several for one binary, or `cpu`."""
    ptx: bool = False
    """Also embed PTX, which the driver compiles on later GPUs."""
    compress: bool = False
    """Pack device code by zstd, which drivers unpack when they load the code. Needs a toolkit of
    CUDA 13 or later. Cubins of generators are not packed."""
    flags: Annotated[tuple[Text, ...], Key(examples=[["-Xptxas", "-O3"]])] = ()
    """Arguments for the compiler of this target, after those of `[build]`. For `cpu` that is the
    host compiler."""
    defines: Annotated[Macros, Key(examples=[{"USE_TMA": True}])] = NOTHING
    """Macros, merged over those of `[build]`."""
    toolchain: Annotated[Text | None, Key(examples=["cuda12"])] = None
    """The `[toolchain.named.NAME]` of scripts and libraries that name none."""
    facts: Annotated[
        Mapping[FactName, AnyValue], Key(examples=[{"sms": 132, "dram_gbs": 3350}])
    ] = NOTHING
    """Numbers about the device, which expressions read as `facts.NAME`. A hash has only the value
    of an expression."""
    limits: Annotated[
        Mapping[LimitName, Annotated[int, Key(ge=1)]], Key(examples=[{"smem_per_block": 232448}])
    ] = NOTHING
    """Limits of an architecture that nvcc knows and tilusbuild does not, which expressions read as
    `arch.NAME`; memory is in bytes."""

    def list_archs(self) -> tuple[Arch, ...]:
        """Return the architectures. Raises `ArchError`."""
        return tuple(parse_arch(name, self.limits) for name in self.arch)

    @property
    def is_cpu(self) -> bool:
        """Whether the host compiler makes this target's programs."""
        return self.arch == ("cpu",)


# The names of the formats are asked for only where a manifest has one, or a schema is made: that
# imports a file of each optional room.


def _check_format(value: object) -> str:
    """Return the name of a package format. Raises `ValueFault`, with a near name as its hint."""
    names = find_contributions("package format")
    if not isinstance(value, str):
        raise ValueFault(f"must be a string, not {describe_kind(value)}")
    if value not in names:
        raise ValueFault(f"cannot be {format_toml(value)}", did_you_mean(value, names))
    return value


def _make_format_schema() -> dict[str, Any]:
    return {"type": "string", "enum": [*find_contributions("package format")]}


FormatName = Annotated[str, Key(plain=_check_format, schema=_make_format_schema)]


class PackageSection(Table, frozen=True):
    """A package for machines that compile nothing."""

    scripts: Annotated[tuple[Text, ...] | None, Key(examples=[["matmul"]])] = None
    """The scripts. Without it: all."""
    targets: Annotated[tuple[Text, ...] | None, Key(examples=[["h100"]])] = None
    """The targets. Without it: all."""
    formats: Annotated[tuple[FormatName, ...], Key(min_length=1)] = ("tar.zst",)
    """The formats to write."""
    include: Annotated[
        tuple[Literal["sources", "logs", "all"], ...], Key(examples=[["sources"]])
    ] = ()
    """Further contents: `sources` (with headers, so that `compile.sh` works), `logs` (of compilers
    and of tuning), or `all`."""
    programs: Literal["all", "dispatched"] = "all"
    """`dispatched`: only programs that a rule, a dispatch table or the default can choose. Of a
    script with a model and without a table, all programs."""
    max_size: Annotated[Size | None, Key(examples=["100MB"])] = None
    """The largest size of a package file. A larger one is an error."""
