"""The sections of `tilus.toml` but its scripts: project, build, toolchain, targets, packages."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tilusbuild.manifest import pure_flags
from tilusbuild.manifest.methods import TargetMethods
from tilusbuild.manifest.requirement import RequirementError, parse_requirement
from tilusbuild.manifest.table import (
    AnyValue,
    Duration,
    Entries,
    ManifestTable,
    Size,
    Text,
    entries,
    fault,
    kind_of,
    not_boolean,
    shorthand,
)

Standard = Literal["c++14", "c++17", "c++20", "c++23"]
Level = Annotated[Literal[0, 1, 2], BeforeValidator(not_boolean)]


class ProjectSection(ManifestTable):
    """What the project is. Nothing of it enters a program's hash."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")] = Field(
        description="The project's name: letters, digits, `.`, `_` and `-`.",
        examples=["attention-kernels"],
    )
    version: Annotated[str, Field(pattern=r"^[0-9][0-9A-Za-z.+_-]*$")] = Field(
        description="The project's version; packages have it, too.", examples=["0.1.0"]
    )
    description: str | None = Field(
        None, description="One line for people.", examples=["Attention for small batches"]
    )


class IncludeDir(ManifestTable):
    """A directory that `#include` searches: of the project, or of an installed Python package.

    Written as a path, or as `{ package = …, path = … }`. A directory of the project is named
    relative to the manifest; it may lie outside the project, and `~` is the home directory. A
    package's directory is found without importing the package, when a build needs it."""

    path: Text = Field(
        description="The directory: relative to the manifest, or to the package's own directory.",
        examples=["include"],
    )
    package: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")] | None = Field(
        None,
        description="An installed Python package (its import name) that holds the directory.",
        examples=["cutlass_library"],
    )

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: object) -> object:
        if not isinstance(value, (str, dict)):
            raise fault(
                f"must be a path or a table, not {kind_of(value)}",
                'as in "include" or { package = "cutlass_library", path = "source/include" }',
            )
        return shorthand("path", str)(value)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return or_shorthand(cls, core, handler, {"type": "string", "minLength": 1})


class BuildSection(ManifestTable):
    """What holds for every program of the project."""

    cache_dir: Text | None = Field(
        None,
        description="The cache tree's directory, relative to the manifest; `~` is the home "
        "directory. Without it: `.cache` at the root of the git repository that holds the "
        "manifest, else `~/.cache/tilus`. `--cache-dir` and `TILUSBUILD_CACHE_DIR` take "
        "precedence over it.",
        examples=[".cache"],
    )
    jobs: int | None = Field(
        None,
        ge=1,
        description="How many compilers run at once. Without it: one for each core that this "
        "process may use. `-j` and `TILUSBUILD_JOBS` take precedence over it.",
        examples=[8],
    )
    load_average: Annotated[float, BeforeValidator(not_boolean), Field(gt=0)] | None = Field(
        None,
        description="While the load average is so high, no compiler is started beside one that "
        "runs. Without it: no limit. `-l` and `TILUSBUILD_LOAD_AVERAGE` take precedence over it.",
        examples=[16.0],
    )
    nice: Annotated[int, BeforeValidator(not_boolean), Field(ge=0, le=19)] | None = Field(
        None,
        description="The niceness of the compilers, 0 to 19, as for `nice -n`. "
        "Without it: 0. `--nice` and `TILUSBUILD_NICE` take precedence over it.",
        examples=[10],
    )
    level: Level | None = Field(
        None,
        description="How much of each tuning space is built: 0 the default schedule only, 1 a "
        "sample, 2 all. Without it: 2. `--level` and `TILUSBUILD_LEVEL` take precedence over it.",
        examples=[1],
    )
    include_dirs: tuple[IncludeDir, ...] = Field(
        (),
        description="Directories that `#include` searches, in order, after the script's own.",
        examples=[["include", {"package": "cutlass_library", "path": "source/include"}]],
    )
    headers: tuple[Text, ...] = Field(
        (),
        description="Patterns of headers, relative to the include directories, that programs may "
        "include by a computed name (`#include MACRO`), which cannot be read off the source. A "
        "pattern matches at most 20,000 files of 512 MiB in a directory.",
        examples=[["generated/*.cuh"]],
    )
    flags: tuple[Text, ...] = Field(
        (),
        description="Arguments for the device compiler, one an item. The `cpu` target, which has "
        "another compiler, takes those of its own `[target.NAME]` only.",
        examples=[["-O3", "-lineinfo"]],
    )
    unsafe_flags: bool = Field(
        False,
        description="Pass on flags that are not known to be pure: they may run a program, write "
        "beside the output, or read files that no hash covers, and a build warns of it.",
    )
    defines: Entries[AnyValue] = Field(
        default_factory=entries,
        description="Preprocessor macros, for every target. `true` defines a macro as 1; `false` "
        "leaves out one that would be inherited.",
        examples=[{"NDEBUG": 1}],
    )
    line_directives: bool = Field(
        False,
        description="Compile with `#line` directives, so that debuggers and profilers show the "
        "template. Then an edit that moves lines compiles again, also where it changes no code.",
    )
    timeout: Duration = Field(
        600.0,
        description="How long one compile may take before it is stopped.",
        examples=["10m"],
    )


