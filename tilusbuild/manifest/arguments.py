"""`[script.NAME.args]` and `[script.NAME.launch]`: how a kernel is called."""

from __future__ import annotations

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tilusbuild.manifest.project import or_shorthand
from tilusbuild.manifest.table import ExprSource, Table, Text, fault, kind_of, shorthand


class Arg(Table):
    """One argument of the kernel: a tensor such as `f16*[m, k]`, or a scalar such as `i32`.

    Written as its type, or as a table. An `i32` or `i64` that a tensor names as a bare dimension is
    read off that tensor's shape, so callers do not pass it.
    """

    type: Text = Field(
        description="The type. A tensor is an element type, `*` and its dimensions. Element "
        "types: `bool i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2`, or a "
        "parameter of `params` whose value is one.",
        examples=["f16*[m, k]", "i32"],
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

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: object) -> object:
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
        return or_shorthand(cls, core, handler, {"type": "string", "minLength": 1})


class LaunchOverride(Table):
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


class LaunchSection(LaunchOverride):
    """The launch geometry, which the launcher computes at each call.

    Expressions see the script's parameters, its derived values, `arch.*`, `facts.*`, and the
    integer arguments of the call. Needed with `kernel` for GPU targets; a `cpu` target ignores it.
    """

    smem: ExprSource = Field(
        0, description="Bytes of dynamic shared memory of a block.", examples=["smem"]
    )
