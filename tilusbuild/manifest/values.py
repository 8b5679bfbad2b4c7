"""The types of single values: texts, expressions, sizes, durations; also of the command line's."""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar

from tilusbuild.errors import input_error
from tilusbuild.expr import Value
from tilusbuild.manifest.table import Key, ValueFault, describe_kind
from tilusbuild.runtime import durations

_Number = TypeVar("_Number", int, float)

_SIZE_UNITS = {
    "": 1,
    "B": 1,
    "KB": 1000,
    **{prefix + "B": 1000**power for power, prefix in enumerate("kMGT", 1)},
    **{prefix + "iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}
# As in "1.5 GiB": the number, and the unit.
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")

MAX_DURATION = 1000 * 86400
"""Seconds. A duration without a limit is omitted, not written as a large number."""
MAX_SIZE = 1 << 62


def check_value(value: object, kind: str = "a number, a string or a boolean") -> Value:
    """Return a bool, a 64-bit integer, a finite number or a string. Raises `ValueFault`."""
    if not isinstance(value, (bool, int, float, str)):
        raise ValueFault(f"must be {kind}, not {describe_kind(value)}")
    # The language of expressions has 64-bit integers, in Python and in C.
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueFault("does not fit in 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueFault("must be finite")
    return value


def _check_text(value: str) -> str:
    """Return a text. Raises `ValueFault` for an empty one, and for one with a NUL."""
    if "\0" in value:
        raise ValueFault("must not hold a NUL character")
    if not value:
        raise ValueFault("must not be empty")
    return value


def _read_size(value: object) -> int:
    """Return the bytes of a number or of a text such as "1.5GiB". Raises `ValueFault`."""
    hint = 'write a number of bytes or a size such as "100MB" or "1.5GiB"'
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if type(value) is int:  # `isinstance` would take a boolean for an integer
        size: float = value
    elif match and match.group(2) in _SIZE_UNITS:
        size = float(match.group(1)) * _SIZE_UNITS[match.group(2)]
    else:
        raise ValueFault("is not a size", hint)
    if size > MAX_SIZE:
        raise ValueFault("is more than any machine has", hint)
    if size < 1:
        raise ValueFault("must be more than nothing", hint)
    return int(size)


def _read_duration(value: object) -> float:
    """Return the seconds of a number or of a text such as "1h30m". Raises `ValueFault`."""
    hint = 'write seconds, or a duration such as "90s", "10m" or "1h30m"'
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            # Limited before it is converted: an integer of more than 1024 bits fits in no float.
            seconds = float(max(0, min(value, MAX_DURATION + 1)))
        else:
            seconds = durations.parse_duration(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueFault("is not a duration", hint) from None
    if not seconds > 0:
        raise ValueFault("must be more than nothing", hint)
    if seconds > MAX_DURATION:
        raise ValueFault(f"must be {MAX_DURATION // 86400} days at most", hint)
    return seconds


def parse_size(text: str) -> int:
    """Return the bytes of a size on the command line, such as "100MB". Raises `InputError`."""
    return _read_command_line(text, _read_size)


def parse_duration(text: str) -> float:
    """Return the seconds of a duration on the command line: "1h30m". Raises `InputError`."""
    return _read_command_line(text, _read_duration)


def _read_command_line(text: str, read: Callable[[object], _Number]) -> _Number:
    """Return the value that `read` returns for a text. Raises `InputError` for its `ValueFault`."""
    try:
        return read(text)
    except ValueFault as error:
        raise input_error(f'"{text}" {error.message}', hint=error.hint) from None


def reject_boolean(value: object) -> object:
    """Return the value. Raises `ValueFault` for a boolean, which Python would take for 1 or 0."""
    if isinstance(value, bool):
        raise ValueFault("must be an integer, not a boolean")
    return value


def spell_archs(value: object) -> object:
    """Return an array with a text for each number: `parse_arch` refuses "80" by its right name."""
    items = value if isinstance(value, list | tuple) else (value,)
    # `true` is an int, too.
    return tuple(str(item) if type(item) in (int, float) else item for item in items)


def wrap_single(value: object) -> object:
    """Return an array of one item for a text or an integer; any other value unchanged."""
    return (value,) if isinstance(value, str | int) and not isinstance(value, bool) else value


Text = Annotated[str, Key(after=_check_text, schema={"type": "string", "minLength": 1})]
"""A string that may become a path or an argument of a process."""

VALUE_SCHEMA = {"type": ["boolean", "integer", "number", "string"]}
AnyValue = Annotated[Value, Key(plain=check_value, schema=VALUE_SCHEMA)]
_check_source = partial(check_value, kind="an expression in quotes, or a number")
ExprSource = Annotated[Value, Key(plain=_check_source, schema=VALUE_SCHEMA)]
"""An expression as written: a string, or a constant."""


def _make_quantity_key(
    read: Callable[[object], float], number_schema: dict[str, object], pattern: str
) -> Key:
    """Return the key of a value that `read` takes: a number, or a text with units."""
    text_schema = {"type": "string", "pattern": pattern}
    return Key(plain=read, schema={"anyOf": [number_schema, text_schema]})


_SIZE_PATTERN = r"^\d+(\.\d+)?\s*([kKMGT]?B|[KMGT]iB)?$"
Size = Annotated[
    int, _make_quantity_key(_read_size, {"type": "integer", "minimum": 1}, _SIZE_PATTERN)
]
"""Bytes. `kB MB GB TB` are powers of 1000, `KiB MiB GiB TiB` of 1024."""

_DURATION_PATTERN = r"^(\d+(\.\d+)?\s*(ms|[smhd])\s*)+$"
Duration = Annotated[
    float,
    _make_quantity_key(
        _read_duration, {"type": "number", "exclusiveMinimum": 0}, _DURATION_PATTERN
    ),
]
"""Seconds."""
