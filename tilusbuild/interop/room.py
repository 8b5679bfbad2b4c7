"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

_VERBS = "tilusbuild.interop.verbs"
_PACKAGES = "tilusbuild.interop.packages"

BRINGS = {
    "foreign cache": dict.fromkeys(("Tilus", "TileLang", "Hidet", "Triton"), _VERBS),
    "package kind": {"adopted": ("caches", "tilusbuild.interop.listing:ForeignList", _PACKAGES)},
    "cache action": {"package": f"{_PACKAGES}:PACKAGE", "export": f"{_VERBS}:EXPORT"},
    "lines": {
        "cache ls": f"{_VERBS}:LS_LINES",
        "cache stats": f"{_VERBS}:STATS_LINES",
        "cache verify": f"{_VERBS}:VERIFY_LINES",
        "cache gc": f"{_VERBS}:GC_LINES",
        "install": f"{_PACKAGES}:INSTALL_LINES",
    },
}
