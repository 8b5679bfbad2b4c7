"""`space` and `params`: what a script is tuned over, and what it is fixed to.

`parameter_of` and `constant_of` make the space's own `Parameter` of a section that the checks have
passed; of another they may raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

from pydantic import Field, GetJsonSchemaHandler, PlainValidator, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tilusbuild.expr import Expr, Value, parse
from tilusbuild.manifest.names import linked_names
from tilusbuild.manifest.sections import or_shorthand
from tilusbuild.manifest.table import (
    VALUE_SCHEMA,
    Table,
    Text,
    checked_value,
    fault,
    kind_of,
    shorthand,
)
from tilusbuild.space.spec import Parameter, Row


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


class ParameterSection(Table):
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

    def domain(self) -> tuple[Value | Row, ...]:
        """Return the values as written or counted out, not yet as rows."""
        if self.values is not None:
            return self.values
        if self.bounds is not None:
            first, last, *step = self.bounds
            return tuple(range(first, last + 1, step[0] if step else 1))
        first, last = self.pow2 or (1, 0)
        return tuple(1 << n for n in range(first.bit_length() - 1, last.bit_length()))


def parameter_of(key: str, parameter: ParameterSection) -> Parameter:
    """Return a checked parameter as rows. `key` is the manifest's: `"warp_m, warp_n"` links two."""
    return Parameter(
        linked_names(key),
        tuple(as_row(value) for value in parameter.domain()),
        expression(parameter.when) if parameter.when is not None else None,
        as_row(parameter.otherwise) if parameter.otherwise is not None else None,
        as_row(parameter.default) if parameter.default is not None else None,
    )


def constant_of(key: str, values: Value | tuple[Value | Row, ...]) -> Parameter:
    """Return a checked entry of `params` as rows: one instance of the script for each."""
    rows = values if isinstance(values, tuple) else (values,)
    return Parameter(linked_names(key), tuple(as_row(value) for value in rows))


def as_row(value: Value | Row) -> Row:
    """One value for each name."""
    return value if isinstance(value, tuple) else (value,)


@lru_cache(maxsize=4096, typed=True)
def expression(source: Value) -> Expr:
    """`parse`, remembered: views of many targets ask for the same texts. Raises `ExprError`."""
    return parse(source)


def with_defaults(
    parameters: Mapping[str, ParameterSection], chosen: Mapping[str, Value]
) -> dict[str, Value]:
    """Return each parameter's default, where it has one; `chosen` takes precedence over it."""
    own = {
        name: value
        for key, parameter in parameters.items()
        if parameter.default is not None
        for name, value in zip(linked_names(key), as_row(parameter.default), strict=True)
    }
    return own | dict(chosen)
