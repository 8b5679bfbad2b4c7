"""As much of JSON schema as the schema of the lines of `--json` uses."""

from __future__ import annotations

from typing import Any

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def valid(value: Any, rule: dict[str, Any], root: dict[str, Any]) -> bool:
    """Whether a value is what a rule of the schema `root` allows."""
    if "$ref" in rule:
        return valid(value, root["$defs"][rule["$ref"].removeprefix("#/$defs/")], root)
    if "oneOf" in rule:
        return sum(valid(value, each, root) for each in rule["oneOf"]) == 1
    if "anyOf" in rule:
        return any(valid(value, each, root) for each in rule["anyOf"])
    if "const" in rule:
        return bool(value == rule["const"])
    if "type" not in rule:
        assert set(rule) <= {"title", "description"}, rule
        return True
    if rule["type"] == "array":
        items = rule.get("items", {})
        return isinstance(value, list) and all(valid(each, items, root) for each in value)
    if rule["type"] == "object":
        return isinstance(value, dict) and _object(value, rule, root)
    return isinstance(value, _TYPES[rule["type"]]) and not (
        isinstance(value, bool) and rule["type"] != "boolean"
    )


def _object(value: dict[str, Any], rule: dict[str, Any], root: dict[str, Any]) -> bool:
    named = rule.get("properties", {})
    rest = rule.get("additionalProperties", {})
    return set(rule.get("required", ())) <= set(value) and all(
        valid(each, named.get(key, {} if rest is True else rest), root)
        for key, each in value.items()
    )
