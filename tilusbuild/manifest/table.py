"""The base of all tables of the manifest: frozen, without unknown keys and silent conversions.

A table is a `Struct`. Its fields are its keys, spelt with `_`; the docstring below a field says
what the key means, in the JSON schema and `docs/manifest.md`. `Key` adds bounds and functions to
the type of a key. pydantic checks tables by their fields (`check_table`), and is imported only for
this: a remembered table (`memo`) is decoded without it. Files with tables have no `from __future__
import annotations`: msgspec would compile each annotation by itself, which takes 15 ms.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, TypeVar, get_args, get_origin

from msgspec import NODEFAULT, Struct, structs
from msgspec.structs import force_setattr, replace

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from typing_extensions import Self

Item = TypeVar("Item")
Entries: TypeAlias = Mapping[str, Item]
"""A table whose keys are the user's own, in declared order, read-only."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


class ValueFault(ValueError):  # noqa: N818 - said of a value of the user's
    """A mistake in a key's value. `message` continues the key's name; `hint` is a remedy."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class Key(Struct, frozen=True, eq=False, kw_only=True):
    """Bounds, functions and examples of a key, besides its type.

    `before` gets the value before the type is checked, `after` gets it afterwards; `plain` takes
    the place of the type's check. Each returns the value to use or raises `ValueFault`. `schema` is
    the JSON schema, if it differs from the type's.
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
        return _make_key_schema(self, source, handler)

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> Any:
        schema = self.schema() if callable(self.schema) else self.schema
        return handler(core) if schema is None else dict(schema)


def _spell_key(name: str) -> str:
    return name.replace("_", "-")


class Table(Struct, kw_only=True, frozen=True, omit_defaults=True, rename=_spell_key):
    """A table with known keys, spelt with `-` in the manifest and with `_` in Python.

    Fields that begin with `_` are not keys.
    """

    shorthands: ClassVar[tuple[tuple[type, str], ...]] = ()
    """Types of values that may take the place of the table, each with the key it stands for."""

    _given: tuple[str, ...] = ()
    """The fields that the manifest sets, sorted."""

    def __post_init__(self) -> None:
        # `frozen` holds the fields, and not the dictionaries in them.
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, dict):
                force_setattr(self, name, MappingProxyType(value))

    @classmethod
    def read(cls, value: object) -> object:
        """Return the dictionary of keys that a shorter spelling stands for. Return a dictionary, or
        any value without `shorthands`, unchanged. Raises `ValueFault` for another type."""
        if not cls.shorthands or isinstance(value, dict):
            return value
        key = dict(cls.shorthands).get(type(value))
        if key is None:
            kinds = ", ".join(describe_kind(kind()) for kind, _ in cls.shorthands)
            raise ValueFault(f"must be {kinds} or a table, not {describe_kind(value)}")
        return {key: value}

    @classmethod
    def map_fields_by_key(cls) -> dict[str, str]:
        """Return the names of the fields by their keys in the manifest."""
        fields = zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True)
        return {key: name for key, name in fields if not name.startswith("_")}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in self.map_fields_by_key().values())

    def __repr__(self) -> str:
        """Return a text of all fields. Caches of derived values use it as their key."""
        values = ", ".join(f"{name}={value!r}" for name, value in self)
        return f"{type(self).__name__}({values})"

    @property
    def given(self) -> Mapping[str, Any]:
        """The values that the manifest sets, without defaults."""
        return {name: getattr(self, name) for name in self._given}

    def replace_values(self, **changes: Any) -> "Self":
        """Return the table with some values replaced, without checks."""
        keys = {name for name in changes if not name.startswith("_")}
        return replace(self, **changes, _given=tuple(sorted({*self._given, *keys})))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return _make_table_schema(cls, handler)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        return _describe_table(cls, handler.resolve_ref_schema(handler(core)))


AnyTable = TypeVar("AnyTable", bound=Table)

_BOUNDS = ("ge", "gt", "le", "pattern", "min_length", "max_length")


class KeyInfo(Struct, frozen=True):
    """The description of a key, taken from its field."""

    name: str
    annotation: Any
    """The type of the values, with their `Key`s."""
    is_required: bool
    default: Any
    """The default; None: there is none, or it is an empty table."""
    examples: tuple[Any, ...]


def _list_owners(table: type[Table]) -> list[type]:
    """Return the classes that declare keys of a table, its own class last."""
    return [*reversed(table.__mro__[: table.__mro__.index(Table)])]


@cache
def list_keys(table: type[Table]) -> dict[str, KeyInfo]:
    """Return the keys of a table in declared order, those of its base classes last."""
    fields = {field.name: field for field in structs.fields(table)}
    names: list[str] = []
    for owner in _list_owners(table):
        names = [*(name for name in owner.__annotations__ if name not in names), *names]
    keys = {}
    for field in (fields[name] for name in names if not name.startswith("_")):
        # Of `Annotated[int, Key(…), Key(…)]` the keys: those of a shared type, then the field's.
        notes = get_args(field.type)[1:] if get_origin(field.type) is Annotated else ()
        examples = [item for note in notes if isinstance(note, Key) for item in note.examples]
        is_required = field.default is NODEFAULT
        is_empty = is_required or isinstance(field.default, (Table, Mapping))
        keys[field.encode_name] = KeyInfo(
            field.name,
            field.type,
            is_required,
            None if is_empty else field.default,
            tuple(examples),
        )
    return keys


