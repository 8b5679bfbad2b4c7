"""What this optional room brings; see `tilusbuild/rooms.py`. Backends of Python packages find its
modules by entry points."""

BRINGS = {
    "dispatcher": {"c": "tilusbuild.embed.dispatcher"},
    "package format": {"wheel": "tilusbuild.embed.wheel:FORMAT"},
    "verb": {
        "cmake": (
            "build the kernels of a CMake project, which calls this",
            "build",
            "cmake dir",
            "tilusbuild.embed.verb",
        ),
    },
}
