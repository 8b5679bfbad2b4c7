"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

BRINGS = {
    "language": {
        "cute": "tilusbuild.languages.cute",
        "tilelang": "tilusbuild.languages.tilelang",
        "tilus": "tilusbuild.languages.tilus",
        "triton": "tilusbuild.languages.triton",
    },
}
