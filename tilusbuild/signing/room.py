"""What this optional room brings; see `tilusbuild/rooms.py`."""

BRINGS = {
    "signing": {
        "attester": "tilusbuild.signing.dsse:make_attester",
        "check": "tilusbuild.signing.dsse:check_signature",
    },
}
