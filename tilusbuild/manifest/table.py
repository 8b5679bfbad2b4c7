"""What all tables of the manifest share: frozen, nothing unknown, nothing converted silently.

A table is one `Struct`: its fields are its keys, spelt with `_`, and the docstring below a field
says what the key means, in the JSON schema and in `docs/manifest.md`. `Key` has what the type does
not say of a key. pydantic checks a table as its fields say (`checked`), and is imported for that
only: a table that is remembered (`memo`) is decoded without it. Files with tables do not postpone
the evaluation of annotations: msgspec would compile each by itself, which takes 15 ms.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, TypeVar, get_args, get_origin

from msgspec import NODEFAULT, Struct, structs
from msgspec.structs import force_setattr, replace

from tilusbuild.errors import input_error
from tilusbuild.expr import Value
from tilusbuild.runtime import durations

if TYPE_CHECKING:
    from pydantic import TypeAdapter
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

MAX_DURATION = 1000 * 86400
"""Seconds. What is meant to be without end is not given."""
MAX_SIZE = 1 << 62

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Fault(ValueError):  # noqa: N818 - said of a value of the user's
    """What is wrong with a value, after the key's name, and what would be right."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class Key(Struct, frozen=True, eq=False, kw_only=True):
    """What the type of a key does not say: bounds, functions that read a value, and examples.

    `before` sees the value first, `after` last, and `plain` alone; each returns the value to go on
    with, or raises `Fault`. `schema` is the JSON schema, where that of the type is not it.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    pattern: str | None = None
    min_length: int | None = None
    max_length: int | None = None
    before: Callable[[Any], Any] | None = None
    after: Callable[[Any], Any] | None = None
    plain: Callable[[Any], Any] | None = None
    schema: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None
    examples: tuple[Any, ...] | list[Any] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return _schema_of_key(self, source, handler)

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> Any:
        schema = self.schema() if callable(self.schema) else self.schema
        return handler(core) if schema is None else dict(schema)


def _toml_spelling(name: str) -> str:
    return name.replace("_", "-")


class Table(Struct, kw_only=True, frozen=True, omit_defaults=True, rename=_toml_spelling):
    """A table with known keys, spelt with `-` in the manifest and with `_` in Python; a field that
    begins with `_` is not a key."""

    short: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """The JSON schemas of shorter spellings, which `read` makes a table of."""
    shorthands: ClassVar[tuple[tuple[type, str], ...]] = ()
    """The types of bare values, and the key that each stands for."""
    wanted: ClassVar[tuple[str, str]] = ("a table", "")
    """What is right, in words and as an example, where nothing of that is written."""

    _given: tuple[str, ...] = ()
    """The fields whose values the manifest has, sorted."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if isinstance(items := getattr(self, name), dict):
                force_setattr(self, name, MappingProxyType(items))

    @classmethod
    def read(cls, value: object) -> object:
        """Return what was written as a dictionary. Raises `Fault`."""
        if not cls.shorthands or isinstance(value, dict):
            return value
        if (key := dict(cls.shorthands).get(type(value))) is None:
            raise Fault(f"must be {cls.wanted[0]}, not {kind_of(value)}", cls.wanted[1])
        return {key: value}

    @classmethod
    def fields_by_key(cls) -> dict[str, str]:
        """Return the names of the fields by how the manifest spells them."""
        fields = zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True)
        return {key: name for key, name in fields if not name.startswith("_")}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in self.fields_by_key().values())

    def __repr__(self) -> str:
        """What follows from a table is kept by this."""
        said = ", ".join(f"{name}={value!r}" for name, value in self)
        return f"{type(self).__name__}({said})"

    @property
    def given(self) -> Mapping[str, Any]:
        """The values that the manifest has, without those that hold where it says nothing."""
        return {name: getattr(self, name) for name in self._given}

    def replaced(self, **changes: Any) -> "Self":
        """Return the table with other values, which are not checked."""
        keys = {name for name in changes if not name.startswith("_")}
        return replace(self, **changes, _given=tuple(sorted({*self._given, *keys})))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return _schema_of_table(cls, handler)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        return _described(cls, handler.resolve_ref_schema(handler(core)))


AnyTable = TypeVar("AnyTable", bound=Table)

_BOUNDS = ("ge", "gt", "le", "pattern", "min_length", "max_length")


