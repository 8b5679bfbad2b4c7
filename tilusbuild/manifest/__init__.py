"""`tilus.toml` → `Manifest`: read, located, checked, frozen.

This package imports nothing heavy: to import pydantic takes longer than a small command.
`loading.load_manifest` reads a manifest, `memo.recall_manifest` returns a remembered one.
"""

from tilusbuild.manifest.settings import Setting, Settings, decide_settings, find_project_manifest

__all__ = ["Setting", "Settings", "decide_settings", "find_project_manifest"]
