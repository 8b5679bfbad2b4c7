"""`tilus.toml` → `Manifest`: read, located, checked, frozen.

What stands here imports nothing heavy: pydantic takes longer to import than a small command takes
to run. `loading.load` reads a manifest, `memo.recalled` one that is remembered.
"""

from tilusbuild.manifest.settings import Setting, Settings, find, settings

__all__ = ["Setting", "Settings", "find", "settings"]
