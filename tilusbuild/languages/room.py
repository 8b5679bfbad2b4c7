"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

BRINGS = {
    "language": {
        "tilelang": "tilusbuild.languages.tilelang",
        "triton": "tilusbuild.languages.triton",
    },
}
