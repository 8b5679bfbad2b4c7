"""Find the table and the key at a path of the manifest, and make the manifest's JSON schema.

Both are read from the fields of the models, so that messages, schema and reference cannot differ
from what is accepted. The schema is for editors, such as Even Better TOML.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Union

from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.names import TABLE_NAME
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.script import ScriptSection
from tilusbuild.manifest.table import (
    KeyInfo,
    Table,
    format_toml,
    format_toml_key,
    list_keys,
    make_adapter,
)
from tilusbuild.rooms import find_contributions

NAME = "NAME"
"""Stands for the user's own name in the path of a table."""


def find_table(path: Path) -> type[Table] | None:
    """Return the model of the table at `path`; None for a path to anything else, to a table of the
    user's own keys for example."""
    structure, inner_type = "table", Manifest
    for part in path:
        # Of a table with the user's own keys, or of an array, each part has the same type.
        annotation: Any = inner_type
        if structure == "table":
            field = list_keys(inner_type).get(str(part))
            if field is None:
                return None
            annotation = field.annotation
        structure, inner_type = _peel_annotation(annotation)
    return inner_type if structure == "table" else None


def find_key(path: Path) -> KeyInfo | None:
    """Return the description of the key at `path`, or of the nearest key above; else None."""
    # The longest prefix comes first. An item of an array has no key, but the array above it has.
    for length in range(len(path), 0, -1):
        table = find_table(path[: length - 1])
        field = None if table is None else list_keys(table).get(str(path[length - 1]))
        if field is not None:
            return field
    return None


@cache
def list_tables() -> Mapping[Path, type[Table]]:
    """Return every table of the manifest by its path, `NAME` for the user's, outer ones first."""
    return dict(_list_inner_tables((), Manifest))


def _list_inner_tables(path: Path, table: type[Table]) -> Iterator[tuple[Path, type[Table]]]:
    """Yield a table and all tables in it, each with its path."""
    yield path, table
    for key, field in list_keys(table).items():
        inner_path: Path = (*path, key)
        structure, inner_type = _peel_annotation(field.annotation)
        while structure in ("entries", "array"):
            inner_path = (*inner_path, NAME if structure == "entries" else 0)
            structure, inner_type = _peel_annotation(inner_type)
        if structure == "table":
            yield from _list_inner_tables(inner_path, inner_type)


def format_header(path: Path) -> str:
    """Return a table's path as its header: `[script.NAME.launch]`; the top is `the top level`."""
    names = [str(part) for part in path if not isinstance(part, int)]
    return f"[{'.'.join(names)}]" if names else "the top level"


def format_key_example(path: Path, value: object = None) -> str | None:
    """Return a line of TOML that sets the key, or the user's entry, at `path` to `value` if it is
    an example of its field, else to the first; None without an example."""
    # An item of an array has no example of its own.
    while path and isinstance(path[-1], int):
        path = path[:-1]
    field = find_key(path)
    if field is None or not field.examples:
        return None
    example: Any = value if value in field.examples else field.examples[0]
    # An example of an open table shows whole entries; the user's entry is one of them.
    table = find_table(path[:-1])
    if table is None and isinstance(example, Mapping):
        example = next(iter(example.values()))
    return f"{format_toml_key(str(path[-1]))} = {format_toml(example)}"


def _peel_annotation(annotation: Any) -> tuple[str, Any]:
    """Return the structure of a field's type, and the type inside: ("table", model), ("entries",
    type of a value), ("array", type of an item), or ("value", None) for a single value.

    Of a union, return the first member that is not a single value.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _peel_annotation(arguments[0])
    if origin in (Union, types.UnionType):
        structures = map(_peel_annotation, arguments)
        return next((pair for pair in structures if pair[0] != "value"), ("value", None))
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return "table", annotation
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "entries", arguments[1]
    if origin is tuple and arguments:
        return "array", arguments[0]
    return "value", None


SCHEMA_ID = "https://github.com/tilusbuild/tilusbuild/tree/main/tilus.schema.json"


def make_schema() -> dict[str, Any]:
    """Return the schema, draft 2020-12."""
    schema = _drop_null(make_adapter(Manifest).json_schema())
    # As a pattern of the key's type this would be `patternProperties`, not `additionalProperties`.
    for key in ("target", "script", "library", "package"):
        schema["properties"][key]["propertyNames"] = {"pattern": f"^{TABLE_NAME.pattern}$"}
    # A script has one source: a template, a generator, or a function in a kernel language.
    script = schema["$defs"][ScriptSection.__name__]
    languages = find_contributions("language")
    script["properties"] |= dict.fromkeys(languages, script["properties"]["generator"])
    sources = ("template", "generator", *languages)
    script["required"] = [key for key in script["required"] if key not in sources]
    script["oneOf"] = [{"required": [key]} for key in sources]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **schema,
        "title": "tilus.toml",
    }


def _drop_null(node: Any) -> Any:
    """Return a schema without null, which TOML does not have, and without titles.

    Titles are made up from names, and an editor would show them in place of the descriptions.
    """
    if isinstance(node, list):
        return [_drop_null(item) for item in node]
    if not isinstance(node, dict):
        return node
    cleaned = {
        key: _drop_null(value)
        for key, value in node.items()
        if not (key == "default" and value is None)
        and not (key == "title" and isinstance(value, str))
    }
    # pydantic writes `X | None` as {"anyOf": [X, {"type": "null"}]}: with one choice left, it is X.
    choices = [choice for choice in cleaned.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1 and len(choices) < len(cleaned["anyOf"]):
        del cleaned["anyOf"]
        return {**choices[0], **cleaned}
    return {**cleaned, "anyOf": choices} if choices else cleaned
