"""The JSON schema of all lines of `--json`, made from the dataclasses that declare them.

`python -m tilusbuild.cli.events_schema` prints it; `docs/events.schema.json` is that text, which
`make docs` writes. The lines of a verb are `#/$defs/build`, of an action `#/$defs/cache-gc`, each
a class by its name. Readers ignore keys that they do not know.
"""

from __future__ import annotations

import json
import sys
from dataclasses import is_dataclass
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from tilusbuild.cli.boundary import ErrorLine, InternalErrorLine
from tilusbuild.cli.parser import actions_of, verbs
from tilusbuild.engine import events
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.rooms import brought, load
from tilusbuild.watch import events as watching

BUILD: tuple[type[events.Event], ...] = (
    events.BuildStarted,
    events.Sharded,
    events.Planned,
    events.Warned,
    events.WouldCompile,
    events.Started,
    events.Finished,
    events.Waiting,
    events.Retried,
    events.Dropped,
    events.Stopping,
    events.Summary,
)
WATCH: tuple[type[events.Event], ...] = (
    *BUILD,
    watching.Watching,
    watching.Changed,
    watching.Replanned,
    watching.Problem,
    watching.Rebuilt,
    watching.CommandStarted,
    watching.Printed,
    watching.CommandEnded,
)


def lines() -> dict[str, tuple[type[events.Event] | type[JsonLine], ...]]:
    """Return the lines of every verb and of every action, as "cache gc", that has any."""
    found: dict[str, tuple[type[events.Event] | type[JsonLine], ...]] = {}
    for verb in verbs():
        for action, declared in actions_of(verb).items():
            name = f"{verb} {action}".strip()
            optional = brought("lines").get(name)
            found[name] = (*declared.emits, *(load(optional) if optional else ()))
    found |= {"build": (*BUILD, *found["build"]), "watch": WATCH}
    return {verb: kinds for verb, kinds in found.items() if kinds}


def schema() -> dict[str, Any]:
    """Return the schema of a line of any verb."""
    verbs: dict[str, Any] = {}
    classes: dict[str, Any] = {}
    for verb, kinds in lines().items():
        # A line of an event that has two shapes may match both: one can have all keys of the other.
        one = "oneOf" if len({kind.event for kind in kinds}) == len(kinds) else "anyOf"
        verbs[verb.replace(" ", "-")] = {one: [_ref(kind.__name__) for kind in kinds]}
        for kind in kinds:
            _line(kind, classes)
    endings = (ErrorLine, InternalErrorLine)
    for ending in endings:
        _line(ending, classes)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of tilusbuild --json, schema {events.SCHEMA}",
        "anyOf": [_ref(verb) for verb in [*verbs, *(each.__name__ for each in endings)]],
        "$defs": verbs | dict(sorted(classes.items())),
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def text() -> str:
    """Return the schema as the file has it."""
    return json.dumps(schema(), indent=2) + "\n"


class EventsSchemaGenerator(GenerateJsonSchema):
    """Strings where the code has an enumeration: a later version may add a value."""

    def enum_schema(self, schema: Any) -> dict[str, Any]:
        return {"type": "string"}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _line(kind: Any, classes: dict[str, Any]) -> None:
    """Add the schema of a line to `classes`, and those of the dataclasses that it holds."""
    found = _object(kind, classes)
    properties: dict[str, Any] = {"event": {"const": kind.event}}
    others: dict[str, Any] = {}
    for name, rule in found["properties"].items():
        if name != getattr(kind, "inlined", None):
            properties[name] = rule
        elif is_dataclass(inner := get_type_hints(kind)[name]):
            properties |= _object(inner, classes)["properties"]
        else:
            others = {"additionalProperties": rule["additionalProperties"]}
    classes[kind.__name__] = {**_required({**found, "properties": properties}), **others}


def _object(kind: Any, classes: dict[str, Any]) -> dict[str, Any]:
    found = TypeAdapter(kind).json_schema(
        mode="serialization", schema_generator=EventsSchemaGenerator
    )
    for name, each in found.pop("$defs", {}).items():
        classes[name] = _required(each) if "properties" in each else {"type": each["type"]}
    return _required(found)


def _required(found: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a dataclass with every key required, whatever defaults the class has."""
    properties = found["properties"]
    for rule in properties.values():
        rule.pop("default", None)
    return {"type": "object", "properties": properties, "required": list(properties)}


if __name__ == "__main__":
    sys.stdout.write(text())
