"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

BRINGS = {
    "signing": {
        "attester": "tilusbuild.signing.dsse:make_attester",
        "check": "tilusbuild.signing.dsse:check_signature",
    },
}
