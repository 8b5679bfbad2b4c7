"""The JSON schema of the event lines, made from the events themselves.

`python -m tilusbuild.report.schema` prints it; `docs/events.schema.json` is that text.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from typing import Any

from tilusbuild.engine import events
from tilusbuild.status import Status

EVENTS: tuple[type[events.Event], ...] = (
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
_PRIMITIVES = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
}


def schema() -> dict[str, Any]:
    """One line of output: one of the events. Readers ignore keys that they do not know."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of tilusbuild --json, schema {events.SCHEMA}",
        "oneOf": [_object(event, event.event) for event in EVENTS],
    }


def _object(kind: Any, name: str | None = None) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    properties: dict[str, Any] = {} if name is None else {"event": {"const": name}}
    for field in dataclasses.fields(kind):
        properties[field.name] = _type(hints[field.name])
    return {"type": "object", "properties": properties, "required": list(properties)}


def _type(hint: Any) -> dict[str, Any]:
    if hint in _PRIMITIVES:
        return dict(_PRIMITIVES[hint])
    if hint is Status:  # not as an "enum": a later version may add a status
        return dict(_PRIMITIVES[str])
    if dataclasses.is_dataclass(hint):
        return _object(hint)
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return {"anyOf": [_type(argument) for argument in arguments]}
    if typing.get_origin(hint) is tuple:
        return {"type": "array", "items": _type(arguments[0])}
    raise TypeError(f"no JSON for {hint}")


def text() -> str:
    """The schema as a file holds it."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
