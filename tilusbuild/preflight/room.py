"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

BRINGS = {
    "verb": {
        "doctor": (
            "show which tools were found, and which are missing",
            "start",
            "doctor",
            "tilusbuild.preflight.verb_doctor",
        ),
        "preflight": (
            "check whether a package would run on a given machine",
            "package and install",
            "preflight dist/kernels-1.0.tar.zst --device sm_90",
            "tilusbuild.preflight.verb_preflight",
        ),
    },
}
