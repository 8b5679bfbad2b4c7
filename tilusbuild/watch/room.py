"""The additions of this optional room; see `tilusbuild/rooms.py`."""

BRINGS = {
    "verb": {
        "watch": (
            "build again on every change",
            "build",
            "watch gemm --level 0",
            "tilusbuild.watch.verb",
        ),
    },
    "lines": {"watch": "tilusbuild.watch.events:LINES"},
}
