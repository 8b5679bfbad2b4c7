"""The JSON schema of all lines of `--json`, made from the classes that declare them.

Tests hold what verbs print to it; `docs/events.schema.json` is its text, which `make docs` writes.
The lines of a verb are `#/$defs/build`, of an action `#/$defs/cache-gc`. Readers ignore keys that
they do not know.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any, get_type_hints

import msgspec

from tilusbuild.cli.boundary import ErrorLine, InternalErrorLine
from tilusbuild.cli.parser import list_verbs, load_actions
from tilusbuild.engine import events
from tilusbuild.rooms import find_contributions, import_value


def _events_of(module: Any) -> tuple[Any, ...]:
    """Return the events that a module declares, in their order."""
    kinds = (kind for kind in vars(module).values() if isinstance(kind, type))
    return tuple(kind for kind in kinds if issubclass(kind, events.Event) and kind.event)


BUILD = _events_of(events)


def lines() -> dict[str, tuple[Any, ...]]:
    """Return the classes of the lines of every verb and of every action, as "cache gc", that has
    any."""
    classes_by_verb: dict[str, tuple[Any, ...]] = {}
    for verb in list_verbs():
        for action, declared in load_actions(verb).items():
            name = f"{verb} {action}".strip()
            optional = find_contributions("lines").get(name)
            classes_by_verb[name] = (*declared.emits, *(import_value(optional) if optional else ()))
    classes_by_verb |= {
        verb: (*BUILD, *classes_by_verb[verb])
        for verb in ("build", "watch")
        if verb in classes_by_verb
    }
    return {verb: kinds for verb, kinds in classes_by_verb.items() if kinds}


def schema() -> dict[str, Any]:
    """Return the schema of a line of any verb."""
    ends = {"error": (ErrorLine,), "internal-error": (InternalErrorLine,)}
    groups = {verb.replace(" ", "-"): kinds for verb, kinds in lines().items()} | ends
    kinds = list(dict.fromkeys(kind for group in groups.values() for kind in group))
    types = [_types_of_keys(kind) for kind in kinds]
    rules, schema_by_name = msgspec.json.schema_components(
        [item for keys in types for item in keys.values()], ref_template="#/$defs/{name}"
    )
    classes = {name: _class(item) for name, item in schema_by_name.items()}
    remaining = iter(rules)
    of_lines = {
        kind: _line(kind, {key: next(remaining) for key in keys}, classes)
        for kind, keys in zip(kinds, types, strict=True)
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of tilusbuild --json, schema {events.SCHEMA}",
        "anyOf": [_ref(name) for name in groups],
        "$defs": {name: _group(name, group, of_lines) for name, group in groups.items()}
        | dict(sorted(classes.items())),
    }


def _types_of_keys(kind: Any) -> dict[str, Any]:
    """Return the type of each key of a line but `event`."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def _group(name: str, kinds: tuple[Any, ...], of_lines: dict[Any, Any]) -> dict[str, Any]:
    """Return the schema of the lines of a verb."""
    if name == "watch":
        shared, kinds = [_ref("build")], tuple(kind for kind in kinds if kind not in BUILD)
    else:
        shared = []
    if len(kinds) == 1:
        rule: dict[str, Any] = of_lines[kinds[0]]
        return rule
    # A line of an event that has two shapes may match both: one can have all keys of the other.
    one = "oneOf" if len({kind.event for kind in kinds}) == len(kinds) else "anyOf"
    return {one: [*shared, *(of_lines[kind] for kind in kinds)]}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def text() -> str:
    """Return the schema as the file has it."""
    return json.dumps(schema(), indent=2) + "\n"


def _line(kind: Any, keys: dict[str, Any], classes: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a line, which begins with its event."""
    properties: dict[str, Any] = {"event": {"const": kind.event}}
    others: dict[str, Any] = {}
    for name, rule in keys.items():
        if name != getattr(kind, "inlined", None):
            properties[name] = rule
        elif "$ref" in rule:
            properties |= classes[rule["$ref"].rpartition("/")[2]]["properties"]
        else:
            others = {"additionalProperties": rule.get("additionalProperties", True)}
    return {**_object(properties), **others}


def _class(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a class with every key required, whatever defaults it has. An
    enumeration is of strings: a later version may add a value."""
    if "properties" not in definition:
        return {"type": "string"}
    for rule in definition["properties"].values():
        rule.pop("default", None)
    return _object(definition["properties"])


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


if __name__ == "__main__":
    sys.stdout.write(text())
