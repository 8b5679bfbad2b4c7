"""The sections of a script: template, rules, arguments, launch, levels, prune, dispatch, tune."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tilusbuild.manifest.names import PACKAGE
from tilusbuild.manifest.sections import or_shorthand
from tilusbuild.manifest.table import (
    VALUE_SCHEMA,
    AnyValue,
    Entries,
    ExprSource,
    ManifestTable,
    Text,
    entries,
    fault,
    kind_of,
    shorthand,
)
from tilusbuild.runtime.dtypes import TENSOR_MAP


def _rule(value: object) -> object:
    if not isinstance(value, str):
        raise fault(
            f"must be an expression in quotes, not {kind_of(value)}",
            "in an override, false removes a rule" if isinstance(value, bool) else None,
        )
    return value


def _rule_or_false(value: object) -> object:
    return value if value is False else _rule(value)


RestrictRule = Annotated[Text, BeforeValidator(_rule)]
RuleOrFalse = Annotated[
    Text | Literal[False],
    BeforeValidator(_rule_or_false),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, {"const": False}]}),
]


class LevelsSection(ManifestTable):
    """What the levels of the search space mean: 0 is the default only, 1 a sample, 2 all."""

    sample: int = Field(64, ge=1, description="How many schedules level 1 builds of an instance.")
    seed: int = Field(
        0, ge=0, description="The random seed of the sample: the same seed gives the same sample."
    )


class PruneSection(ManifestTable):
    """Which compiled kernels are left out, by the resources that their cubin needs.

    Each is a number, or an expression over parameters, derived values and `arch.*`. A program that
    is left out is recorded with the reason, and is not compiled again.
    """

    max_registers: ExprSource | None = Field(
        None,
        description="The maximum number of registers of a thread.",
        examples=[255, "255 if stages > 3 else 128"],
    )
    max_spill_bytes: ExprSource | None = Field(
        None,
        description="The maximum number of bytes that a thread spills to local memory; leave it "
        "out to keep spillers.",
        examples=[0],
    )
    min_blocks_per_sm: ExprSource | None = Field(
        None,
        description="The minimum number of blocks that fit one multiprocessor at a time.",
        examples=[1],
    )


class Bucket(ManifestTable):
    """How the sizes of one dimension are grouped.

    Written `"tilus"` (two buckets an octave, the default), `"pow2"` (one), `"exact"` (each size),
    as an array of edges, or as `{ every = N }`.
    """

    kind: Literal["tilus", "pow2", "exact"] | None = Field(
        None, description="A rule by name.", examples=["tilus"]
    )
    edges: tuple[int, ...] | None = Field(
        None,
        min_length=1,
        description="The greatest size of each bucket, rising.",
        examples=[[16, 64, 256]],
    )
    every: int | None = Field(None, ge=1, description="Buckets of this many sizes.", examples=[128])

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: object) -> object:
        if not isinstance(value, (str, tuple, dict)):
            raise fault(
                f"must be a rule, not {kind_of(value)}",
                'one of "tilus", "pow2", "exact", an array of edges, { every = N }',
            )
        return shorthand("edges", tuple)(shorthand("kind", str)(value))

    @model_validator(mode="after")
    def _one_rule(self) -> Bucket:
        if sum(rule is not None for rule in (self.kind, self.edges, self.every)) != 1:
            raise fault(
                "must be exactly one rule",
                '"tilus", "pow2", "exact", an array of edges, { every = N }',
            )
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return or_shorthand(
            cls,
            core,
            handler,
            {"enum": ["tilus", "pow2", "exact"]},
            {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        )


class DispatchTableRow(ManifestTable):
    """One row of a hand-written dispatch table."""

    when: Text = Field(
        description="An expression over the integer arguments of the call, `params`, `arch.*` and "
        "`facts.*`.",
        examples=["m <= 16"],
    )
    use: Entries[AnyValue] = Field(
        description="The schedule to use: parameters of the space; what is left out is as in the "
        "default schedule.",
        examples=[{"block_m": 16}],
    )


class DispatchSection(ManifestTable):
    """Which schedule serves which sizes, where nothing is measured or a person knows better.

    The first rule of `table` whose `when` holds decides; then what was measured; then `model`; then
    the default schedule.
    """

    keys: tuple[Text, ...] = Field(
        min_length=1,
        description="The integer arguments that the choice depends on.",
        examples=[["m", "n"]],
    )
    bucket: Entries[Bucket] = Field(
        default_factory=entries,
        description="How the sizes of each key are grouped; a key that is left out: `tilus`.",
        examples=[{"m": "tilus", "n": "exact"}],
    )
    model: Text | None = Field(
        None,
        description="An expression for the cost of a schedule at some sizes: lower is better. It "
        "sees the keys, the schedule, and `resources.NAME` of the compiled program.",
        examples=["cdiv(m, block_m) * cdiv(n, block_n) / facts.sms"],
    )
    bytes: Text | None = Field(
        None,
        description="For the built-in model in place of one's own: the bytes that a call moves to "
        "and from memory, over the same names. It needs `facts.dram_gbs`.",
        examples=["2 * (m * k * cdiv(n, block_n) + n * k * cdiv(m, block_m) + m * n)"],
    )
    flops: Text | None = Field(
        None,
        description="Likewise the operations of a call. It needs `facts.tflops`.",
        examples=["2 * m * n * k"],
    )
    table: tuple[DispatchTableRow, ...] = Field(
        (),
        description="Rules by hand, which take precedence over everything else.",
        examples=[[{"when": "m <= 16", "use": {"block_m": 16}}]],
    )


def _members(value: object) -> object:
    """Give the members of structs names of their own: `p.alpha`, `p.strides[0]`."""
    if not isinstance(value, dict):
        return value
    found: dict[str, object] = {}
    for name, given in value.items():
        if not isinstance(given, dict):
            found[name] = given
            continue
        for member, each in given.items():
            place = f"{name}.{member}"
            if isinstance(each, list | tuple):
                found |= {f"{place}[{number}]": item for number, item in enumerate(each)}
            else:
                found[place] = each
    return found


_NUMBERS = {"anyOf": [VALUE_SCHEMA, {"type": "array", "items": VALUE_SCHEMA}]}
CallSizes = Annotated[
    Entries[AnyValue],
    BeforeValidator(_members),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {
                "anyOf": [VALUE_SCHEMA, {"type": "object", "additionalProperties": _NUMBERS}]
            },
        }
    ),
]


class TuneSection(ManifestTable):
    """How `run` and `tune` call the kernel and check its results."""

    ref: Annotated[str, Field(pattern=r"^.+\.py:[A-Za-z_][A-Za-z0-9_]*$")] | None = Field(
        None,
        description="A Python function that takes the arguments and returns the expected outputs: "
        "`FILE.py:FUNCTION`, relative to the manifest.",
        examples=["ref.py:matmul"],
    )
    rtol: float = Field(1e-3, ge=0, description="The relative error allowed.", examples=[1e-2])
    atol: float = Field(1e-5, ge=0, description="The absolute error allowed.", examples=[1e-3])
    sizes: tuple[CallSizes, ...] = Field(
        (),
        description="Sizes to call with: the dimensions, and other scalar arguments where wanted; "
        "of a struct its members, as `p.alpha = 0.5`. A pointer needs 0, which is null.",
        examples=[[{"m": 16, "n": 4096, "k": 4096}]],
    )


_VARIABLE = r"^(::)?[A-Za-z_][A-Za-z0-9_]*(::[A-Za-z_][A-Za-z0-9_]*)*$"


def _variable(value: object) -> object:
    if isinstance(value, bool) or (isinstance(value, str) and re.fullmatch(_VARIABLE, value)):
        return value
    raise fault(
        "must be true, or the name of a variable in the template",
        'as in constant = "d_filter"',
    )


VariableName = Annotated[
    bool | Text,
    BeforeValidator(_variable),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": _VARIABLE}]}),
]


class Arg(ManifestTable):
    """One argument of the kernel: a tensor such as `f16*[m, k]`, or a scalar such as `i32`.

    Written as its type, or as a table. An `i32` or `i64` that a tensor names as a bare dimension is
    read off that tensor's shape, so callers do not pass it.
    """

    type: Text = Field(
        description="The type. A tensor is an element type, `*` and its dimensions. Element "
        "types: `bool i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2 f8e8m0 "
        "f4e2m1x2` (two values, one byte), or a "
        "parameter of `params` whose value is one. `void*` is an opaque pointer: an address, or "
        "None. A struct that is passed by value has its C++ name and its members.",
        examples=["f16*[m, k]", "i32", "void*", "struct Params { f32 alpha; i64 strides[3] }"],
    )
    out: bool = Field(False, description="The kernel writes this tensor.")
    bounds: tuple[int, int] | None = Field(
        None,
        alias="range",
        description="The least and the greatest value of an integer argument, both allowed.",
        examples=[[1, 8192]],
    )
    align: int | None = Field(
        None,
        ge=1,
        description="Bytes that a tensor's address must be a multiple of. Without it: the "
        "element's size.",
        examples=[16],
    )
    optional: bool = Field(
        False, description="A caller may pass None for this tensor: its pointer is null then."
    )
    strides: tuple[Text | int, ...] | None = Field(
        None,
        description="The strides of a tensor that need not be contiguous, in elements: a number "
        "that it must have, or an `i32` or `i64` argument that is read off it.",
        examples=[["row", 1]],
    )
    parameter: bool = Field(
        True,
        description="`false`: the kernel does not take it. It is checked, and launch, shapes and "
        "tensor maps use it. The functions of `cpu` targets and of `entry` take it all the same.",
    )
    constant: VariableName = Field(
        False,
        description="The `__constant__` (or `__device__`) variable that the argument is copied to "
        "before each launch; `true` for the one with its name. The kernel has no parameter for it; "
        "the functions of `cpu` targets take it all the same. A tensor may be on the host.",
        examples=[True, "d_filter", "conv::filter"],
    )
    tensor_map: Text | None = Field(
        None,
        description="The tensor that this parameter, a `const __grid_constant__ CUtensorMap`, is a "
        "map of. The launcher makes it, and no caller passes it; `type` is left out. For sm_90 and "
        "later; the functions of `cpu` targets do not take it.",
        examples=["a"],
    )
    box: tuple[ExprSource, ...] | None = Field(
        None,
        description="Of a tensor map: the elements of a copy, in the tensor's order of dimensions. "
        "Expressions over constants, as in the following ones.",
        examples=[["block_m", "block_k"]],
    )
    element_strides: tuple[ExprSource, ...] | None = Field(
        None, description="Of a tensor map: its traversal strides.", examples=[[1, 2]]
    )
    swizzle: ExprSource = Field(
        0,
        description="Of a tensor map: the bytes of the swizzle, 0, 32, 64 or 128.",
        examples=[128, "block_k * 2"],
    )
    interleave: ExprSource = Field(
        0, description="Of a tensor map: the bytes of the interleaved layout, 0, 16 or 32."
    )
    l2_promotion: ExprSource = Field(
        0, description="Of a tensor map: the bytes that L2 fetches, 0, 64, 128 or 256."
    )
    oob_fill: Literal["zero", "nan"] = Field(
        "zero", description="Of a tensor map: what elements outside of the tensor read as."
    )

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: object) -> object:
        if isinstance(value, dict) and "tensor-map" in value:
            value = {"type": TENSOR_MAP, **value}
        if not isinstance(value, (str, dict)):
            raise fault(
                f"must be a type or a table, not {kind_of(value)}",
                'as in "f16*[m, k]" or { type = "f16*[m, k]", out = true }',
            )
        return shorthand("type", str)(value)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        made = or_shorthand(cls, core, handler, {"type": "string", "minLength": 1})
        text, table = made["anyOf"]
        return {**made, "anyOf": [text, table, {**table, "required": ["tensor-map"]}]}


class _InPackage(ManifestTable):
    """A file of an installed Python package."""

    package: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")] = Field(
        description="The package's import name."
    )
    path: Text = Field(description="The file, relative to the package's own directory.")


def _template_name(value: object) -> object:
    if not isinstance(value, dict):
        return value
    file = _InPackage.model_validate(value)
    if ".." in file.path.split("/") or file.path.startswith("/"):
        raise fault("a package's file is inside the package")
    return f"{PACKAGE}{file.package}/{file.path}"


TemplateName = Annotated[
    Text,
    BeforeValidator(_template_name),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, _InPackage.model_json_schema()]}),
]


def _generated_from(value: object) -> object:
    if not isinstance(value, str):
        raise fault(
            f"must be a template, not {kind_of(value)}", 'as in "config.inc" = "config.inc.j2"'
        )
    return value


GeneratedFrom = Annotated[Text, BeforeValidator(_generated_from)]

_VALUE = r"\{\{[^{}]*\}\}"
_PART = rf"([A-Za-z_]|{_VALUE})([A-Za-z0-9_]|{_VALUE})*"
KERNEL_NAME = rf"^(::)?{_PART}(::{_PART})*(<.*>)?$"
"""A C name, or a C++ one with template arguments; either with values of the program."""


class JinjaSection(ManifestTable):
    """How Jinja2 reads a script's templates, where they were written for other settings."""

    trim_blocks: bool = Field(True, description="A block tag takes the newline behind it along.")
    lstrip_blocks: bool = Field(True, description="A block tag takes the blanks before it along.")
    keep_trailing_newline: bool = Field(True, description="The last newline stays.")
    undefined: Literal["error", "empty"] = Field(
        "error", description="What a name is that nothing defines: an error, or empty and false."
    )
    cpp_values: bool = Field(
        True, description="`{{ true }}` writes `true`; without it `True`, as Python does."
    )

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: object) -> object:
        if value == "jinja2":
            return dict.fromkeys((*_SWITCHES, "cpp-values"), False) | {"undefined": "empty"}
        if not isinstance(value, dict):
            raise fault('must be "jinja2" or a table', 'as in jinja = { "trim-blocks" = false }')
        return value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return or_shorthand(cls, core, handler, {"const": "jinja2"})


