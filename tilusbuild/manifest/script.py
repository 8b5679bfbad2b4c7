"""`[script.NAME]`: a kernel template, how it is called, and what it is tuned over."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, GetJsonSchemaHandler, PlainValidator, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tilusbuild.expr import Value
from tilusbuild.manifest.kernels import KernelSection
from tilusbuild.manifest.methods import ParameterMethods, ScriptMethods
from tilusbuild.manifest.script_sections import (
    KERNEL_NAME,
    Arg,
    DispatchSection,
    GeneratedFrom,
    JinjaSection,
    LaunchOverride,
    LaunchSection,
    LevelsSection,
    PruneSection,
    RestrictRule,
    RuleOrFalse,
    TemplateName,
    TuneSection,
)
from tilusbuild.manifest.sections import IncludeDir, Standard, or_shorthand
from tilusbuild.manifest.table import (
    VALUE_SCHEMA,
    AnyValue,
    Entries,
    ExprSource,
    ManifestTable,
    Text,
    checked_value,
    entries,
    fault,
    kind_of,
    shorthand,
)
from tilusbuild.space.model import Row


def _row(value: object) -> Value | Row:
    if isinstance(value, tuple):
        return tuple(checked_value(item) for item in value)
    return checked_value(value)


_ROW_SCHEMA = {
    "anyOf": [VALUE_SCHEMA, {"type": "array", "items": VALUE_SCHEMA, "minItems": 1}],
}
RowOrValue = Annotated[Value | Row, PlainValidator(_row), WithJsonSchema(_ROW_SCHEMA)]
"""A value, or for linked parameters one value each."""


def _constant(value: object) -> Value | tuple[Value | Row, ...]:
    if isinstance(value, tuple):
        return tuple(_row(item) for item in value)
    if isinstance(value, dict):
        raise fault(
            "must be a value or an array of values, not a table", "a tuned parameter is in `space`"
        )
    return checked_value(value)


ParamValues = Annotated[
    Value | tuple[Value | Row, ...],
    PlainValidator(_constant),
    WithJsonSchema(
        {"anyOf": [VALUE_SCHEMA, {"type": "array", "items": _ROW_SCHEMA, "minItems": 1}]}
    ),
]
"""A constant, or an array that makes one instance of the script for each item."""


class ParameterSection(ParameterMethods, ManifestTable):
    """One tuning parameter, or several linked ones (`"warp_m, warp_n"`, with rows of values).

    Written as an array of values, or as a table with exactly one of `values`, `range` and `pow2`.
    """

    values: tuple[RowOrValue, ...] | None = Field(
        None, description="The values, in order.", examples=[[1, 2, 4], [[1, 1], [2, 2]]]
    )
    bounds: tuple[int, ...] | None = Field(
        None,
        alias="range",
        min_length=2,
        max_length=3,
        description="First and last value, both included, and optionally the step.",
        examples=[[2, 6], [32, 128, 32]],
    )
    pow2: tuple[int, int] | None = Field(
        None,
        description="All powers of two from the first to the last, both included.",
        examples=[[16, 256]],
    )
    when: Text | None = Field(
        None,
        description="An expression over other parameters. Where it is false the parameter is not "
        "tuned: it has the value of `else`.",
        examples=["not persistent"],
    )
    otherwise: RowOrValue | None = Field(
        None, alias="else", description="The value where `when` is false.", examples=[1]
    )
    default: RowOrValue | None = Field(
        None, description="The value in the default schedule.", examples=[4]
    )

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: object) -> object:
        if not isinstance(value, (tuple, dict)):
            shown = str(value).lower() if isinstance(value, bool) else value
            hint = f"one value is written [{shown}]" if isinstance(value, (int, float)) else None
            raise fault(
                f"must be an array of values or a table, not {kind_of(value)}",
                hint or "as in [16, 32], { range = [2, 6] } or { pow2 = [16, 256] }",
            )
        return shorthand("values", tuple)(value)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        values = {"type": "array", "items": _ROW_SCHEMA, "minItems": 1}
        return or_shorthand(cls, core, handler, values)


class OverrideSection(ManifestTable):
    """What differs for one target. Each entry replaces the script's of that name, whole.

    So `space.stages = { range = [3, 8] }` also drops the `default` and `when` that `stages` had.
    `flags` replaces the script's list; `restrict.NAME = false` removes a rule.
    """

    params: Entries[ParamValues] = Field(
        default_factory=entries,
        description="Constants of this target.",
        examples=[{"in_bytes": 1}],
    )
    space: Entries[ParameterSection] = Field(
        default_factory=entries,
        description="Parameters of this target.",
        examples=[{"stages": {"range": [3, 8]}}],
    )
    derived: Entries[ExprSource] = Field(
        default_factory=entries,
        description="Derived values of this target.",
        examples=[{"threads": "warp_m * warp_n * 32 + 128"}],
    )
    restrict: Entries[RuleOrFalse] = Field(
        default_factory=entries,
        description="Rules of this target; `false` removes one.",
        examples=[{"tile_m": False}],
    )
    launch: LaunchOverride | None = Field(None, description="Launch geometry of this target.")
    default: Entries[AnyValue] = Field(
        default_factory=entries,
        description="The default schedule of this target.",
        examples=[{"block_m": 256}],
    )
    flags: tuple[Text, ...] | None = Field(
        None, description="Compiler arguments in place of the script's.", examples=[["-O2"]]
    )
    defines: Entries[AnyValue] = Field(
        default_factory=entries, description="Macros of this target.", examples=[{"USE_TMA": 1}]
    )


class ScriptSection(ScriptMethods, ManifestTable):
    """A kernel template, how it is called, and what it is tuned over."""

    description: str | None = Field(
        None, description="One line for people.", examples=["C = A @ B, in half precision"]
    )
    template: TemplateName = Field(
        description="The Jinja2 template, relative to the manifest and inside the project; or of "
        "an installed Python package, which is not imported.",
        examples=["kernels/matmul.cu.j2", {"package": "flashinfer", "path": "data/csrc/pod.cu"}],
    )
    generate: Entries[GeneratedFrom] = Field(
        default_factory=entries,
        description="Headers that are rendered for each program, as its source is: the name that "
        '`#include "…"` has, and the template.',
        examples=[{"config.inc": "kernels/config.inc.j2"}],
    )
    render: bool = Field(
        True,
        description="`false`: the file is the source, byte for byte. Its programs differ by "
        "`flags`, `defines` and the `kernel` that is named.",
    )
    jinja: JinjaSection = Field(
        default_factory=JinjaSection,
        description='The syntax of the templates; `"jinja2"` (the default) is that of Jinja2.',
        examples=["jinja2", {"trim-blocks": False}],
    )
    kernel: Annotated[str, Field(pattern=KERNEL_NAME)] | None = Field(
        None,
        description="The `__global__` function that the template defines; the launcher is written "
        'by tilusbuild. A plain name is that of an `extern "C"` function; others are C++ names, '
        "`::saxpy` too. `{{ … }}` is an expression over the program's values. Exactly one of "
        "`kernel` and `entry`.",
        examples=["matmul", "marlin::Marlin<{{ threads }}, {{ stages }}>"],
    )
    kernels: Entries[KernelSection] = Field(
        default_factory=entries,
        description="Several kernels of the template, in place of `kernel`: each is a script "
        "`NAME.KERNEL`, and all are one translation unit.",
    )
    entry: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = Field(
        None,
        description="The host launch function that the template defines itself. Exactly one of "
        "`kernel` and `entry`.",
        examples=["launch"],
    )
    library: Text | None = Field(
        None,
        description="The `[library.NAME]` that every program of this script is an object of, in "
        "place of `kernel` and `entry`: the template defines what it likes, under C++ names.",
        examples=["backend"],
    )
    targets: tuple[Text, ...] | None = Field(
        None,
        min_length=1,
        description="Names of `[target.NAME]` to build for; all without it.",
        examples=[["h100", "ampere"]],
    )
    args: Entries[Arg] = Field(
        default_factory=entries,
        description="The call signature, in the kernel's order.",
        examples=[{"a": "f16*[m, k]", "m": "i32"}],
    )
    params: Entries[ParamValues] = Field(
        default_factory=entries,
        description="Constants. An array makes one instance of the script for each value; several "
        "arrays, one for each combination. Linked constants are written like linked parameters.",
        examples=[{"dtype": ["f16", "bf16"], "in_bytes": 2}],
    )
    space: Entries[ParameterSection] = Field(
        default_factory=entries,
        description="The tuning space: the first parameter varies slowest.",
        examples=[{"block_k": [16, 32, 64], "stages": {"range": [2, 6]}}],
    )
    space_file: Text | None = Field(
        None,
        description="A T1 JSON file that holds the space, in place of `space`.",
        examples=["spaces/matmul.t1.json"],
    )
    derived: Entries[ExprSource] = Field(
        default_factory=entries,
        description="Values computed from the parameters. Rules, template, launch and dispatch "
        "see them by name; they may use each other in any order.",
        examples=[{"threads": "warp_m * warp_n * 32"}],
    )
    restrict: Entries[RestrictRule] = Field(
        default_factory=entries,
        description="Rules by name: a schedule is valid where every one of them is true.",
        examples=[{"smem_fits": "smem <= arch.smem_per_block"}],
    )
    default: Entries[AnyValue] = Field(
        default_factory=entries,
        description="The schedule that is used when nothing better is known; it "
        "takes precedence over the `default` of a parameter.",
        examples=[{"block_m": 128}],
    )
    override: Entries[OverrideSection] = Field(
        default_factory=entries, description="What differs, by the name of a target."
    )
    launch: LaunchSection | None = Field(
        None, description="The launch geometry; needed with `kernel` for GPU targets."
    )
    group: tuple[Text, ...] | None = Field(
        None,
        description="Compile the schedules that differ only in other parameters than these in one "
        "translation unit: one front end, a kernel each. The template sees these parameters and "
        "no others; `kernel` has the rest. `[]`: all schedules of an instance.",
        examples=[["scalar_type", "dtype"]],
    )
    include_dirs: tuple[IncludeDir, ...] = Field(
        (),
        description="Directories that `#include` searches, before those of `[build]`.",
        examples=[["kernels/include"]],
    )
    headers: tuple[Text, ...] = Field(
        (),
        description="Patterns of headers for computed includes, besides those of `[build]`.",
        examples=[["tables/*.inc"]],
    )
    flags: tuple[Text, ...] = Field(
        (),
        description="Device compiler arguments, after those of `[build]` and of the target. "
        "`{{ … }}` is an expression over the program's values.",
        examples=[["--use_fast_math"], ["-maxrregcount={{ regs }}"]],
    )
    std: Standard | None = Field(
        None, description="The language standard, in place of that of `[toolchain]`."
    )
    toolchain: Text | None = Field(
        None,
        description="The `[toolchain.named.NAME]` that this script is compiled with, in place of "
        "`[toolchain]`.",
        examples=["cuda12"],
    )
    device_compiler: Literal["nvcc", "nvrtc"] | None = Field(
        None,
        description="What compiles the kernel's device code, in place of `device-compiler` of "
        "`[toolchain]`. `--device-compiler` and `TILUSBUILD_DEVICE_COMPILER` have the last word.",
    )
    cudart: Literal["static", "shared"] | None = Field(
        None, description="With `entry`: in place of `cudart` of `[toolchain]`."
    )
    unsafe_flags: bool = Field(
        False, description="As `unsafe-flags` of `[build]`, for this script and its overrides."
    )
    defines: Entries[AnyValue] = Field(
        default_factory=entries,
        description="Preprocessor macros, over those of `[build]` and of the target.",
        examples=[{"EPILOGUE": "relu"}],
    )
    levels: LevelsSection = Field(
        default_factory=LevelsSection, description="What the levels of the search space mean."
    )
    prune: PruneSection = Field(
        default_factory=PruneSection, description="Which compiled kernels are left out."
    )
    dispatch: DispatchSection | None = Field(None, description="Which schedule serves which sizes.")
    tune: TuneSection | None = Field(None, description="How `run` and `tune` call the kernel.")
