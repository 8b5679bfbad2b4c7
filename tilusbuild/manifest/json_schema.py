"""The JSON schema of `tilus.toml`, made from the models, for editors such as Even Better TOML."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.names import TABLE_NAME
from tilusbuild.manifest.shape import keys_of

SCHEMA_ID = "https://github.com/tilusbuild/tilusbuild/tree/main/tilus.schema.json"


class _Generator(GenerateJsonSchema):
    """Without made-up titles: an editor shows the description."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schema() -> dict[str, Any]:
    """Return the schema, draft 2020-12."""
    made = Manifest.model_json_schema(by_alias=True, schema_generator=_Generator)
    for key in ("target", "script", "package"):
        made["properties"][key]["propertyNames"] = {"pattern": f"^{TABLE_NAME.pattern}$"}
    assert set(made["properties"]) == set(keys_of(Manifest))  # noqa: S101 - guards the line above
    made = _without_null(made)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **made,
        "title": "tilus.toml",
    }


def _without_null(node: Any) -> Any:
    """Without the choice of null, which TOML does not have."""
    if isinstance(node, list):
        return [_without_null(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {
        key: _without_null(value)
        for key, value in node.items()
        if not (key == "default" and value is None)
    }
    choices = [choice for choice in kept.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1 and len(choices) < len(kept["anyOf"]):
        del kept["anyOf"]
        return {**choices[0], **kept}
    return {**kept, "anyOf": choices} if choices else kept