_SWITCHES = ("trim-blocks", "lstrip-blocks", "keep-trailing-newline")


class LaunchOverride(ManifestTable):
    """A target's own launch geometry; what it leaves out stays."""

    grid: tuple[ExprSource, ...] | None = Field(
        None,
        min_length=1,
        max_length=3,
        description="One to three expressions: blocks in x, y and z.",
        examples=[["cdiv(n, block_n)", "cdiv(m, block_m)"]],
    )
    block: tuple[ExprSource, ...] | None = Field(
        None,
        min_length=1,
        max_length=3,
        description="One to three expressions: threads of a block in x, y and z.",
        examples=[["threads"]],
    )
    smem: ExprSource | None = Field(
        None, description="Bytes of dynamic shared memory of a block.", examples=["smem"]
    )
    cluster: tuple[ExprSource, ...] | None = Field(
        None,
        min_length=1,
        max_length=3,
        description="One to three expressions: blocks of a cluster in x, y and z, of which the "
        "grid is a multiple. For sm_90 and later; without it, and where it is one block, there "
        "are not clusters.",
        examples=[["cluster_m", 1]],
    )
    cooperative: ExprSource | None = Field(
        None,
        description="Whether all blocks must be resident at once, as `grid.sync()` needs. A bool, "
        "or an expression without arguments of the call.",
        examples=[True],
    )
    pdl: ExprSource | None = Field(
        None,
        description="Programmatic dependent launch: whether the kernel may start before the one "
        "ahead of it in the stream has ended; it then waits by itself "
        "(`cudaGridDependencySynchronize()`). For sm_90 and later. A bool, or an expression "
        "without arguments of the call.",
        examples=["arch.number >= 90"],
    )
    carve_out: ExprSource | None = Field(
        None,
        description="How many percent of the memory that shared memory and the L1 cache have in "
        "common the driver should give to shared memory: 0 to 100, or an expression without "
        "arguments of the call.",
        examples=[100],
    )


class LaunchSection(LaunchOverride):
    """The launch geometry, which the launcher computes at each call.

    Expressions see the script's parameters, its derived values, `arch.*`, `facts.*`, and the
    integer arguments of the call. Needed with `kernel` for GPU targets; a `cpu` target ignores it.
    """

    smem: ExprSource = Field(
        0, description="Bytes of dynamic shared memory of a block.", examples=["smem"]
    )
