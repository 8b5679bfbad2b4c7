"""As much of JSON schema as our own schemas use: of the manifest, and of the lines of `--json`."""

import re
from typing import Any

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}


def valid(value: Any, rule: dict[str, Any], root: dict[str, Any]) -> bool:
    """Whether a value is what a rule of the schema `root` allows."""
    if "$ref" in rule:
        return valid(value, root["$defs"][rule["$ref"].removeprefix("#/$defs/")], root)
    if "oneOf" in rule and sum(valid(value, subrule, root) for subrule in rule["oneOf"]) != 1:
        return False
    if "anyOf" in rule and not any(valid(value, subrule, root) for subrule in rule["anyOf"]):
        return False
    if value not in rule.get("enum", [value]) or value != rule.get("const", value):
        return False
    kinds = rule.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is_kind(value, kind) for kind in kinds):
        return False
    if isinstance(value, str):
        long = len(value) >= rule.get("minLength", 0)
        return long and re.search(rule.get("pattern", ""), value) is not None
    if isinstance(value, list):
        items = [*rule.get("prefixItems", [])]
        items += [rule.get("items", {})] * (len(value) - len(items))
        inside = all(valid(v, r, root) for v, r in zip(value, items, strict=False))
        return inside and rule.get("minItems", 0) <= len(value) <= rule.get("maxItems", 10**9)
    return not isinstance(value, dict) or _object(value, rule, root)


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _object(value: dict[str, Any], rule: dict[str, Any], root: dict[str, Any]) -> bool:
    known, rest = rule.get("properties", {}), rule.get("additionalProperties", True)
    if not set(rule.get("required", ())) <= value.keys():
        return False
    if rest is False and not value.keys() <= known.keys():
        return False
    others = rest if isinstance(rest, dict) else {}
    return all(
        valid(key, rule.get("propertyNames", {}), root)
        and valid(item, known.get(key, others), root)
        for key, item in value.items()
    )
