"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

BRINGS = {
    "verb": {
        "import": (
            "write a manifest for a project that another system builds",
            "start",
            "import setup.py",
            "tilusbuild.intake.verb",
        ),
    },
}