class KeyInfo(Struct, frozen=True):
    """A key of a table, as its field says."""

    name: str
    hint: Any
    is_required: bool
    default: Any
    """What holds without it; None: nothing, or an empty table."""
    examples: tuple[Any, ...]


@cache
def keys_of(table: type[Table]) -> dict[str, KeyInfo]:
    """Return a table's keys as the manifest spells them, in declared order, its bases' last."""
    fields = {field.name: field for field in structs.fields(table)}
    names: list[str] = []
    for each in _lineage(table):
        names = [*(name for name in each.__annotations__ if name not in names), *names]
    found = {}
    for field in (fields[name] for name in names if not name.startswith("_")):
        notes = get_args(field.type)[1:] if get_origin(field.type) is Annotated else ()
        examples = [each for note in notes if isinstance(note, Key) for each in note.examples]
        is_required = field.default is NODEFAULT
        is_empty = is_required or isinstance(field.default, (Table, Mapping))
        default = None if is_empty else field.default
        found[field.encode_name] = KeyInfo(
            field.name, field.type, is_required, default, tuple(examples)
        )
    return found


def _lineage(table: type[Table]) -> list[type]:
    return [*reversed(table.__mro__[: table.__mro__.index(Table)])]


def docstrings_of(table: type[Table]) -> dict[str, str]:
    """Return the docstring of each field of a table."""
    return {
        name: words
        for each in _lineage(table)
        for name, words in _docstrings(each.__module__)[each.__name__].items()
    }


@cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings below the fields of each class of a module."""
    import ast
    import inspect

    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ClassDef):
            words = found[node.name] = {}
            for field, text in pairwise(node.body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(said))):
                        words[name] = " ".join(said.split())
    return found


@cache
def adapter(table: type[AnyTable]) -> "TypeAdapter[AnyTable]":
    """Return what checks a table."""
    from pydantic import TypeAdapter

    return TypeAdapter(table)


def checked(table: type[AnyTable], data: object) -> AnyTable:
    """Return a table of what was written. Raises pydantic's `ValidationError`."""
    made: AnyTable = adapter(table).validate_python(data, strict=True)
    return made


def _schema_of_table(table: type[Table], handler: Any) -> Any:
    """Return how pydantic checks a table: as a dictionary with its keys, of which it is made."""
    from pydantic_core import core_schema

    fields = {
        key: core_schema.typed_dict_field(
            handler.generate_schema(info.hint), required=info.is_required
        )
        for key, info in keys_of(table).items()
    }
    made = core_schema.no_info_before_validator_function(
        table.read, core_schema.typed_dict_schema(fields, extra_behavior="forbid")
    )
    ref = f"{table.__module__}.{table.__qualname__}:{id(table)}"
    return core_schema.no_info_after_validator_function(partial(_made, table), made, ref=ref)


def _made(table: type[Table], values: dict[str, Any]) -> Table:
    names = table.fields_by_key()
    own = {names[key]: value for key, value in values.items()}
    return table(**own, _given=tuple(sorted(own)))


def _schema_of_key(key: Key, source: Any, handler: Any) -> Any:
    """Return how pydantic checks the value of a key."""
    from pydantic_core import core_schema

    if key.plain is not None:
        return core_schema.no_info_plain_validator_function(key.plain)
    made = handler(source)
    bounded: Any = made
    while bounded["type"] in ("nullable", "function-before", "function-after"):
        bounded = bounded["schema"]
    bounded |= {name: bound for name in _BOUNDS if (bound := getattr(key, name)) is not None}
    if key.after is not None:
        made = core_schema.no_info_after_validator_function(key.after, made)
    if key.before is not None:
        made = core_schema.no_info_before_validator_function(key.before, made)
    return made


def _described(table: type[Table], node: dict[str, Any]) -> dict[str, Any]:
    """Return a table's JSON schema with what its docstrings say, and its shorter spellings."""
    import inspect

    words = docstrings_of(table)
    for key, info in keys_of(table).items():
        own = node["properties"][key]
        own["description"] = words[info.name]
        if info.examples:
            own["examples"] = list(info.examples)
        if info.default is not None:
            own["default"] = info.default
    whole = {"anyOf": [*table.short, node]} if table.short else node
    return {"description": inspect.cleandoc(table.__doc__ or ""), **whole}