def or_shorthand(
    cls: type[ManifestTable],
    core: CoreSchema,
    handler: GetJsonSchemaHandler,
    *short: dict[str, Any],
) -> JsonSchemaValue:
    """Return the schema of a table that also has shorter spellings."""
    table = handler.resolve_ref_schema(handler(core))
    described: JsonSchemaValue = {"description": table.pop("description", "")}
    return {**described, "anyOf": [*short, table]}


def is_nvcc_path(text: str) -> bool:
    """Return whether `toolchain.nvcc` is a path, not a requirement."""
    return "/" in text or text.startswith(("~", "."))


def _nvcc(text: str) -> str:
    if not is_nvcc_path(text):
        try:
            parse_requirement(text)
        except RequirementError as error:
            raise fault(str(error), error.hint) from None
    return text


def _march(text: str) -> str:
    if text == "native":
        raise fault(
            'must not be "native": a package must run on other machines than this',
            'name the oldest CPU that it runs on: "x86-64-v2", "x86-64-v3", "armv8-a"',
        )
    if not pure_flags.names_march(text):
        raise fault("must be the name of an architecture", 'such as "x86-64-v3" or "armv8-a+crc"')
    return text


_GXX = re.compile(r"(?:.*-)?g\+\+(?:-.+)?")


def _cxx(text: str) -> str:
    if not _GXX.fullmatch(os.path.basename(text)):
        raise fault(
            "must be a g++, whose gcc is beside it", 'such as "g++-11" or "/opt/gcc-11/bin/g++"'
        )
    return text


Nvcc = Annotated[Text, AfterValidator(_nvcc)]
Cxx = Annotated[Text, AfterValidator(_cxx)]
March = Annotated[Text, AfterValidator(_march)]


class NamedToolchainSection(ManifestTable):
    """Other compilers, for what says `toolchain = "NAME"`: a script, a library or a target.

    What is not said here is as `[toolchain]` says it. The name is in no hash."""

    nvcc: Nvcc | None = Field(
        None,
        description="Which nvcc, as in `[toolchain]`: so NVRTC, too.",
        examples=["==13.1.*", "/opt/cuda-12.8"],
    )
    cxx: Cxx | None = Field(
        None, description="Which host compiler, as in `[toolchain]`.", examples=["g++-11"]
    )
    std: Standard | None = Field(None, description="The language standard.")
    host_march: March | None = Field(
        None, description="The oldest CPU that host code runs on.", examples=["x86-64-v3"]
    )
    device_compiler: Literal["nvcc", "nvrtc"] | None = Field(
        None,
        description="What compiles device code of the kernel pipeline. `--device-compiler` and "
        "`TILUSBUILD_DEVICE_COMPILER` take precedence over it.",
    )
    cudart: Literal["static", "shared"] | None = Field(
        None, description="How the library of an `entry` script gets the CUDA runtime."
    )


