"""The JSON schema of all lines of `--json`, made from the classes that declare them.

Tests hold what verbs print to it; `docs/events.schema.json` is its text, which `make docs` writes.
The lines of a verb are `#/$defs/build`, of an action `#/$defs/cache-gc`, each a class by its name.
Readers ignore keys that they do not know.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from tilusbuild.cli.boundary import ErrorLine, InternalErrorLine
from tilusbuild.cli.parser import actions_of, verbs
from tilusbuild.engine import events
from tilusbuild.report.jsonl import Line
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


def lines() -> dict[str, tuple[type[Line], ...]]:
    """Return the lines of every verb and of every action, as "cache gc", that has any."""
    found: dict[str, tuple[type[Line], ...]] = {}
    for verb in verbs():
        for action, declared in actions_of(verb).items():
            name = f"{verb} {action}".strip()
            optional = brought("lines").get(name)
            found[name] = (*declared.emits, *(load(optional) if optional else ()))
    found |= {"build": (*BUILD, *found["build"]), "watch": WATCH}
    return {verb: kinds for verb, kinds in found.items() if kinds}


def schema() -> dict[str, Any]:
    """Return the schema of a line of any verb."""
    endings = (ErrorLine, InternalErrorLine)
    of_verbs = lines()
    every = [kind for kinds in (*of_verbs.values(), endings) for kind in kinds]
    _, found = msgspec.json.schema_components(every, ref_template="#/$defs/{name}")
    classes = {name: _class(each) for name, each in found.items()}
    for kind in every:
        classes[kind.__name__] = _line(kind, classes)
    verbs: dict[str, Any] = {}
    for verb, kinds in of_verbs.items():
        # A line of an event that has two shapes may match both: one can have all keys of the other.
        one = "oneOf" if len({kind.event for kind in kinds}) == len(kinds) else "anyOf"
        verbs[verb.replace(" ", "-")] = {one: [_ref(kind.__name__) for kind in kinds]}
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


def _line(kind: Any, classes: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a line, which begins with its event."""
    properties: dict[str, Any] = {"event": {"const": kind.event}}
    others: dict[str, Any] = {}
    for name, rule in classes[kind.__name__]["properties"].items():
        if name != getattr(kind, "inlined", None):
            properties[name] = rule
        elif "$ref" in rule:
            properties |= classes[rule["$ref"].rpartition("/")[2]]["properties"]
        else:
            others = {"additionalProperties": rule.get("additionalProperties", True)}
    return {**_object(properties), **others}


def _class(found: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a class with every key required, whatever defaults it has. An
    enumeration is of strings: a later version may add a value."""
    if "properties" not in found:
        return {"type": "string"}
    for rule in found["properties"].values():
        rule.pop("default", None)
    return _object(found["properties"])


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


if __name__ == "__main__":
    sys.stdout.write(text())
