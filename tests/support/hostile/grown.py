"""Manifests that grow: a table takes another key that its model knows, with a value of it.

The keys, their examples and their types are those of the manifest's own schema, so what a model
learns is tried from then on.
"""

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from tilusbuild.manifest.shape import make_schema

Schema = dict[str, Any]
_NAMES = ("scale", "cpu", "one", "n", "x", "other")
_DEEPEST = 3


@cache
def _schema() -> Schema:
    return make_schema()


def _alternatives(node: Schema) -> Iterator[Schema]:
    if "$ref" in node:
        yield from _alternatives(_schema()["$defs"][node["$ref"].rpartition("/")[2]])
        return
    listed = [
        alternative for word in ("anyOf", "oneOf", "allOf") for alternative in node.get(word, ())
    ]
    for alternative in listed:
        yield from _alternatives(alternative)
    if not listed:
        yield node


def tables(data: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[Schema]]]:
    """Yield each table of a manifest with the schemas that it may be of."""
    queue: list[tuple[Any, list[Schema]]] = [(data, list(_alternatives(_schema())))]
    while queue:
        value, nodes = queue.pop()
        if isinstance(value, dict):
            yield value, nodes
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for part, item in items:
            if isinstance(item, dict | list):
                keys = "items" if isinstance(part, int) else "additionalProperties"
                inner = [n.get("properties", {}).get(part) or n.get(keys) for n in nodes]
                queue.append(
                    (item, [alternative for n in inner if n for alternative in _alternatives(n)])
                )


def grow(rng: random.Random, data: dict[str, Any]) -> None:
    """Put a key that the schema knows into a table of a manifest, or a table under a new name."""
    choices = [(table, nodes) for table, nodes in tables(data) if any(map(_keys, nodes))]
    if not choices:
        return
    table, nodes = rng.choice(choices)
    node = rng.choice([candidate for candidate in nodes if _keys(candidate)])
    key, schema = rng.choice(sorted(_keys(node).items(), key=lambda item: item[0]))
    table[key or rng.choice(_NAMES)] = value_of(rng, schema, _DEEPEST)


def _keys(node: Schema) -> dict[str, Schema]:
    """Return what a table may hold, by key; "" stands for any name."""
    free = node.get("additionalProperties")
    more = {"": free} if isinstance(free, dict) else {}
    return {**node.get("properties", {}), **more}


def value_of(rng: random.Random, schema: Schema, depth: int) -> Any:
    """Return a value of a schema, mostly one of its examples."""
    if schema.get("examples") and rng.random() < 0.7:
        return rng.choice(schema["examples"])
    node = rng.choice(list(_alternatives(schema)))
    if "enum" in node or "const" in node:
        return rng.choice(node.get("enum") or [node["const"]])
    kind = node.get("type")
    if isinstance(kind, list):
        kind = rng.choice(kind)
    if kind == "object":
        keys = sorted(_keys(node).items(), key=lambda pair: pair[0])
        chosen = [item for item in keys if item[0] in node.get("required", ())]
        if keys and depth:
            chosen += rng.choices(keys, k=rng.randint(0, 3))
        return {
            key or rng.choice(_NAMES): value_of(rng, inner, depth - 1)
            for key, inner in chosen[: 8 if depth > 0 else 0]
        }
    if kind == "array":
        inner = node.get("items")
        many = rng.choice((0, 1, 1, 2)) if depth > 0 else 0
        return [value_of(rng, inner if isinstance(inner, dict) else {}, depth - 1)] * many
    plain: dict[Any, tuple[Any, ...]] = {
        "boolean": (True, False),
        "integer": (0, 1, 2, 31, 1024, -1),
        "number": (0.0, 0.5, 1, -1.5),
    }
    return rng.choice(plain.get(kind, (*_NAMES, "scale.cu.j2", "sm_80", "f32*[n]", "n * 2", "")))
