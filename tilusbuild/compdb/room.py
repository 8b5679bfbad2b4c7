"""What this optional room brings; see `tilusbuild/rooms.py`."""

BRINGS = {
    "verb": {
        "compdb": (
            "print compile_commands.json for clangd and other editors",
            "build",
            "compdb -o compile_commands.json",
            "tilusbuild.compdb.verb",
        ),
    },
}
