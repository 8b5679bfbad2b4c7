"""What this optional room brings; see `tilusbuild/rooms.py`. Backends of Python packages find its
modules by entry points."""

from __future__ import annotations

BRINGS: dict[str, dict[str, object]] = {}
