"""`tilus.toml` → `Manifest`: read, located, checked, frozen.

`find` and the settings import nothing heavy; everything else is imported with its first use,
because pydantic takes longer to import than a small command takes to run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tilusbuild.manifest.settings import MANIFEST_NAME, Setting, Settings, find, git_root, settings

if TYPE_CHECKING:
    from tilusbuild.manifest.library import LinkScript, SourcesScript
    from tilusbuild.manifest.loading import load
    from tilusbuild.manifest.model import Manifest
    from tilusbuild.manifest.names import snake_case
    from tilusbuild.manifest.requirement import parse_requirement
    from tilusbuild.manifest.script import signature_of
    from tilusbuild.manifest.script_sections import expression
    from tilusbuild.manifest.sections import IncludeDir
    from tilusbuild.manifest.shape import schema
    from tilusbuild.manifest.sources import LANGUAGES

__all__ = [
    "LANGUAGES",
    "MANIFEST_NAME",
    "IncludeDir",
    "LinkScript",
    "Manifest",
    "Setting",
    "Settings",
    "SourcesScript",
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
    "LANGUAGES": "sources",
    "IncludeDir": "sections",
    "LinkScript": "library",
    "Manifest": "model",
    "SourcesScript": "library",
    "expression": "script_sections",
    "load": "loading",
    "parse_requirement": "requirement",
    "schema": "shape",
    "signature_of": "script",
    "snake_case": "names",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
