"""What this optional room brings; see `tilusbuild/rooms.py`."""

BRINGS: dict[str, object] = {}
