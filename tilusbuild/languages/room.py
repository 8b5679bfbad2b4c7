"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

BRINGS = {"language": {"triton": "tilusbuild.languages.triton"}}
