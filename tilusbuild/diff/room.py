"""What this optional room brings; see `tilusbuild/rooms.py`."""

BRINGS = {
    "verb": {
        "diff": (
            "show what changed between two packages or caches",
            "package and install",
            "diff old.tar.zst new.tar.zst",
            "tilusbuild.diff.verb",
        ),
    },
}
