"""What this optional room brings; see `tilusbuild/rooms.py`."""

BRINGS = {
    "verb": {
        "run": (
            "run a kernel on generated inputs, check and time it",
            "run and tune",
            "run gemm/12 --size m=4096,n=4096,k=4096",
            "tilusbuild.tune.verb_run",
        ),
        "tune": (
            "measure a script's programs and write its dispatch table",
            "run and tune",
            "tune gemm --grid m=1,16,4096 --budget 10m",
            "tilusbuild.tune.verb_tune",
        ),
    },
    "package tests": {"write": "tilusbuild.tune.prepare:write_package_tests"},
}
