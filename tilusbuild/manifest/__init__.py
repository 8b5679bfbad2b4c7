"""`tilus.toml` → `Manifest`: read, located, checked, frozen.

What stands here imports nothing heavy: pydantic takes longer to import than a small command takes
to run. `loading.load_manifest` reads a manifest, `memo.recall_manifest` returns a remembered one.
"""

from tilusbuild.manifest.settings import Setting, Settings, decide_settings, find_project_manifest

__all__ = ["Setting", "Settings", "decide_settings", "find_project_manifest"]
