"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

BRINGS = {
    "verb": {
        "dispatch": (
            "show and check the tables that choose programs",
            "run and tune",
            "dispatch coverage gemm",
            "tilusbuild.overview.verb_dispatch",
        ),
        "report": (
            "show what builds cost: time, memory, registers, sizes",
            "build",
            "report --top 5",
            "tilusbuild.overview.verb_report",
        ),
    },
}