def written(value: Any) -> Any:
    """Return a value as JSON has it: of a table, what differs from what holds without it."""
    if isinstance(value, Table):
        ends = (reversed(value.__struct_fields__), reversed(value.__struct_defaults__))
        defaults = dict(zip(*ends, strict=False))
        said = ((key, name, getattr(value, name)) for key, name in value.fields_by_key().items())
        return {key: written(each) for key, name, each in said if each != defaults.get(name, ...)}
    if isinstance(value, Mapping):
        return {key: written(item) for key, item in value.items()}
    return [written(item) for item in value] if isinstance(value, tuple) else value


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


def toml_text(value: object) -> str:
    """Return a value as TOML spells it on one line; floats in the shortest form that reads back."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml_text(item) for item in value)}]"
    if isinstance(value, Mapping):
        inner = ", ".join(
            f"{toml_key(str(key))} = {toml_text(item)}" for key, item in value.items()
        )
        return f"{{ {inner} }}" if inner else "{}"
    return str(value)


def toml_key(key: str) -> str:
    """Return a key as TOML spells it."""
    bare = key.replace("-", "").replace("_", "").isalnum() and key.isascii()
    return key if bare else json.dumps(key, ensure_ascii=False)


def checked_value(value: object) -> Value:
    """Return a boolean, an integer of 64 bits, a finite number or a string; raises a `Fault`."""
    if not isinstance(value, (bool, int, float, str)):
        raise Fault(f"must be a number, a string or a boolean, not {kind_of(value)}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise Fault("does not fit in 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise Fault("must be finite")
    return value


def _expression_source(value: object) -> Value:
    if not isinstance(value, (bool, int, float, str)):
        raise Fault(f"must be an expression in quotes, or a number, not {kind_of(value)}")
    return checked_value(value)


def _text(value: str) -> str:
    if "\0" in value:
        raise Fault("must not hold a NUL character")
    if not value:
        raise Fault("must not be empty")
    return value


def _size(value: object) -> int:
    right = 'write a number of bytes or a size such as "100MB" or "1.5GiB"'
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        size: float = value
    elif match and match.group(2) in _SIZE_UNITS:
        size = float(match.group(1)) * _SIZE_UNITS[match.group(2)]
    else:
        raise Fault("is not a size", right)
    if size > MAX_SIZE:
        raise Fault("is more than any machine has", right)
    if size < 1:
        raise Fault("must be more than nothing", right)
    return int(size)


def _duration(value: object) -> float:
    right = 'write seconds, or a duration such as "90s", "10m" or "1h30m"'
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = _float(value)
    else:
        try:
            seconds = durations.parse_duration(value if isinstance(value, str) else "")
        except ValueError:
            raise Fault("is not a duration", right) from None
    if not seconds > 0:
        raise Fault("must be more than nothing", right)
    if seconds > MAX_DURATION:
        raise Fault(f"must be {MAX_DURATION // 86400} days at most", right)
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
    except Fault as error:
        raise input_error(f'"{text}" {error.message}', hint=error.hint) from None


def not_boolean(value: object) -> object:
    """For numbers by choice: Python takes `true` for 1."""
    if isinstance(value, bool):
        raise Fault("must be an integer, not a boolean")
    return value


Item = TypeVar("Item")
Entries: TypeAlias = Mapping[str, Item]
"""A table whose keys are the user's own, in declared order, read-only."""

Text = Annotated[str, Key(after=_text, schema={"type": "string", "minLength": 1})]
"""A string that may become a path or an argument of a process."""

VALUE_SCHEMA = {"type": ["boolean", "integer", "number", "string"]}
AnyValue = Annotated[Value, Key(plain=checked_value, schema=VALUE_SCHEMA)]
ExprSource = Annotated[Value, Key(plain=_expression_source, schema=VALUE_SCHEMA)]
"""An expression as written: a string, or a constant."""

Size = Annotated[
    int,
    Key(
        plain=_size,
        schema={
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^\d+(\.\d+)?\s*([kKMGT]?B|[KMGT]iB)?$"},
            ]
        },
    ),
]
"""Bytes. `kB MB GB TB` are powers of 1000, `KiB MiB GiB TiB` of 1024."""

Duration = Annotated[
    float,
    Key(
        plain=_duration,
        schema={
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^(\d+(\.\d+)?\s*(ms|[smhd])\s*)+$"},
            ]
        },
    ),
]
"""Seconds."""
