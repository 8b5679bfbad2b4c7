"""What this optional room brings; see `tilusbuild/rooms.py`."""

BRINGS = {
    "public name": {
        "KernelCache": "tilusbuild.jit.kernel_cache:KernelCache",
        "KernelNotBuilt": "tilusbuild.jit.kernel_cache:KernelNotBuilt",
        "Source": "tilusbuild.jit.request:Source",
    },
}
