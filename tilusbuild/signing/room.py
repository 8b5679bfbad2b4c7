"""What this optional room brings; see `tilusbuild/rooms.py`."""

BRINGS = {
    "signing": {
        "attester": "tilusbuild.signing.dsse:attester",
        "check": "tilusbuild.signing.dsse:check_signature",
    },
}
