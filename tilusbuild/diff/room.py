"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

BRINGS = {
    "verb": {
        "diff": (
            "show what changed between two packages or caches",
            "package and install",
            "diff old.tar.zst new.tar.zst",
            "tilusbuild.diff.verb_diff",
        ),
        "explain": (
            "explain why programs are out of date",
            "build",
            "explain gemm/12",
            "tilusbuild.diff.verb_explain",
        ),
    },
}