class ToolchainSection(ManifestTable):
    """Which compilers are used, and how they are started."""

    nvcc: Nvcc | None = Field(
        None,
        description="Which nvcc: a requirement on its version, or a path (relative to the "
        "manifest). Searched for in: here, `CUDA_HOME` and `CUDA_PATH`, `PATH`, "
        "`/usr/local/cuda*`, NVIDIA's wheels.",
        examples=[">=12.4,<14", "/opt/cuda-13.0/bin/nvcc"],
    )
    cxx: Cxx | None = Field(
        None,
        description="Which host compiler: a name to look up on `PATH`, or a path (relative to the "
        "manifest); its gcc is the one beside it. Without it: the first g++ and gcc on `PATH` that "
        "are not wrappers.",
        examples=["g++-12", "/opt/gcc-12/bin/g++"],
    )
    std: Standard = Field("c++17", description="The language standard, for device and host code.")
    host_march: March | None = Field(
        None,
        description="The oldest CPU that host code runs on, as the host compiler's `-march` names "
        "it; never `native`. Without it: `x86-64-v2`, or `armv8-a` on aarch64.",
        examples=["x86-64-v2"],
    )
    device_compiler: Literal["nvcc", "nvrtc"] = Field(
        "nvcc",
        description="What compiles device code of the kernel pipeline. The two make different "
        "programs. `--device-compiler` and `TILUSBUILD_DEVICE_COMPILER` take precedence over it.",
    )
    cudart: Literal["static", "shared"] = Field(
        "static",
        description="How the library of an `entry` script gets the CUDA runtime: a copy of its own "
        "(0.7 MB), or the one that the process has loaded, as torch has.",
    )
    launcher: tuple[Text, ...] = Field(
        (),
        description="A command that every compiler is started through.",
        examples=[["srun", "-n1"]],
    )
    named: Entries[NamedToolchainSection] = Field(
        default_factory=entries, description="Other toolchains, by name."
    )


def _arch_list(value: object) -> object:
    """Return one name, or several, as a tuple; that they name architectures is checked later."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, tuple):
        raise fault(
            f"must be an architecture or an array of them, not {kind_of(value)}",
            'as in "sm_90a", ["sm_80", "sm_90a"] or "cpu"',
        )
    if not value:
        raise fault("must name an architecture", 'as in "sm_90a", ["sm_80", "sm_90a"] or "cpu"')
    return value


_ARCH = {"type": "string", "pattern": r"^(sm_[0-9]+[af]?|cpu)$"}


class TargetSection(TargetMethods, ManifestTable):
    """What to compile for: one GPU architecture, several in one binary, or the CPU."""

    arch: Annotated[
        tuple[Text, ...],
        BeforeValidator(_arch_list),
        WithJsonSchema({"anyOf": [_ARCH, {"type": "array", "items": _ARCH, "minItems": 1}]}),
    ] = Field(
        description="One architecture as nvcc spells it, an array of several for one binary, or "
        "`cpu`.",
        examples=["sm_90a", ["sm_80", "sm_90a"], "cpu"],
    )
    ptx: bool = Field(False, description="Also embed PTX, which the driver compiles on later GPUs.")
    flags: tuple[Text, ...] = Field(
        (),
        description="Arguments for this target's compiler, after those of `[build]`; for `cpu`, "
        "the host compiler's.",
        examples=[["-Xptxas", "-O3"]],
    )
    defines: Entries[AnyValue] = Field(
        default_factory=entries,
        description="Preprocessor macros, over those of `[build]`.",
        examples=[{"USE_TMA": True}],
    )
    toolchain: Text | None = Field(
        None,
        description="The `[toolchain.named.NAME]` that scripts and libraries which name none are "
        "compiled with for this target.",
        examples=["cuda12"],
    )
    facts: Entries[AnyValue] = Field(
        default_factory=entries,
        description="Numbers about the device that expressions read as `facts.NAME`: for models "
        "of cost. They never enter a hash by themselves.",
        examples=[{"sms": 132, "dram_gbs": 3350}],
    )


class PackageSection(ManifestTable):
    """What to package, for machines that compile nothing."""

    scripts: tuple[Text, ...] | None = Field(
        None, description="Which scripts; all without it.", examples=[["matmul"]]
    )
    targets: tuple[Text, ...] | None = Field(
        None, description="Which targets; all without it.", examples=[["h100"]]
    )
    formats: tuple[Literal["dir", "tar.zst", "wheel", "oci"], ...] = Field(
        ("tar.zst",), min_length=1, description="The formats to write."
    )
    include: tuple[Literal["sources", "logs", "all"], ...] = Field(
        (),
        description="What to package besides libraries, options and tables: `sources` (and "
        "headers, so that `compile.sh` works), `logs` (of compilers and of tuning), or `all`.",
        examples=[["sources"]],
    )
    exclude: tuple[Literal["sources", "logs"], ...] = Field(
        (), description="What to leave out of what `include` says.", examples=[["logs"]]
    )
    programs: Literal["all", "dispatched"] = Field(
        "all",
        description="`dispatched`: only the programs that a rule, a dispatch table or the default "
        "can choose; of a script that has a model and no table, all.",
    )
    split: bool = Field(True, description="A wheel for each target, and one that finds them.")
    max_size: Size | None = Field(
        None,
        description="The maximum size of each package file; more is an error.",
        examples=["100MB"],
    )
