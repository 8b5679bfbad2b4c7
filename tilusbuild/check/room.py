"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

NEEDS = ("tune",)
BRINGS = {
    "verb": {
        "check": (
            "run the tests of a package on this machine",
            "package and install",
            "check dist/kernels-1.0.tar.zst --chosen",
            "tilusbuild.check.verb",
        ),
    },
}
