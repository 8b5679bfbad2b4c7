"""`tilus.toml` → `Manifest`: read, located, checked, frozen.

`find` and the settings import nothing heavy; everything else comes with its first use, because a
build with nothing to do needs no model.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tilusbuild.manifest.find import MANIFEST_NAME, find, git_root
from tilusbuild.manifest.settings import Setting, Settings, settings

if TYPE_CHECKING:
    from tilusbuild.manifest.check_expressions import signature_of
    from tilusbuild.manifest.json_schema import schema
    from tilusbuild.manifest.loading import load
    from tilusbuild.manifest.model import Manifest
    from tilusbuild.manifest.names import snake_case
    from tilusbuild.manifest.requirement import parse_requirement
    from tilusbuild.manifest.sections import IncludeDir
    from tilusbuild.manifest.space import expression

__all__ = [
    "MANIFEST_NAME",
    "IncludeDir",
    "Manifest",
    "Setting",
    "Settings",
    "expression",
    "find",
    "git_root",
    "load",
    "parse_requirement",
    "schema",
    "settings",
    "signature_of",
    "snake_case",
]

_HOMES = {
    "IncludeDir": "sections",
    "Manifest": "model",
    "expression": "space",
    "load": "loading",
    "parse_requirement": "requirement",
    "schema": "json_schema",
    "signature_of": "check_expressions",
    "snake_case": "names",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Importing `load` or `schema` sets the module under that very name, so the value is set after.
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