def read_docstrings(table: type[Table]) -> dict[str, str]:
    """Return the docstring of each field of a table.

    A class has its own docstring only. Those of its fields are read from its source text.
    """
    docstrings: dict[str, str] = {}
    for owner in _list_owners(table):
        docstrings |= _parse_docstrings(owner.__module__)[owner.__name__]
    return docstrings


@cache
def _parse_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings below the fields of each class of a module."""
    import ast
    import inspect

    classes: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ClassDef):
            docstrings = classes[node.name] = {}
            # A docstring is the statement after its field: `name: type = default`, then a text.
            for pair in pairwise(node.body):
                match pair:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        docstrings[name] = " ".join(text.split())
    return classes


@cache
def make_adapter(table: type[AnyTable]) -> "TypeAdapter[AnyTable]":
    """Return pydantic's validator of a table."""
    from pydantic import TypeAdapter

    return TypeAdapter(table)


def check_table(table: type[AnyTable], data: object) -> AnyTable:
    """Check values of a manifest and return them as a table. Raises `ValidationError`."""
    checked: AnyTable = make_adapter(table).validate_python(data, strict=True)
    return checked


def _make_table_schema(table: type[Table], handler: Any) -> Any:
    """Return pydantic's schema of a table: it checks a dictionary, and makes the table of it."""
    from pydantic_core import core_schema

    fields = {
        key: core_schema.typed_dict_field(
            handler.generate_schema(info.annotation), required=info.is_required
        )
        for key, info in list_keys(table).items()
    }
    checked = core_schema.no_info_before_validator_function(
        table.read, core_schema.typed_dict_schema(fields, extra_behavior="forbid")
    )
    # By this name pydantic makes one definition of all uses of a table, in JSON schemas too.
    ref = f"{table.__module__}.{table.__qualname__}:{id(table)}"
    make = partial(_make_table, table)
    return core_schema.no_info_after_validator_function(make, checked, ref=ref)


def _make_table(table: type[Table], values: dict[str, Any]) -> Table:
    field_names = table.map_fields_by_key()
    values_by_field = {field_names[key]: value for key, value in values.items()}
    # Sorted, so that tables are equal whatever order their keys have in the file.
    return table(**values_by_field, _given=tuple(sorted(values_by_field)))


def _make_key_schema(key: Key, source: Any, handler: Any) -> Any:
    """Return pydantic's schema of a key's value, with its bounds and functions."""
    from pydantic_core import core_schema

    if key.plain is not None:
        return core_schema.no_info_plain_validator_function(key.plain)
    schema = handler(source)
    # The bounds belong to the type itself, inside of `| None` and of another key's functions.
    bounded: Any = schema
    while bounded["type"] in ("nullable", "function-before", "function-after"):
        bounded = bounded["schema"]
    # `bounded` is a part of `schema`, which so gets the bounds, too.
    for name in _BOUNDS:
        bound = getattr(key, name)
        if bound is not None:
            bounded[name] = bound
    if key.after is not None:
        schema = core_schema.no_info_after_validator_function(key.after, schema)
    if key.before is not None:
        schema = core_schema.no_info_before_validator_function(key.before, schema)
    return schema


def _describe_table(table: type[Table], node: dict[str, Any]) -> dict[str, Any]:
    """Return a table's JSON schema with its docstrings as descriptions, and shorter spellings. The
    properties of `node`, pydantic's schema, get descriptions, examples and defaults in place."""
    import inspect

    docstrings = read_docstrings(table)
    # A shorthand has the schema of its key, without the description: copied before that is added.
    shorthand_schemas = [dict(node["properties"][key]) for _, key in table.shorthands]
    for key, info in list_keys(table).items():
        key_schema = node["properties"][key]
        key_schema["description"] = docstrings[info.name]
        if info.examples:
            key_schema["examples"] = list(info.examples)
        if info.default is not None:
            key_schema["default"] = info.default
    choices = {"anyOf": [*shorthand_schemas, node]} if shorthand_schemas else node
    return {"description": inspect.cleandoc(table.__doc__ or ""), **choices}


# A boolean is an integer, too, in Python.
_KIND_NAMES = (
    (bool, "a boolean"),
    (int, "an integer"),
    (float, "a number"),
    (str, "a string"),
    ((list, tuple), "an array"),
    (Mapping, "a table"),
    (object, "a date or time"),
)


def describe_kind(value: object) -> str:
    """Return the kind of a TOML value with its article: "an array"."""
    return next(name for kind, name in _KIND_NAMES if isinstance(value, kind))


def format_toml(value: object) -> str:
    """Return a value in TOML on one line. Floats have the shortest text that parses back."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(format_toml(item) for item in value)}]"
    if isinstance(value, Mapping):
        inner = ", ".join(
            f"{format_toml_key(str(key))} = {format_toml(item)}" for key, item in value.items()
        )
        return f"{{ {inner} }}" if inner else "{}"
    return str(value)


def format_toml_key(key: str) -> str:
    """Return a key in TOML, quoted if necessary."""
    bare = key.replace("-", "").replace("_", "").isalnum() and key.isascii()
    return key if bare else json.dumps(key, ensure_ascii=False)
