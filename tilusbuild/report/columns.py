"""JSON by columns: ten thousand lines with the same keys say these, and each text, once.

`pack` loses nothing: `unpack` of the report's page (`page/model.js`) returns the same values. A
list of values becomes a column, and a column has one of these forms:

| form | values |
|---|---|
| `{"all": value}` | the same number, truth value, null or text each time |
| `{"of": [value…]}` | numbers, truth values and nulls |
| `{"text": [place…]}` | texts, by their places in `strings` |
| `{"keys": [name…], "columns": [column…]}` | objects with these keys |
| `{"sizes": column, "items": column}` | lists: their lengths, and all their items |
| `{"which": [number…], "parts": [column…]}` | several of these, and which part has each value |
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

Column: TypeAlias = dict[str, Any]


def pack(values: Sequence[Any]) -> dict[str, Any]:
    """Return what stands for a list of JSON values: `count`, `column` and `strings`."""
    places: dict[str, int] = {}
    column = _column(values, places)
    return {"count": len(values), "strings": list(places), "column": column}


def _column(values: Sequence[Any], places: dict[str, int]) -> Column:
    kinds: dict[object, list[Any]] = {}
    for value in values:
        kinds.setdefault(_kind(value), []).append(value)
    if len(kinds) > 1:
        numbers = {kind: number for number, kind in enumerate(kinds)}
        which = [numbers[_kind(value)] for value in values]
        return {"which": which, "parts": [_column(part, places) for part in kinds.values()]}
    (kind,) = kinds or ("plain",)
    if isinstance(kind, tuple):
        return {
            "keys": list(kind),
            "columns": [_column([value[key] for value in values], places) for key in kind],
        }
    if kind == "list":
        items = [item for value in values for item in value]
        sizes = _column([len(value) for value in values], places)
        return {"sizes": sizes, "items": _column(items, places)}
    # 1, 1.0 and true are equal in Python, and not in JSON.
    if len(values) > 1 and len({json.dumps(value) for value in values}) == 1:
        return {"all": values[0]}
    if kind == "text":
        return {"text": [places.setdefault(value, len(places)) for value in values]}
    return {"of": list(values)}


def _kind(value: object) -> object:
    if isinstance(value, dict):
        return tuple(value)
    return "list" if isinstance(value, list) else "text" if isinstance(value, str) else "plain"
