"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

BRINGS = {
    "rebuild": {
        "programs": "tilusbuild.rebuild.rebuilder:Rebuilder",
        "generators": "tilusbuild.rebuild.sample:find_unsteady_scripts",
        "share": "tilusbuild.rebuild.sample:rebuild_share",
    },
}
