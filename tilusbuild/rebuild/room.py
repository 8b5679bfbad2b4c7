"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

BRINGS = {
    "rebuild": {
        "programs": "tilusbuild.rebuild.rebuilder:Rebuilder",
        "share": "tilusbuild.rebuild.sample:rebuild_share",
    },
}
