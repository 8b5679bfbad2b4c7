"""How TOML spells a value: for messages that show what is written, or what would be right."""

from __future__ import annotations

import json
from collections.abc import Mapping


def toml_text(value: object) -> str:
    """Return a value as TOML spells it on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml_text(item) for item in value)}]"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{toml_key(key)} = {toml_text(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return str(value)


def toml_key(key: str) -> str:
    """Return a key as TOML spells it."""
    bare = key.replace("-", "").replace("_", "").isalnum() and key.isascii()
    return key if bare else json.dumps(key, ensure_ascii=False)
