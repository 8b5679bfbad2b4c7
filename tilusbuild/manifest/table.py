"""What all tables of the manifest share: frozen, nothing unknown, nothing converted silently.

A key's words are those of its `Field(description=…)`: the JSON schema and `docs/manifest.md` are
both made from the models. Validators raise `fault`, whose text is shown to the user as it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    PlainValidator,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    WrapSerializer,
)
from pydantic_core import PydanticCustomError

from tilusbuild.errors import input_error
from tilusbuild.expr import Value
from tilusbuild.manifest.methods import TableMethods

if TYPE_CHECKING:
    from typing_extensions import Self

_Number = TypeVar("_Number", int, float)

_SIZE_UNITS = {
    "": 1,
    "B": 1,
    "KB": 1000,
    **{prefix + "B": 1000**power for power, prefix in enumerate("kMGT", 1)},
    **{prefix + "iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?\s*(?:ms|[smhd])\s*)+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhd])")


MAX_DURATION = 1000 * 86400
"""Seconds. What is meant to be without end is not given."""
MAX_SIZE = 1 << 62


def _toml_spelling(name: str) -> str:
    return name.replace("_", "-")


class ManifestTable(TableMethods, BaseModel):
    """A table with known keys, spelt with `-` in the manifest and with `_` in Python."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", alias_generator=_toml_spelling
    )

    @property
    def given(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in sorted(self.model_fields_set)}

    def replaced(self, **changes: object) -> Self:
        return self.model_copy(update=changes)


def fault(message: str, hint: str | None = None) -> PydanticCustomError:
    """Return a validator's error: what is wrong, after the key's name, and what would be right."""
    return PydanticCustomError("tilusbuild", "{message}", {"message": message, "hint": hint})


def kind_of(value: object) -> str:
    """Return a TOML value's kind in words."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, (list, tuple)):
        return "an array"
    if isinstance(value, Mapping):
        return "a table"
    return "a date or time"


def checked_value(value: object) -> Value:
    """Return a boolean, an integer of 64 bits, a finite number or a string; raises a `fault`."""
    if not isinstance(value, (bool, int, float, str)):
        raise fault(f"must be a number, a string or a boolean, not {kind_of(value)}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise fault("does not fit in 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise fault("must be finite")
    return value


def _expression_source(value: object) -> Value:
    if not isinstance(value, (bool, int, float, str)):
        raise fault(f"must be an expression in quotes, or a number, not {kind_of(value)}")
    return checked_value(value)


def _text(value: str) -> str:
    if "\0" in value:
        raise fault("must not hold a NUL character")
    if not value:
        raise fault("must not be empty")
    return value


def _size(value: object) -> int:
    right = 'write a number of bytes or a size such as "100MB" or "1.5GiB"'
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        size: float = value
    elif match and match.group(2) in _SIZE_UNITS:
        size = float(match.group(1)) * _SIZE_UNITS[match.group(2)]
    else:
        raise fault("is not a size", right)
    if size > MAX_SIZE:
        raise fault("is more than any machine has", right)
    if size < 1:
        raise fault("must be more than nothing", right)
    return int(size)


def _duration(value: object) -> float:
    right = 'write seconds, or a duration such as "90s", "10m" or "1h30m"'
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = _float(value)
    elif isinstance(value, str) and _DURATION.fullmatch(value.strip()):
        parts = _DURATION_PART.findall(value)
        seconds = sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)
    else:
        raise fault("is not a duration", right)
    if not seconds > 0:
        raise fault("must be more than nothing", right)
    if seconds > MAX_DURATION:
        raise fault(f"must be {MAX_DURATION // 86400} days at most", right)
    return seconds


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of more than 1024 bits
        return math.copysign(math.inf, value)


def parse_size(text: str) -> int:
    """Return bytes of a size on the command line. Raises `InputError`."""
    return _on_command_line(text, _size)


def parse_duration(text: str) -> float:
    """Return seconds of a duration on the command line. Raises `InputError`."""
    return _on_command_line(text, _duration)


def _on_command_line(text: str, read: Callable[[object], _Number]) -> _Number:
    try:
        return read(text)
    except PydanticCustomError as error:
        hint = (error.context or {}).get("hint")
        raise input_error(f'"{text}" {error.message()}', hint=hint) from None


def not_boolean(value: object) -> object:
    """For numbers by choice: Python takes `true` for 1."""
    if isinstance(value, bool):
        raise fault("must be an integer, not a boolean")
    return value


def shorthand(key: str, *kinds: type) -> Callable[[object], object]:
    """Return a validator's function that reads a bare value of `kinds` as a table with just
    `key`."""

    def expand(value: object) -> object:
        return {key: value} if isinstance(value, kinds) else value

    return expand


Key = TypeVar("Key")
Item = TypeVar("Item")


def entries(items: Mapping[Key, Item] | None = None) -> Mapping[Key, Item]:
    """Return a read-only copy: what `default_factory` and `Entries` make."""
    return MappingProxyType(dict(items or {}))


def _as_dict(items: Mapping[str, Item], write: SerializerFunctionWrapHandler) -> Any:
    return write(dict(items))


Entries = Annotated[Mapping[str, Item], AfterValidator(entries), WrapSerializer(_as_dict)]
"""A table whose keys are the user's own, in declared order, read-only."""

Text = Annotated[str, AfterValidator(_text), WithJsonSchema({"type": "string", "minLength": 1})]
"""A string that may become a path or an argument of a process."""

VALUE_SCHEMA = {"type": ["boolean", "integer", "number", "string"]}
AnyValue = Annotated[Value, PlainValidator(checked_value), WithJsonSchema(VALUE_SCHEMA)]
ExprSource = Annotated[Value, PlainValidator(_expression_source), WithJsonSchema(VALUE_SCHEMA)]
"""An expression as written: a string, or a constant."""

Size = Annotated[
    int,
    PlainValidator(_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^\d+(\.\d+)?\s*([kKMGT]?B|[KMGT]iB)?$"},
            ]
        }
    ),
]
"""Bytes. `kB MB GB TB` are powers of 1000, `KiB MiB GiB TiB` of 1024."""

Duration = Annotated[
    float,
    PlainValidator(_duration),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^(\d+(\.\d+)?\s*(ms|[smhd])\s*)+$"},
            ]
        }
    ),
]
"""Seconds."""
